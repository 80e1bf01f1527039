# SPDX-License-Identifier: MIT OR Apache-2.0
"""The same input gives the same counters to the last bit: on every machine, today and tomorrow.

Every row of the standard matrix, three colocated runs and two of traces, each with all its integer counters, stand in
``golden/*.json``. A change of the model that is meant to change results is followed by
``NESTWALK_GOLDEN=write .venv/bin/python -m pytest python/tests/test_golden.py``, and the changed files are part of its
review. It also takes the next number of the model (``crates/machine/src/model.rs``), under which results are kept:
``golden/models.json`` has the checksum of these files for each number, and a number is never used for two of them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from nestwalk import _native, comparisons, data, matrix, pool, program, scenario

GOLDEN = Path(__file__).with_name("golden")
SHOWN = 20
"""Of more differences than this, the first ones are shown."""

STORE = {
    "kind": "key_value",
    "server": "memcached",
    "footprint": "96 MiB",
    "warm_accesses": 10_000,
    "measured_accesses": 200_000,
    "local_permille": 100,
    "set_permille": 100,
}
"""A small program, a sixtieth of whose accesses walk."""

COLOCATED: dict[str, dict[str, Any]] = {
    "one-kernel": {
        "kernels": [{}, {"manager": {"kind": "ptemagnet"}, "cpus": 4}],
        "colocated": [{"workload": {"churn": {"size": "8 MiB"}}, "count": 3, "until": "populated"}],
        "colocated_lead_ms": 20,
    },
    "own-vms": {
        "kernels": [{"manager": {"kind": "thp", "enabled": "madvise"}}, {"tables": {"kind": "hugegpt"}}],
        "colocated": [
            {
                "workload": {"generator": {**STORE, "footprint": "32 MiB", "measured_accesses": 150_000}},
                "count": 2,
                "vm": "own",
                "kernel": {"tables": {"kind": "hugegpt"}},
            }
        ],
    },
    "hardware-threads": {
        "kernels": [{}, {"manager": {"kind": "thp"}}],
        "colocated": [{"workload": {"generator": {"kind": "gups", "footprint": "16 MiB"}}, "cores": "smt"}],
    },
}
"""Beside it: programs that only fault, in its kernel; the same program in VMs of their own; a program on its core."""


GUPS = {"kind": "gups", "footprint": "48 MiB", "warm_accesses": 20_000, "measured_accesses": 60_000}
GALOIS = {"kind": "lonestar", "footprint": "48 MiB", "warm_accesses": 20_000, "measured_accesses": 60_000}
THP = {"kind": "thp", "enabled": "always", "defrag": "always"}
LAPSE = {"lapse_ms": 60_000}

RARE: dict[str, dict[str, Any]] = {
    "large": {
        "machine": "sapphire-rapids",
        "kernels": [{"manager": THP, "levels": 5}, {"manager": THP, "levels": 5}],
        "workload": {"generator": {**GUPS, "footprint": "24 GiB"}},
    },
    "fragmented": {
        "kernels": [
            {
                "manager": THP,
                "start": {
                    "kind": "fragmented",
                    "blocks_permille": 990,
                    "frames_per_block": 40,
                    "unmovable_permille": 700,
                },
                "memory": "256 MiB",
            },
            {
                "manager": THP,
                "start": {"kind": "aged", "used_permille": 700, "kept_permille": 40},
                "memory": "160 MiB",
            },
        ],
        "workload": {"generator": {**GUPS, "footprint": "128 MiB"}},
    },
    "hawkeye": {
        "kernels": [{}, {"manager": {"kind": "hawkeye"}}],
        "workload": {"generator": {**GUPS, "warm_accesses": 400_000}},
        "sampling": LAPSE,
    },
    "freebsd": {
        "kernels": [{"manager": {"kind": "freebsd"}}, {"manager": {"kind": "freebsd"}}],
        "workload": {"generator": GUPS},
    },
    "contiguous": {
        "contiguous_tlb": True,
        "kernels": [
            {"manager": {"kind": "freebsd", "promote_64k": True}},
            {
                "manager": {"kind": "mthp", "folio": "64 KiB"},
                "start": {"kind": "fragmented", "blocks_permille": 1000, "frames_per_block": 16},
            },
        ],
        "workload": {"generator": {**GUPS, "footprint": "128 MiB"}},
    },
    "waiting": {
        "machine": "sapphire-rapids",
        "kernels": [{}, {"manager": THP}],
        "workload": {
            "generator": {
                "kind": "shards",
                "footprint": "24 MiB",
                "threads": 2,
                "warm_accesses": 100_000,
                "measured_accesses": 400_000,
            }
        },
    },
    "pom-tlb": {
        "accelerator": {"kind": "pom-tlb", "size": "256 KiB"},
        "kernels": [{}, {}],
        "workload": {"generator": GUPS},
    },
    "elastic-cuckoo": {
        "accelerator": {"kind": "elastic-cuckoo", "pmd_walk_cache": 1},
        "kernels": [{}, {}],
        "workload": {"generator": {**GUPS, "footprint": "1200 MiB"}},
    },
    "galois": {
        "kernels": [{}, {}],
        "workload": {"generator": {**GALOIS, "algorithm": "breadth_first"}},
        "colocated": [{"workload": {"generator": GALOIS}}],
    },
    "shadow": {
        "kernels": [{"paging": {"kind": "shadow"}}, {"manager": THP}],
        "workload": {"generator": GUPS},
        "colocated": [{"workload": {"churn": {"size": "8 MiB"}}}],
    },
}
"""What the others never count: see ``test_counters``."""


def standard() -> list[pool.Job]:
    """All rows of the matrix that ``nestwalk compare`` makes."""
    store = program.Program("store", "store", {"generator": STORE}, {})
    plan = comparisons.Plan(matrix.load(matrix.STANDARD), store, comparisons.DEFAULT_MACHINE, 1, quick=False)
    return [plan.job(cell) for cell in plan.matrix.cells]


def colocated() -> list[pool.Job]:
    common = {"schema": 1, "machine": comparisons.DEFAULT_MACHINE, "workload": {"generator": STORE}}
    return [
        pool.Job(name, scenario.write({"name": name, **common, **parts}), Path(f"{name}.toml"))
        for name, parts in COLOCATED.items()
    ]


def rare() -> list[pool.Job]:
    common = {"schema": 1, "machine": comparisons.DEFAULT_MACHINE}
    return [
        pool.Job(name, scenario.write({"name": name, **common, **parts}), Path(f"{name}.toml"))
        for name, parts in RARE.items()
    ]


def traces() -> list[pool.Job]:
    """Two, as every change of the traces changes them."""
    chosen = {"bfs": "vm-4k", "redis": "vm-4k+smt"}
    plans = [comparisons.plan(trace, quick=True, configurations=[name]) for trace, name in chosen.items()]
    return [plan.job(plan.matrix.cells[0], prefix=f"{plan.program.name}-") for plan in plans]


def counters(job: pool.Job) -> dict[str, Any]:
    """All that a run counted."""
    result = json.loads(_native.run(job.scenario, str(job.path), str(data.TRACES)))
    found: dict[str, Any] = without_floats({**result["statistics"], "fragmentation": result["host_pt_fragmentation"]})
    return found


def without_floats(value: Any) -> Any:
    """What is counted and named; what is computed from it for people is left out."""
    if isinstance(value, dict):
        return {key: without_floats(item) for key, item in value.items() if not isinstance(item, float)}
    if isinstance(value, list):
        return [without_floats(item) for item in value]
    return value


def differences(kept: Any, found: Any, place: str = "") -> Iterator[str]:
    if isinstance(kept, dict) and isinstance(found, dict):
        for key in [*kept, *(key for key in found if key not in kept)]:
            yield from differences(kept.get(key), found.get(key), f"{place}/{key}")
    elif isinstance(kept, list) and isinstance(found, list) and len(kept) == len(found):
        for number, (one, two) in enumerate(zip(kept, found, strict=True)):
            yield from differences(one, two, f"{place}/{number}")
    elif kept != found:
        yield f"{place}: {kept} -> {found}"


def lines(found: dict[str, dict[str, Any]]) -> str:
    """JSON with a line for each group of counters, for whoever reads what a change changed."""
    runs = [
        f"{json.dumps(run)}: {{\n"
        + ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in groups.items())
        + "\n}"
        for run, groups in found.items()
    ]
    return "{\n" + ",\n".join(runs) + "\n}\n"


@pytest.mark.parametrize("group", [standard, colocated, traces, rare])
def test_counters_are_what_they_were(group: Any) -> None:
    jobs = group()
    with ThreadPoolExecutor(pool.processors()) as threads:
        found = dict(zip([job.name for job in jobs], threads.map(counters, jobs), strict=True))
    file = GOLDEN / f"{group.__name__}.json"
    if os.environ.get("NESTWALK_GOLDEN") == "write":
        file.write_text(lines(found), encoding="utf-8")
    kept = json.loads(file.read_text(encoding="utf-8"))
    changed = list(differences(kept, found))
    assert not changed, "\n".join([f"{len(changed)} counters differ:", *changed[:SHOWN]])


def test_the_model_has_another_number_when_its_counters_are_others() -> None:
    digest = hashlib.sha256()
    for group in (standard, colocated, traces):
        digest.update((GOLDEN / f"{group.__name__}.json").read_bytes())
    file, number = GOLDEN / "models.json", _native.model().partition("+")[0]
    known = json.loads(file.read_text(encoding="utf-8"))
    if os.environ.get("NESTWALK_GOLDEN") == "write" and number not in known:
        known[number] = digest.hexdigest()
        file.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    assert number == max(known, key=int), "the model has a number that the next test run stores: NESTWALK_GOLDEN=write"
    assert known[number] == digest.hexdigest(), (
        f"the stored counters are others than those of model {number}, and results kept under that number would be "
        f"taken for today's: make MODEL in crates/machine/src/model.rs {int(number) + 1}, build, and run this test "
        "with NESTWALK_GOLDEN=write"
    )


def test_every_row_of_the_standard_matrix_is_held() -> None:
    kept = json.loads((GOLDEN / "standard.json").read_text(encoding="utf-8"))
    assert list(kept) == [cell.name for cell in matrix.load(matrix.STANDARD).cells]
    for name, groups in kept.items():
        assert groups["walks"] > 0, name
        assert groups["mmu"]["accesses"] == groups["accesses"], name
    without_kernels = [json.dumps({**groups, "kernels": None}) for groups in kept.values()]
    assert len(set(without_kernels)) == len(kept), "each row's hardware counted something of its own"
