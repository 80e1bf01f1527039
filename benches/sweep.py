# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a sweep costs beside its runs: ``.venv/bin/python benches/sweep.py [--runs N] [--seconds S] [--jobs J]``.

The runs are stand-ins: processes that speak the worker's protocol, sleep instead of simulating, and answer with a real
result. So all that is measured is the sweep's own work: reading and expanding the specification, keys, groups, messages
between processes, storing and reading results. Times depend on the machine; the shares are what is held.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from concurrent.futures import as_completed
from pathlib import Path

from nestwalk import _native, conduct, pool
from nestwalk.sweeps import sweep

SPEC = """
schema = 1
seeds = {{ from = 1, to = {runs} }}

[[program]]
name = "gups"
title = "GUPS"
workload = {{ generator = {{ kind = "gups", footprint = "32 MiB", warm_accesses = 0, measured_accesses = 20000 }} }}

[set.scenario]
kernels = [{{}}, {{}}]
"""

STAND_IN = """
import json, sys, time
result = open({result!r}).read()
for line in sys.stdin:
    for number in range(len(json.loads(line)["jobs"])):
        print(json.dumps({{"job": number}}), flush=True)
        time.sleep({seconds})
        print('{{"result": ' + result + ', "seconds": {seconds}, "memory_bytes": 1}}', flush=True)
    print('{{"ended": 0}}', flush=True)
"""


def scheduler_load(order: object, result: object, tasks: int) -> dict[str, float]:
    """Processor time that Dask's scheduler and this client together take for a group of one run.

    They are in this process; two workers, in others, answer at once. From it follows how many workers one scheduler
    keeps busy: with groups of S seconds, S over this time.
    """
    import distributed

    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as made,
        distributed.Client(made) as client,
    ):
        executor = client.get_executor(pure=False)
        list(as_completed([executor.submit(_answer, order, result) for _ in range(20)]))
        begun, processor = time.monotonic(), time.process_time()
        for done in as_completed([executor.submit(_answer, order, result) for _ in range(tasks)]):
            done.result()
        each = (time.process_time() - processor) / tasks
        wall = (time.monotonic() - begun) / tasks
    seconds = WORKERS_ON_PAPER * each
    return {
        "tasks": tasks,
        "processor_ms_a_group": round(1000 * each, 2),
        "wall_ms_a_group": round(1000 * wall, 2),
        "seconds_of_a_group_that_keep_10000_workers_busy": round(seconds, 1),
    }


def _answer(_order: object, result: object) -> object:
    return result


WORKERS_ON_PAPER = 10_000


def main() -> None:
    """Measures and prints."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--runs", type=int, default=1000)
    options.add_argument("--seconds", type=float, default=1.0)
    options.add_argument("--jobs", type=int, default=20)
    options.add_argument(
        "--scheduler", type=int, default=0, metavar="N", help="load of Dask's scheduler, over N groups"
    )
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "spec.toml").write_text(SPEC.format(runs=given.runs), encoding="utf-8")
        job = sweep.plan(folder / "spec.toml", means=conduct.Means(results="none")).wanted[0].job
        (folder / "result.json").write_text(_native.run(job.scenario, str(job.path), ""), encoding="utf-8")
        code = STAND_IN.format(result=str(folder / "result.json"), seconds=given.seconds)
        pool.WORKER[:] = ["-c", code]
        means = conduct.Means(jobs=given.jobs, results=str(folder / "kept"))
        lines: list[dict[str, object]] = []
        for what in ("made", "found"):
            begun, processor = time.monotonic(), time.process_time()
            plan = sweep.plan(folder / "spec.toml", means=means)
            planned = time.monotonic()
            done = sweep.execute(plan)
            ended = time.monotonic()
            slept = given.seconds * given.runs / given.jobs if what == "made" else 0.0
            lines.append(
                {
                    "what": what,
                    "runs": done.tally.made + done.tally.reused,
                    "plan_ms_a_run": round(1000 * (planned - begun) / given.runs, 2),
                    "processor_ms_a_run": round(1000 * (time.process_time() - processor) / given.runs, 2),
                    "wall_ms_a_run_beside_sleep": round(1000 * (ended - begun - slept) / given.runs, 2),
                    "share_of_all_time_percent": round(100 * (ended - begun - slept) / (given.seconds * given.runs), 2),
                }
            )
        if given.scheduler:
            result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
            lines.append({"what": "scheduler", **scheduler_load(plan.wanted[0].order, result, given.scheduler)})
        print(json.dumps(lines, indent=1))


if __name__ == "__main__":
    main()
