# SPDX-License-Identifier: MIT OR Apache-2.0
"""The same input gives the same counters to the last bit: on every machine, today and tomorrow.

What is compared stands in ``golden.json``. A change of the model that is meant to change results is followed by
``NESTWALK_GOLDEN=write ./dev test``, and the changed file is part of its review.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import nestwalk

GOLDEN = Path(__file__).with_name("golden.json")
CONFIGURATIONS = ["native-thp", "vm-4k", "vm-host-2m+smt", "vm-thp"]
KEYS = (
    "accesses",
    "instructions",
    "walks",
    "walk_cycles",
    "walk_references",
    "cycles",
    "references",
    "populated_pages",
)


def counters() -> dict[str, Any]:
    """Integer counters of some quick runs of the bundled bfs."""
    done = nestwalk.comparison("bfs", quick=True, configurations=CONFIGURATIONS)
    return {
        result.name: {
            **{key: result.statistics[key] for key in KEYS},
            "fragmentation": result.host_pt_fragmentation and result.host_pt_fragmentation["distribution"],
        }
        for result in done.results
    }


def test_counters_are_what_they_were() -> None:
    found = counters()
    if os.environ.get("NESTWALK_GOLDEN") == "write":
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    assert found == json.loads(GOLDEN.read_text(encoding="utf-8"))
