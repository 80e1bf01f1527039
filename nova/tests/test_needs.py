# SPDX-License-Identifier: Apache-2.0
"""What the scheduler makes of one host: guest NUMA nodes, what was consumed, and which VMs count."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import nova.conf
import pytest
from nova import objects
from nova.scheduler import host_manager, weights
from oslo_utils import importutils

import cloud
from nestwalk_nova import STATS_KEY, conf, needs
from nestwalk_nova.allocation import runs_of
from nestwalk_nova.encoding import Layout, encode
from nestwalk_nova.filters import FewestSegmentsFilter
from nestwalk_nova.weights import FewestSegmentsWeigher

CONF = nova.conf.CONF
GIB = 1024


def host(*nodes: list[int], total_gib: int = 1000, age_s: float = 0) -> Any:
    """A `HostState` whose host published these free segments, in GiB."""
    layout = Layout(
        int(time.time() - age_s),
        "hugetlb",
        GIB,
        tuple((node, runs_of(sizes)) for node, sizes in enumerate(nodes)),
    )
    state = host_manager.HostState("host", "node", cloud.CELL)
    state.stats = {STATS_KEY: encode(layout), "num_instances": "3"}
    state.num_instances = 3
    state.total_usable_ram_mb = total_gib * GIB
    return state


def topology(*cells_gib: float, page_kib: int | None = None) -> Any:
    return objects.InstanceNUMATopology(
        cells=[
            objects.InstanceNUMACell(
                id=cell, memory=int(gib * GIB), cpuset={cell}, pcpuset=set(), pagesize=page_kib
            )
            for cell, gib in enumerate(cells_gib)
        ]
    )


def rank(state: Any, gib: int, **fields: Any) -> int | None:
    found = needs.ranks([state], cloud.request_spec(gib, 1, **fields), CONF.nestwalk)
    assert found is not None
    return found[0]


def test_a_vm_without_numa_nodes_may_spread_over_the_host() -> None:
    with cloud.configured(cloud.PLUGIN):
        assert rank(host([3, 1], [4]), 4) == 1
        assert rank(host([3, 1], [4]), 7) == 2
        assert rank(host([3, 1], [4]), 8) == 3
        # More than max_segments, and more than there is: both would run under EPT.
        assert rank(host([1, 1], [1, 1]), 4) == 4
        assert rank(host([3, 1], [4]), 9) == 4


def test_each_guest_node_gets_a_host_node_of_its_own() -> None:
    with cloud.configured(cloud.PLUGIN):
        assert rank(host([6], [5]), 8, numa_topology=topology(4, 4)) == 2
        # In one node they would be one segment, but Nova does not put two guest nodes there.
        assert rank(host([8], [2, 2]), 8, numa_topology=topology(4, 4)) == 3
        assert rank(host([8]), 8, numa_topology=topology(4, 4)) == 4
        # One guest node does not spread.
        assert rank(host([3], [3]), 6, numa_topology=topology(6)) == 4
        assert rank(host([1, 2], [3]), 3, numa_topology=topology(3)) == 1


def test_sizes_are_rounded_up_to_units() -> None:
    with cloud.configured(cloud.PLUGIN):
        spec = cloud.request_spec(2, 1)
        spec.flavor.memory_mb = 2 * GIB + 1
        assert needs.ranks([host([2, 3])], spec, CONF.nestwalk) == [1]
        assert needs.ranks([host([2, 2])], spec, CONF.nestwalk) == [2]


@pytest.mark.parametrize("numa", [False, True])
def test_what_nova_consumes_is_taken_from_the_layout(numa: bool) -> None:
    """`consume_from_request` is Nova's own: if it no longer counted instances, this would fail."""
    with cloud.configured(cloud.PLUGIN):
        state = host([4, 2, 2])
        spec = cloud.request_spec(4, 1, numa_topology=topology(4) if numa else None)
        ranks = []
        for _ in range(4):
            ranks.append(needs.ranks([state], spec, CONF.nestwalk))
            state.consume_from_request(spec)
        assert ranks == [[1], [2], [4], [4]]
        assert state.stats["num_instances"] == "3"


