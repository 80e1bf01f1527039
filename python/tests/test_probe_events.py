# SPDX-License-Identifier: MIT OR Apache-2.0
"""Which counters of page walks a processor has, and how the kernel wants them: on trees of files like its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nestwalk import _native
from nestwalk.probe import events

INTEL = {"event": "config:0-7", "umask": "config:8-15", "cmask": "config:24-31"}
AMD = {"event": "config:0-7,32-35", "umask": "config:8-15"}


def tree(root: Path, formats: dict[str, str], named: dict[str, str] | None = None) -> Path:
    """A machine with a PMU of these formats, whose kernel names these events."""
    folder = root / events.PMU
    for name, files in (("format", formats), ("events", named or {})):
        (folder / name).mkdir(parents=True)
        for file, text in files.items():
            (folder / name / file).write_text(text + "\n", encoding="utf-8")
    (folder / "type").write_text("4\n", encoding="utf-8")
    return root


def processor(vendor: str, family: int, model: int, stepping: int = 1) -> dict[str, Any]:
    return {"vendor": vendor, "family": family, "model": model, "stepping": stepping}


def configs(found: list[dict[str, Any]]) -> dict[str, int]:
    return {event["name"]: event["config"] for event in found}


@pytest.mark.parametrize(
    ("one", "name"),
    [
        (processor("GenuineIntel", 6, 0x55, 4), "Skylake-X"),
        (processor("GenuineIntel", 6, 0x55, 7), None),  # Cascade Lake
        (processor("GenuineIntel", 6, 0x6A), "Ice Lake server"),
        (processor("GenuineIntel", 6, 0x8F), "Sapphire Rapids"),
        (processor("AuthenticAMD", 0x17, 0x31), "Zen 2"),
        (processor("AuthenticAMD", 0x17, 0x01), None),  # Zen
        (processor("AuthenticAMD", 0x19, 0x01), "Zen 3"),
        (processor("AuthenticAMD", 0x19, 0x21), "Zen 3"),
        (processor("AuthenticAMD", 0x19, 0x11), "Zen 4"),
        (processor("AuthenticAMD", 0x1A, 0x02), None),  # Zen 5
        (processor("HygonGenuine", 0x18, 0x01), None),
    ],
)
def test_a_model_has_the_events_of_its_table(one: dict[str, Any], name: str | None) -> None:
    assert events.table_of(one).get("name") == name


def test_terms_become_what_the_formats_say(tmp_path: Path) -> None:
    found = configs(events.of(processor("GenuineIntel", 6, 0x55, 4), tree(tmp_path, INTEL)))
    assert found["dtlb_load_misses.walk_active"] == 0x01_00_10_08
    assert found["ept.walk_pending"] == 0x10_4F
    formats = tree(tmp_path / "amd", AMD) / events.PMU / "format"
    assert events.encoded("event=0x1c0,umask=0x02", formats) == 1 << 32 | 0x02C0
    for bad in ("event=0x1ffff", "edge=1", "event=x", "../type=1", ""):
        assert events.encoded(bad, formats) is None


def test_the_kernel_s_own_encoding_goes_first(tmp_path: Path) -> None:
    root = tree(tmp_path, AMD, {"ls_l1_d_tlb_miss.all": "event=0x99,umask=0x7"})
    found = configs(events.of(processor("AuthenticAMD", 0x19, 0x11), root))
    assert found["ls_l1_d_tlb_miss.all"] == 0x0799
    assert found["ls_l1_d_tlb_miss.all_l2_miss"] == 0xF045


def test_without_a_pmu_there_are_none(tmp_path: Path) -> None:
    assert events.of(processor("AuthenticAMD", 0x19, 0x11), tmp_path) == []


def test_each_is_opened_and_counts_or_says_why_not() -> None:
    unknown = [{"name": "of_no_pmu", "kind": 2**32 - 1, "config": 1}]
    *_, last = json.loads(_native.Counters(json.dumps(unknown)).read())
    assert last["name"] == "of_no_pmu"
    assert last["count"] is None
    assert last["unavailable"].startswith("unavailable, because ")
