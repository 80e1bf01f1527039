# SPDX-License-Identifier: Apache-2.0
"""A cloud for Nova's own scheduler: what it reads of the database, what it asks of placement, and hosts with memory.

Nova's `SchedulerManager`, `HostManager`, `HostState`, filters and weighers are real, and so are the
objects that pass between them. Hosts are lists of units of memory and find their free segments by
going through them; they allocate by the naive program that writes the vectors.
"""

from __future__ import annotations

import datetime
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import nova.conf
from nova import context as nova_context
from nova import objects
from nova.scheduler import host_manager, manager
from oslo_messaging.rpc import dispatcher

import make_vectors
from nestwalk_nova import STATS_KEY, conf, needs
from nestwalk_nova.allocation import runs_of
from nestwalk_nova.encoding import Layout, encode

CONF = nova.conf.CONF
GIB = 1024
CELL = str(uuid.UUID(int=1))

FILTER = "nestwalk_nova.filters.FewestSegmentsFilter"
WEIGHER = "nestwalk_nova.weights.FewestSegmentsWeigher"
PLUGIN = {
    "available_filters": ["nova.scheduler.filters.all_filters", FILTER],
    # Nova's defaults, without those that ask the database for something.
    "enabled_filters": [
        "ComputeCapabilitiesFilter",
        "NumInstancesFilter",
        "IoOpsFilter",
        "FewestSegmentsFilter",
    ],
    "weight_classes": ["nova.scheduler.weights.all_weighers", WEIGHER],
}
STOCK = {
    "available_filters": ["nova.scheduler.filters.all_filters"],
    "enabled_filters": ["ComputeCapabilitiesFilter", "NumInstancesFilter", "IoOpsFilter"],
    "weight_classes": ["nova.scheduler.weights.all_weighers"],
}


@contextmanager
def configured(scheduler: dict[str, Any], **nestwalk: Any) -> Iterator[None]:
    """Nova's configuration with these options of `[filter_scheduler]` and `[nestwalk]`."""
    CONF([], project="nova", default_config_files=[], default_config_dirs=[])
    objects.register_all()
    conf.register(CONF)
    needs.forget_what_was_told()
    with ExitStack() as stack:
        groups = [
            ("filter_scheduler", scheduler | {"track_instance_changes": False}),
            ("nestwalk", nestwalk),
        ]
        for group, options in groups:
            for name, value in options.items():
                CONF.set_override(name, value, group)
                stack.callback(CONF.clear_override, name, group)
        # A limit on builds at a time is not what is tested.
        CONF.set_override("max_io_ops_per_host", 1_000_000, "filter_scheduler")
        CONF.set_override("max_instances_per_host", 1_000_000, "filter_scheduler")
        stack.callback(CONF.clear_override, "max_io_ops_per_host", "filter_scheduler")
        stack.callback(CONF.clear_override, "max_instances_per_host", "filter_scheduler")
        yield


