# SPDX-License-Identifier: Apache-2.0
"""Nova in one process: API, conductor, scheduler, placement and compute services with the libvirt driver.

Everything is Nova's own but libvirt, Neutron, Glance and Cinder, for which Nova's functional tests
have substitutes. The layouts are written by hand where the agent would have written them.
"""

from __future__ import annotations

import sys
import time
import types
from pathlib import Path
from typing import Any

import fixtures
import nova.conf
from nova import context, objects
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional.libvirt import base

from nestwalk_nova import STATS_KEY, conf, needs
from nestwalk_nova.agent import write
from nestwalk_nova.allocation import runs_of
from nestwalk_nova.encoding import Layout, encode

CONF = nova.conf.CONF
FILTER = "nestwalk_nova.filters.FewestSegmentsFilter"
WEIGHER = "nestwalk_nova.weights.FewestSegmentsWeigher"
GIB = 1024


def _driver_module(folder: Path) -> types.ModuleType:
    """`nova.virt.nestwalk_test`: the shipped driver, with a file for each of the hosts in this process."""
    from nova.virt import nestwalk

    class LibvirtDriver(nestwalk.LibvirtDriver):  # type: ignore[misc]
        def segments_file(self, nodename: str) -> Path:
            return folder / nodename

    module = types.ModuleType("nova.virt.nestwalk_test")
    module.LibvirtDriver = LibvirtDriver  # type: ignore[attr-defined]
    return module


class Deployment(base.ServersTestBase):  # type: ignore[misc]
    """A cloud of three compute nodes, of 15 GiB of memory each."""

    api_major_version = "v2.1"
    microversion = "latest"
    ADMIN_API = True

    def setUp(self) -> None:
        conf.register(CONF)
        needs.forget_what_was_told()
        self.folder = Path(self.useFixture(fixtures.TempDir()).path)
        # Where pip installs it.
        self.flags(api_paste_config=str(Path(sys.prefix) / "etc/nova/api-paste.ini"), group="wsgi")
        super().setUp()
        sys.modules["nova.virt.nestwalk_test"] = _driver_module(self.folder)
        self.addCleanup(sys.modules.pop, "nova.virt.nestwalk_test")
        self.flags(compute_driver="nestwalk_test.LibvirtDriver", initial_ram_allocation_ratio=1.0)

    def _clear_attrs(self) -> None:
        """Nova's test case deletes its attributes after the test, which pytest still needs then."""

    def _setup_scheduler_service(self) -> Any:
        self.flags(
            available_filters=["nova.scheduler.filters.all_filters", FILTER],
            enabled_filters=[*CONF.filter_scheduler.enabled_filters, "FewestSegmentsFilter"],
            weight_classes=["nova.scheduler.weights.all_weighers", WEIGHER],
            group="filter_scheduler",
        )
        self.flags(mode=self.mode, min_candidates=1, group="nestwalk")
        return self.start_service("scheduler")

    mode = "prefer"

    def publish(self, host: str, sizes_gib: list[int], age_s: int = 0) -> None:
        layout = Layout(int(time.time()) - age_s, "hugetlb", GIB, ((0, runs_of(sizes_gib)),))
        write(self.folder / host, encode(layout))

    def start(self, **sizes_gib: list[int]) -> None:
        for host, sizes in sizes_gib.items():
            self.publish(host, sizes)
            self.start_compute(
                hostname=host,
                # The substitute reports its kB_mem as the MiB that libvirt's getInfo has.
                host_info=fakelibvirt.HostInfo(
                    cpu_nodes=1, cpu_sockets=1, cpu_cores=7, cpu_threads=2, kB_mem=15 * GIB
                ),
            )

    def audit(self, host: str) -> None:
        """The compute service's periodic task."""
        self.computes[host].manager.update_available_resource(context.get_admin_context())

    def stats(self, host: str) -> dict[str, str]:
        """The host's stats, as the scheduler reads them from the database."""
        found = objects.ComputeNodeList.get_all_by_host(context.get_admin_context(), host)[0].stats
        return dict(found)

    def boot(self, gib: int, count: int = 1, state: str = "ACTIVE") -> list[str]:
        """Boots VMs with one request and returns the hosts of its instances."""
        flavor = self._create_flavor(memory_mb=gib * GIB, vcpu=1, disk=0, ephemeral=0)
        server = self._build_server(flavor_id=flavor, networks="none")
        server |= {"min_count": count, "max_count": count, "return_reservation_id": True}
        reservation = self.api.post_server({"server": server})["reservation_id"]
        servers = self.api.get_servers(search_opts={"reservation_id": reservation})
        return [
            self._wait_for_state_change(server, state)["OS-EXT-SRV-ATTR:host"] for server in servers
        ]


