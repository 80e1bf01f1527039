# SPDX-License-Identifier: Apache-2.0
"""What the filter and the weigher add to a scheduler's decision, beside Nova's own in the same run.

    nova/.venv/bin/python nova/bench/filter.py [HOSTS ...]

Nova 34 has no RamFilter (placement took its place), so the yardsticks are NumInstancesFilter, which
compares one number of each host, and RAMWeigher. Each runs through Nova's own handlers on the same
`HostState` objects; the CPU time is the shortest of `ROUNDS`. "first" is a request that meets each host's
text for the first time, as one does after every report of the hosts; "again" has met them.
"""

from __future__ import annotations

import logging
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from nova import objects
from nova.scheduler import host_manager, weights
from nova.scheduler.filters import HostFilterHandler, num_instances_filter
from nova.scheduler.weights import ram

import cloud
from nestwalk_nova import STATS_KEY, needs
from nestwalk_nova.allocation import runs_of
from nestwalk_nova.encoding import Layout, encode
from nestwalk_nova.filters import FewestSegmentsFilter
from nestwalk_nova.weights import FewestSegmentsWeigher

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 15
SEED = 1


def host_states(count: int) -> list[Any]:
    """Hosts of 512 GiB, half full, with 1 to 40 free segments on each of two nodes."""
    dice = random.Random(SEED)
    states = []
    for number in range(count):
        state = host_manager.HostState(f"host{number}", f"host{number}", cloud.CELL)
        nodes = tuple(
            (node, runs_of([dice.randrange(1, 12) for _ in range(dice.randrange(1, 40))]))
            for node in (0, 1)
        )
        # Each host reports at a time of its own.
        layout = Layout(int(time.time()) - number % 60, "hugetlb", cloud.GIB, nodes)
        state.stats = {STATS_KEY: encode(layout), "num_instances": "0"}
        state.total_usable_ram_mb = 1024 * cloud.GIB
        state.free_ram_mb = layout.free_mib
        states.append(state)
    return states


def shortest_ms(run: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
    """The shortest time of a call, each after `before`, which is not timed."""
    times = []
    for _ in range(ROUNDS):
        before()
        begun = time.process_time()
        run()
        times.append((time.process_time() - begun) * 1000)
    return min(times)


def measure(count: int, gib: int) -> None:
    """Prints a line for each filter and weigher."""
    states, spec = host_states(count), cloud.request_spec(gib, 2)
    filters, weighers = HostFilterHandler(), weights.HostWeightHandler()

    def filtering(one: Any) -> Callable[[], object]:
        return lambda: filters.get_filtered_objects([one], states, spec)

    def weighing(one: Any) -> Callable[[], object]:
        return lambda: weighers.get_weighed_objects([one], states, spec)

    forget = needs.forget_what_was_decoded
    base = shortest_ms(filtering(num_instances_filter.NumInstancesFilter()))
    base_weigh = shortest_ms(weighing(ram.RAMWeigher()))
    rows = [
        ("NumInstancesFilter", base, 1.0),
        (
            "FewestSegmentsFilter, first",
            time_ := shortest_ms(filtering(FewestSegmentsFilter()), forget),
            time_ / base,
        ),
        (
            "FewestSegmentsFilter, again",
            time_ := shortest_ms(filtering(FewestSegmentsFilter())),
            time_ / base,
        ),
        ("RAMWeigher", base_weigh, 1.0),
        (
            "FewestSegmentsWeigher, again",
            time_ := shortest_ms(weighing(FewestSegmentsWeigher())),
            time_ / base_weigh,
        ),
    ]
    for name, time_, ratio in rows:
        host_us = time_ / count * 1000
        print(
            f"{count:6} hosts, VM of {gib:3} GiB: {name:29} {time_:8.2f} ms {ratio:6.2f} x {host_us:7.2f} us a host"
        )


def main() -> None:
    """Runs for the numbers of hosts given, or for 1,000 and 10,000."""
    logging.getLogger().setLevel(logging.WARNING)
    objects.register_all()
    with cloud.configured(cloud.PLUGIN):
        for count in [int(argument) for argument in sys.argv[1:]] or [1000, 10_000]:
            # A VM that one segment holds nearly anywhere, and one that needs several nearly everywhere.
            for gib in (4, 48):
                measure(count, gib)


if __name__ == "__main__":
    main()