class Host:
    """A compute node: its memory, a character a GiB, and what it reports."""

    def __init__(self, number: int, gib: int, vcpus: int) -> None:
        self.name = f"host{number:05}"
        self.uuid = str(uuid.UUID(int=1000 + number))
        self.memory = ["free"] * gib
        self.vcpus, self.vcpus_used = vcpus, 0
        self.vms: dict[str, list[tuple[int, int]]] = {}
        self.layout: str | None = None
        self.publish()

    @property
    def free_gib(self) -> int:
        return self.memory.count("free")

    def fits(self, gib: int, vcpus: int) -> bool:
        return self.free_gib >= gib and self.vcpus - self.vcpus_used >= vcpus

    def needed(self, gib: int, option: int) -> int:
        """Segments that a VM would get now."""
        made = make_vectors.allocate(make_vectors.segments(self.memory, "free"), gib, option)
        assert made is not None
        return int(str(made["segments"]))

    def boot(self, vm: str, gib: int, option: int) -> int:
        """Allocates a VM's memory; the number of its segments."""
        made = make_vectors.allocate(make_vectors.segments(self.memory, "free"), gib, option)
        assert made is not None, "the scheduler chose a host without room"
        pieces: Any = made["pieces"]
        for base, size in pieces:
            assert self.memory[base : base + size] == ["free"] * size
            self.memory[base : base + size] = [vm] * size
        self.vms[vm] = pieces
        return len(pieces)

    def delete(self, vm: str) -> None:
        for base, size in self.vms.pop(vm):
            self.memory[base : base + size] = ["free"] * size

    def publish(self, age_s: int = 0) -> None:
        """What agent and driver do."""
        sizes = [size for _, size in make_vectors.segments(self.memory, "free")]
        self.layout = encode(
            Layout(int(time.time()) - age_s, "hugetlb", GIB, ((0, runs_of(sizes)),))
        )

    def compute_node(self) -> Any:
        """Its record, as the scheduler reads it from the database."""
        now = datetime.datetime.now(datetime.UTC)
        stats = {"num_instances": str(len(self.vms)), "io_workload": "0", "failed_builds": "0"}
        if self.layout is not None:
            stats[STATS_KEY] = self.layout
        total = len(self.memory) * GIB
        return objects.ComputeNode(
            uuid=self.uuid, host=self.name, hypervisor_hostname=self.name, memory_mb=total,
            free_ram_mb=self.free_gib * GIB, memory_mb_used=total - self.free_gib * GIB, vcpus=self.vcpus,
            vcpus_used=self.vcpus_used, local_gb=10_000, local_gb_used=0, free_disk_gb=10_000,
            disk_available_least=10_000, updated_at=now, created_at=now, stats=stats, numa_topology=None,
            pci_device_pools=objects.PciDevicePoolList(objects=[]), metrics="[]", host_ip="127.0.0.1",
            hypervisor_type="QEMU", hypervisor_version=1, cpu_info="{}", supported_hv_specs=[],
            cpu_allocation_ratio=1.0, ram_allocation_ratio=1.0, disk_allocation_ratio=1.0, mapped=1,
            current_workload=0, running_vms=0,
        )  # fmt: skip


