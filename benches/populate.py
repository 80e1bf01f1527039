# SPDX-License-Identifier: MIT OR Apache-2.0
"""What it saves that runs which differ in hardware only share their populated memory.

The same runs of one preset, natively or in a VM, are made by turns in one worker, which populates once, and in a worker
each. Printed are processor seconds of both (user and system), and the most memory (sum of PSS) that they had at once.

    python benches/populate.py [PRESET [ROUNDS]]

Results of both must be the same to the last bit, or the benchmark fails.
"""

import resource
import statistics
import sys
import threading
from pathlib import Path

from nestwalk import conduct, pool, scenario

ASAP = {"tables": {"kind": "asap"}, "start": {"kind": "aged", "used_permille": 1000, "kept_permille": 10}}
HARDWARE = {
    "P1g": {"asap": {"guest_levels": [1]}},
    "P1g+P2g": {"asap": {"guest_levels": [1, 2]}},
    "all": {"asap": {"guest_levels": [1, 2], "host_levels": [1, 2]}},
    "all, co-runner": {"asap": {"guest_levels": [1, 2], "host_levels": [1, 2]}, "corunner": "random"},
}


def jobs(preset: str) -> list[pool.Job]:
    """As `nestwalk reproduce asap` has them."""
    table = {
        "schema": 1,
        "machine": "broadwell-asap",
        "workload": {"preset": {"name": preset, "data_accesses": [500_000, 500_000]}},
        "kernels": [ASAP, ASAP],
    }
    return [
        pool.Job(name, scenario.write({"name": name, **table, **more}), Path("x.toml"))
        for name, more in HARDWARE.items()
    ]


class Memory:
    """Watches what this process' descendants have."""

    def __init__(self) -> None:
        self.most_mib = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.2):
            self.most_mib = max(self.most_mib, sum(map(pss_mib, descendants("self"))))


def descendants(process: str) -> list[str]:
    try:
        children = "".join(path.read_text() for path in Path(f"/proc/{process}/task").glob("*/children")).split()
    except OSError:  # it has just ended
        return []
    return [*children, *(later for child in children for later in descendants(child))]


def pss_mib(process: str) -> float:
    try:
        rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) / 1024


def seconds() -> float:
    """Of processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def once(work: list[list[pool.Job]]) -> tuple[float, float, list[object]]:
    before, results = seconds(), []
    with Memory() as memory:
        for group in work:
            results += conduct.results(group, conduct.Means(jobs=1, results="none"), pool.Silent())
    return seconds() - before, memory.most_mib, results


def main() -> int:
    preset = sys.argv[1] if len(sys.argv) > 1 else "redis-50g"
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    all_jobs = jobs(preset)
    ways = {"shared": [all_jobs], "each by itself": [[job] for job in all_jobs]}
    took: dict[str, list[float]] = {way: [] for way in ways}
    memory = dict.fromkeys(ways, 0.0)
    for _ in range(rounds):
        found = []
        for way, work in ways.items():
            spent, most, results = once(work)
            took[way].append(spent)
            memory[way] = max(memory[way], most)
            found.append(results)
        if found[0] != found[1]:
            sys.exit("populate: the results differ")
    for way, times in took.items():
        middle = statistics.median(times)
        spread = f"{middle:.1f} s ({min(times):.1f} to {max(times):.1f})"
        print(f"{preset}, {len(all_jobs)} runs, {way}: {spread}, {memory[way]:.0f} MiB")
    ratios = [alone / shared for shared, alone in zip(took["shared"], took["each by itself"], strict=True)]
    spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    print(f"each by itself takes {spread} times as long, by turns, {rounds} rounds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
