# SPDX-License-Identifier: MIT OR Apache-2.0
"""Counters and their types: what a run counts is what the types say, and a name that does not exist is found."""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mypy import api

from nestwalk import _native, counters, data

GOLDEN = Path(__file__).with_name("golden")

SCENARIO = """
schema = 1
name = "counted"
machine = "broadwell-asap"
[[kernels]]
[[kernels]]
[workload.generator]
kind = "gups"
footprint = "16 MiB"
warm_accesses = 1000
measured_accesses = 5000
[[colocated]]
workload.churn = { size = "4 MiB" }
"""


def disagreements(value: Any, kind: Any, place: str) -> Iterator[str]:
    """Where a value is not of a type."""
    if typing.is_typeddict(kind):
        hints = typing.get_type_hints(kind)
        assert isinstance(value, dict), place
        yield from (f"{place}.{key}: not in the type" for key in value if key not in hints)
        yield from (f"{place}.{key}: not in the result" for key in kind.__required_keys__ if key not in value)
        for key, item in value.items():
            if key in hints:
                yield from disagreements(item, hints[key], f"{place}.{key}")
        return
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        for number, item in enumerate(value):
            yield from disagreements(item, inner[0], f"{place}.{number}")
    elif origin is dict:
        for key, item in value.items():
            yield from disagreements(item, inner[1], f"{place}.{key}")
    elif origin is None:
        numbers = (int, float) if kind is float else kind
        if not isinstance(value, numbers):
            yield f"{place}: {value!r} is no {kind}"
    elif not any(not list(disagreements(value, option, place)) for option in inner):
        yield f"{place}: {value!r} is no {kind}"


def test_a_run_has_the_counters_that_the_types_have() -> None:
    statistics = json.loads(_native.run(SCENARIO, "t.toml", str(data.TRACES)))["statistics"]
    assert statistics["mmu"]["tlb"]["misses"]["4KiB"] > 0
    assert not list(disagreements(statistics, counters.Statistics, "statistics"))
    statistics["mmu"]["walks"] = statistics["mmu"].pop("walk_cycles")
    statistics["kernels"][0]["counters"]["splits"] = None
    found = sorted(disagreements(statistics, counters.Statistics, "statistics"))
    assert found == [
        "statistics.kernels.0.counters.splits: None is no <class 'int'>",
        "statistics.mmu.walk_cycles: not in the result",
        "statistics.mmu.walks: not in the type",
    ]


@pytest.mark.parametrize(
    ("name", "errors"),
    [
        ('["mmu"]["walk_cycles"]', 0),
        ('["mmu"]["walk_cycle"]', 1),
        ('["mmu"]["guest_pwc"]["hits"]["pl1_hits"]', 1),
        ('["kernels"][0]["counters"]["faults_4k"]', 0),
        ('["kernels"][0]["counters"]["faults_4kb"]', 1),
        ('["walk"]', 1),
    ],
)
def test_a_type_checker_refuses_a_counter_that_does_not_exist(name: str, errors: int) -> None:
    program = f"import nestwalk\n\ndef count(result: nestwalk.Result) -> int:\n    return result.statistics{name}\n"
    output, _, status = api.run(["--strict", "--no-error-summary", "-c", program])
    assert (status, output.count("error:")) == (errors, errors), output
    assert not errors or "has no key" in output, output