class PreferTest(Deployment):
    def test_a_layout_gets_into_the_database_and_stays_there(self) -> None:
        self.start(one=[8, 4])
        text = (self.folder / "one").read_text("ascii").strip()
        self.assertEqual(text, self.stats("one")[STATS_KEY])
        self.assertIn("uptime", self.stats("one"))
        # A claim saves the record again, from the resource tracker's own counts.
        self.assertEqual(["one"], self.boot(2))
        self.assertEqual(text, self.stats("one")[STATS_KEY])
        self.assertEqual("1", self.stats("one")["num_instances"])
        # New text replaces it, and no text takes it away.
        self.publish("one", [6, 4])
        self.audit("one")
        self.assertIn("f=0:6,4", self.stats("one")[STATS_KEY])
        (self.folder / "one").unlink()
        self.audit("one")
        self.assertNotIn(STATS_KEY, self.stats("one"))
        (self.folder / "one").write_text("x" * 100_000, "ascii")
        self.audit("one")
        self.assertNotIn(STATS_KEY, self.stats("one"))
        self.assertIn("are not published", self.stdlog.logger.output)

    def test_the_host_with_the_fewest_segments_is_chosen(self) -> None:
        self.start(one=[2, 2, 2, 2], two=[8], three=[4, 4])
        self.assertEqual(["two"], self.boot(5))
        # Nobody has told the scheduler that the segment of 8 GiB is gone; now it is told.
        self.publish("two", [3])
        self.audit("two")
        self.assertEqual(["three"], self.boot(5))

    def test_instances_of_one_request_see_each_other(self) -> None:
        self.start(one=[5, 5, 1, 1], two=[8, 1, 1, 1, 1], three=[1] * 14)
        # Each segment of 5 GiB holds one instance, that of 8 GiB two, and `three` has none for any.
        hosts = self.boot(4, count=4)
        self.assertEqual(["one", "one", "two", "two"], sorted(hosts))

    def test_a_request_larger_than_the_best_hosts_is_not_blocked(self) -> None:
        self.start(one=[12], two=[1] * 14, three=[1] * 14)
        # `one` is best for two instances. It has no room for a third, and the other hosts are still there for it.
        hosts = self.boot(6, count=5)
        self.assertEqual(2, hosts.count("one"))
        self.assertEqual([1, 2], sorted([hosts.count("two"), hosts.count("three")]))

    def test_stale_absent_and_false_layouts_do_not_block(self) -> None:
        self.start(one=[1] * 12, two=[1] * 12, three=[1] * 12)
        self.publish("one", [12], age_s=10_000)
        (self.folder / "two").unlink()
        self.publish("three", [12_000])
        for host in ("one", "two", "three"):
            self.audit(host)
        self.assertEqual({"one", "two", "three"}, {self.boot(9)[0] for _ in range(3)})
        log = self.stdlog.logger.output
        for reason in (
            "it is stale",
            "it publishes none",
            "it has more free memory than the host has memory",
        ):
            self.assertEqual(1, log.count(f"is not known: {reason}"), log)
        self.publish("one", [3])
        self.audit("one")
        self.boot(2)
        self.assertIn("host one, node one, is known again", self.stdlog.logger.output)


class RequireTest(Deployment):
    mode = "require"

    def test_only_hosts_with_few_segments_are_taken_and_else_the_boot_fails(self) -> None:
        self.start(one=[1] * 12, two=[3, 3, 3], three=[12])
        self.publish("three", [12], age_s=10_000)
        self.audit("three")
        self.assertEqual(["two"], self.boot(9))
        self.publish("two", [])
        self.audit("two")
        self.boot(9, state="ERROR")
        self.publish("three", [12])
        self.audit("three")
        self.assertEqual(["three"], self.boot(9))


class OffTest(Deployment):
    mode = "off"

    def test_nothing_is_read(self) -> None:
        self.start(one=[1] * 12, two=[14])
        self.publish("two", [14_000])
        self.audit("two")
        self.assertEqual({"one", "two"}, {self.boot(9)[0] for _ in range(2)})
        self.assertNotIn("is not known", self.stdlog.logger.output)
