# SPDX-License-Identifier: MIT OR Apache-2.0
"""Quicksilver's redis under each manager: an empty server that clients fill, and one that has been filled.

The simulator says how long the server takes for each request. The paper's clients always have as many requests under
way as they may, so a request waits for all of those, and throughput is what the server gets done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nestwalk.reproduce import queueing
from nestwalk.reproduce.plan import Results, Run, Scale, Value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nestwalk.result import Result

PRESET = "redis-cold"
REQUESTS = 7_600_000
KEYS = 5_000_000
FOOTPRINT_MIB = 21 << 10
"""Of the preset; all three are divided as other programs' footprints are."""
VALUE_BYTES = 4096
WARM_PRESET = "redis-warm"
WARM_MIB = 19_500
"""Of the other preset: memory of the keys that a cold run leaves."""
WARM_S = 300
"""How long its clients go on, as in the paper, divided as footprints are: daemons have this time."""
WARM_ACCESSES = {True: 20_000_000, False: 60_000_000}
"""That are measured in a quick and in a full run: 3000 to 3500 are a request."""
NEED_MIB = 16 << 10
"""8192 superpages, as the paper says."""
IN_FLIGHT = 8 * 10 * 16
"""Requests: the paper's threads, clients of each, and depth of their pipelines."""
PERCENTILES = ("p50", "p95", "p99")


def run(machine: str, scale: Scale, name: str, title: str, kernel: Mapping[str, Any]) -> Run:
    """The filling of a redis on a ``kernel``."""
    divisor = scale.divide_footprint
    preset = {
        "name": PRESET,
        "footprint": f"{FOOTPRINT_MIB // divisor} MiB",
        "fill_requests": REQUESTS // divisor,
        "fill_keys": KEYS // divisor,
    }
    return Run(name, title, _scenario(machine, scale, name, preset, kernel))


def warm_run(machine: str, scale: Scale, name: str, title: str, kernel: Mapping[str, Any]) -> Run:
    """The same server later on a ``kernel``: its memory is filled, and half of its requests are SETs."""
    divisor = scale.divide_footprint
    preset = {
        "name": WARM_PRESET,
        "footprint": f"{WARM_MIB // divisor} MiB",
        "measured_accesses": WARM_ACCESSES[scale.quick],
    }
    table = _scenario(machine, scale, name, preset, kernel)
    table["sampling"] = {"warm_accesses_max": WARM_ACCESSES[scale.quick], "lapse_ms": 1000 * WARM_S // divisor}
    return Run(name, title, table)


def _scenario(
    machine: str, scale: Scale, name: str, preset: Mapping[str, Any], kernel: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "schema": 1,
        "name": name,
        "machine": machine,
        "seed": scale.seed,
        "workload": {"preset": dict(preset)},
        "kernels": [dict(kernel)],
    }


def values(results: Results, runs: Mapping[str, str], mark: str = "") -> dict[str, Value]:
    """Throughput (GB/s) and percentiles of the latency (ms) of each run, by ``mark`` and the key that ``runs`` says."""
    found: dict[str, Value] = {}
    for key, name in runs.items():
        found[f"{mark}redis-{key}"] = results.value([name], throughput)
        for percentile in PERCENTILES:
            found[f"{mark}{percentile}-{key}"] = results.value(
                [name], lambda result, at=percentile: latency(result, at)
            )
    return found


def throughput(result: Result) -> float | None:
    """Values that clients have set or read, GB/s; None if no request was told apart."""
    requests = result.statistics.get("requests")
    if not requests:
        return None
    return float(requests["count"] * VALUE_BYTES / _seconds(result, requests["cycles"]) / 1e9)


def latency(result: Result, percentile: str) -> float | None:
    """That percentile of the latency that clients see, ms; None if there are not as many requests as under way."""
    requests = result.statistics.get("requests")
    if not requests:
        return None
    series: Sequence[int] = requests["series_cycles"][: requests["count"] // requests["series_requests"]]
    found = queueing.closed_loop(series, requests["series_requests"], IN_FLIGHT)
    return None if found is None else 1e3 * _seconds(result, getattr(found, percentile))


def longest(result: Result) -> float | None:
    """The longest time that the server takes for a request, ms, waiting in the queue not included; None as above."""
    requests = result.statistics.get("requests")
    return 1e3 * _seconds(result, requests["cycles_max"]) if requests else None


def _seconds(result: Result, cycles: float) -> float:
    frequency: float = result.configuration["machine"]["frequency_mhz"] * 1e6
    return cycles / frequency