def test_only_vms_of_huge_pages_if_so_configured() -> None:
    with cloud.configured(cloud.PLUGIN, flavors="hugepages"):
        state = host([1, 1])
        for spec in (
            cloud.request_spec(2, 1),
            cloud.request_spec(2, 1, numa_topology=topology(2, page_kib=-1)),
        ):
            assert needs.ranks([state], spec, CONF.nestwalk) is None
        assert rank(state, 2, numa_topology=topology(2, page_kib=1 << 20)) == 2
        assert rank(state, 2, numa_topology=topology(2, page_kib=-2)) == 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"age_s": 301}, "it is stale"),
        ({"age_s": -302}, "it is from the future"),
        ({"total_gib": 7}, "it has more free memory than the host has memory"),
    ],
)
def test_a_layout_that_cannot_be_is_not_known(
    change: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with cloud.configured(cloud.PLUGIN):
        caplog.set_level("INFO")
        for _ in range(3):
            assert rank(host([8], **change), 4) is None
        assert rank(host([8]), 4) == 1
        messages = [
            record.getMessage() for record in caplog.records if record.name == "nestwalk_nova.needs"
        ]
        assert len(messages) == 2
        assert f"is not known: {reason}" in messages[0]
        assert messages[1].endswith("is known again.")


def test_slack_and_number_of_candidates() -> None:
    hosts = {"a": [4], "b": [2, 2], "c": [2, 2], "d": [2, 1, 1]}
    spec = cloud.request_spec(4, 1)
    for options, kept in (
        ({"min_candidates": 1}, "a"),
        ({"min_candidates": 1, "slack": 1}, "abc"),
        ({"min_candidates": 2}, "abc"),
        ({"min_candidates": 4}, "abcd"),
        ({"min_candidates": 1, "max_segments": 1, "slack": 1}, "abcd"),
        ({"mode": "require", "max_segments": 2}, "abc"),
        ({"mode": "off"}, "abcd"),
    ):
        with cloud.configured(cloud.PLUGIN, **options):
            states = []
            for name, sizes in hosts.items():
                state = host(sizes)
                state.host = name
                states.append(state)
            found = FewestSegmentsFilter().filter_all(iter(states), spec)
            assert "".join(state.host for state in found) == kept, options


def test_weights_are_scaled_and_an_aggregate_has_precedence() -> None:
    with cloud.configured(cloud.PLUGIN, weight_multiplier=10.0):
        states = [host(sizes) for sizes in ([4], [2, 2], [1, 1, 1, 1])]
        states[1].aggregates = [
            objects.Aggregate(id=1, metadata={"nestwalk_weight_multiplier": "6"}, hosts=["host"])
        ]
        states.append(host([4], age_s=10_000))
        weighed = weights.HostWeightHandler().get_weighed_objects(
            [FewestSegmentsWeigher()], states, cloud.request_spec(4, 1)
        )
        # 1, 2, more than 3 and not known, between the least and the greatest of these.
        found = {id(one.obj): one.weight for one in weighed}
        assert [found[id(state)] for state in states] == [10.0, 6 * 2 / 3, 0.0, 0.0]


def test_a_rebuild_stays_where_it_is() -> None:
    with cloud.configured(cloud.PLUGIN, mode="require"):
        spec = cloud.request_spec(4, 1, scheduler_hints={"_nova_check_type": ["rebuild"]})
        assert len(FewestSegmentsFilter().filter_all([host([1])], spec)) == 1


def test_every_option_is_documented_and_given_to_the_generator() -> None:
    ((group, options),) = conf.list_opts()
    assert group == "nestwalk"
    assert len({option.name for option in options}) == 14
    assert all(option.help for option in options)


def test_nova_conf_as_the_readme_has_it(tmp_path: Path) -> None:
    """The README's lines, read by Nova, load filter, weigher and driver."""
    readme = Path(__file__).parent.parent.joinpath("README.md").read_text("utf-8")
    blocks = [block.partition("```")[0] for block in readme.split("```ini\n")[1:]]
    (tmp_path / "nova.conf").write_text("\n".join(blocks))
    with cloud.configured({}):
        CONF(
            [],
            project="nova",
            default_config_files=[str(tmp_path / "nova.conf")],
            default_config_dirs=[],
        )
        for name in cloud.PLUGIN:
            CONF.clear_override(name, "filter_scheduler")
        manager = cloud.Cloud([], 2).manager.host_manager
        assert type(manager.enabled_filters[-1]).__name__ == "FewestSegmentsFilter"
        assert len(manager.enabled_filters) > 5
        weighers = [type(weigher).__name__ for weigher in manager.weighers]
        assert "RAMWeigher" in weighers
        assert "FewestSegmentsWeigher" in weighers
        driver = importutils.import_class(f"nova.virt.{CONF.compute_driver}")
        assert [base.__name__ for base in driver.__mro__[:3]] == [
            "LibvirtDriver",
            "PublishesSegments",
            "LibvirtDriver",
        ]
        # As Nova's loader has it, with a driver that needs no libvirt.
        assert CONF.nestwalk.mode == "prefer"
        assert CONF.nestwalk.stale_after == 300
    CONF([], project="nova", default_config_files=[], default_config_dirs=[])


def test_a_scheduler_keeps_one_layout_a_host() -> None:
    """Each text has a time in it: of a thousand that a host has published, the last one is kept."""
    with cloud.configured(cloud.PLUGIN):
        needs.forget_what_was_decoded()
        spec = cloud.request_spec(4, 1)
        state, other = host([4, 2]), host([2, 2])
        other.nodename = "other"
        for age_s in range(200):
            segments = [4] if age_s % 2 else [2, 2]
            state.stats = host(segments, age_s=age_s).stats
            # Neither the host's last text nor another host's takes the place of this one.
            assert needs.ranks([state, other], spec, CONF.nestwalk) == [len(segments), 2]
        assert len(needs._decoded) == 2


def test_a_host_that_lies_in_all_it_can_say_is_refused_or_costs_little() -> None:
    """The longest texts of the largest numbers: no overflow, no long computation, a rank or none."""
    now = int(time.time())
    huge = str(1 << 40)
    lies = [
        f"1;t={now};s=hugetlb;u={huge};f=0:{huge}*{huge}",
        f"1;t={now};s=hugetlb;u=1;f=0:1*{huge};d={huge}:{huge}",
        f"1;t={now};s=hugetlb;u=1;f=" + "/".join(f"{node}:1" for node in range(1024)),
        f"1;t={now};s=hugetlb;u=1;f=0:" + ",".join(map(str, range(3000, 0, -1))),
        f"1;t={huge};s=hugetlb;u=1;f=0:1",
        f"1;t={now};s=hugetlb;u=1;f=0:1;f=0:999999",
        f"1;t={now};t=5;s=hugetlb;u=1;f=0:1",
    ]
    with cloud.configured(cloud.PLUGIN):
        for lie in lies:
            for cells in (None, topology(*[1] * 8)):
                state = host([1])
                state.stats[STATS_KEY] = lie
                # As many instances as one request may have put there.
                state.num_instances += 100
                begun = time.process_time()
                found = rank(state, 64, numa_topology=cells)
                assert time.process_time() - begun < 2
                assert found is None or 1 <= found <= CONF.nestwalk.max_segments + 1