class Placement:
    """As much of placement as the scheduler asks for: candidates with room, and claims that hold."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.claimed: dict[str, tuple[str, int, int]] = {}

    def room(self, host: Host, gib: int, vcpus: int) -> bool:
        taken = [claim for claim in self.claimed.values() if claim[0] == host.uuid]
        return host.fits(
            gib + sum(claim[1] for claim in taken), vcpus + sum(claim[2] for claim in taken)
        )

    def get_allocation_candidates(
        self, _context: Any, resources: Any
    ) -> tuple[list[Any], dict[str, Any], str]:
        asked = dict(resources.get_request_group(None).resources)
        gib, vcpus = asked["MEMORY_MB"] // GIB, asked["VCPU"]
        fitting = [host for host in self.cloud.hosts if self.room(host, gib, vcpus)]
        requests = [
            {"allocations": {host.uuid: {"resources": asked}}, "mappings": {"": [host.uuid]}}
            for host in fitting
        ]
        return requests, {host.uuid: {} for host in fitting}, "1.36"

    def claim_resources(
        self, _context: Any, consumer: str, request: Any, *_args: Any, **_options: Any
    ) -> bool:
        ((provider, allocation),) = request["allocations"].items()
        gib, vcpus = allocation["resources"]["MEMORY_MB"] // GIB, allocation["resources"]["VCPU"]
        if not self.room(self.cloud.by_uuid[provider], gib, vcpus):
            return False
        self.claimed[consumer] = (provider, gib, vcpus)
        return True

    def delete_allocation_for_instance(self, _context: Any, consumer: str, **_options: Any) -> None:
        del self.claimed[consumer]


class Cloud:
    """Hosts under Nova's scheduler."""

    def __init__(self, hosts: list[Host], option: int) -> None:
        self.hosts, self.option = hosts, option
        self.by_uuid = {host.uuid: host for host in hosts}
        self.by_name = {host.name: host for host in hosts}
        self.context = nova_context.get_admin_context()
        self.placement = Placement(self)
        with ExitStack() as stack:
            for name in ("refresh_cells_caches", "_init_aggregates", "_init_instance_info"):
                stack.enter_context(mock.patch.object(host_manager.HostManager, name))
            stack.enter_context(mock.patch("nova.rpc.get_notifier"))
            stack.enter_context(mock.patch("nova.servicegroup.API"))
            stack.enter_context(
                mock.patch(
                    "nova.scheduler.client.report.report_client_singleton",
                    return_value=self.placement,
                )
            )
            self.manager: Any = manager.SchedulerManager()
        host_mgr = self.manager.host_manager
        host_mgr.cells, host_mgr.enabled_cells = {CELL: None}, [CELL]
        host_mgr._get_computes_for_cells = self._computes
        host_mgr._get_instances_by_host = lambda *_: {}

    def _computes(
        self, _context: Any, _cells: Any, compute_uuids: Any = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        hosts = (
            [self.by_uuid[found] for found in compute_uuids]
            if compute_uuids is not None
            else self.hosts
        )
        services = {
            host.name: objects.Service(host=host.name, disabled=False, binary="nova-compute")
            for host in hosts
        }
        return {CELL: [host.compute_node() for host in hosts]}, services

    def _select_destinations(self, *args: Any, **options: Any) -> Any:
        try:
            return self.manager.select_destinations(*args, **options)
        except dispatcher.ExpectedException as error:
            # The RPC server's wrapping of what the caller gets.
            raise error.exc_info[1] from None

    def select(self, gib: int, vcpus: int, count: int = 1, **spec: Any) -> list[list[Host]]:
        """`SchedulerManager.select_destinations`: for each instance the host and its alternates.

        Raises:
            NoValidHost: as it does.
        """
        instances = [str(uuid.uuid4()) for _ in range(count)]
        with (
            mock.patch(
                "nova.scheduler.client.report.report_client_singleton", return_value=self.placement
            ),
            mock.patch("nova.compute.utils.notify_about_scheduler_action"),
            # Asks the database for versions of services, and adds traits that placement alone looks at.
            mock.patch("nova.scheduler.request_filter.process_reqspec"),
        ):
            selections = self._select_destinations(
                self.context, spec_obj=request_spec(gib, vcpus, count, **spec), instance_uuids=instances,
                return_objects=True, return_alternates=True,
            )  # fmt: skip
        self.placement.claimed.clear()
        return [[self.by_name[selection.service_host] for selection in row] for row in selections]

    def boot(self, gib: int, vcpus: int, count: int = 1) -> list[tuple[Host, str, int]]:
        """Schedules a request and boots its VMs where the scheduler says: host, VM and its segments."""
        booted = []
        for row in self.select(gib, vcpus, count):
            vm = str(uuid.uuid4())
            booted.append((row[0], vm, row[0].boot(vm, gib, self.option)))
            row[0].vcpus_used += vcpus
        return booted


def request_spec(gib: int, vcpus: int, count: int = 1, **fields: Any) -> Any:
    """A request for `count` instances of one flavor."""
    flavor = objects.Flavor(
        id=1, flavorid="1", name="f", memory_mb=gib * GIB, vcpus=vcpus, root_gb=0, ephemeral_gb=0, swap=0,
        extra_specs={}, rxtx_factor=1.0, vcpu_weight=0, disabled=False, is_public=True,
    )  # fmt: skip
    base: dict[str, Any] = {
        "instance_uuid": str(uuid.uuid4()), "project_id": "p", "user_id": "u", "num_instances": count, "flavor": flavor,
        "image": objects.ImageMeta(properties=objects.ImageMetaProps()), "numa_topology": None,
        "pci_requests": objects.InstancePCIRequests(requests=[]), "is_bfv": False, "availability_zone": None,
        "ignore_hosts": None, "force_hosts": None, "force_nodes": None, "requested_destination": None,
        "requested_resources": [], "request_level_params": objects.RequestLevelParams(), "retry": None, "limits": None,
        "instance_group": None, "scheduler_hints": {}, "security_groups": objects.SecurityGroupList(objects=[]),
        "requested_networks": objects.NetworkRequestList(objects=[]),
        "network_metadata": objects.NetworkMetadata(physnets=set(), tunneled=False),
    }  # fmt: skip
    return objects.RequestSpec(**(base | fields))
