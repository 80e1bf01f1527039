# SPDX-License-Identifier: MIT OR Apache-2.0
"""`nestwalk machine` and `nestwalk keys`."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from support import REPOSITORY, Command

from nestwalk import NestwalkError, keys, machines, matrix

DUMPS = sorted((REPOSITORY / "crates" / "live" / "tests" / "cpuid").glob("*.txt"))
BUNDLED = sorted((REPOSITORY / "machines").glob("*.toml"))


def parsed(made: machines.Detected) -> dict[str, Any]:
    """What the file says; checked as a run would."""
    return tomllib.loads(machines.checked(made))


@pytest.mark.parametrize("dump", DUMPS, ids=lambda path: path.stem)
def test_every_recorded_processor_makes_a_machine_that_loads(dump: Path) -> None:
    made = machines.detect(dump)
    file = parsed(made)
    assert file["schema"] == 1
    for value in made.values:
        assert value.source or value.key == "timing.source", f"{value.key} has no source"
    # No register says how long anything takes: no latency may pass for read.
    for value in made.values:
        if "latency" in value.key or "_pwc" in value.key or value.key.startswith("timing.base"):
            assert value.assumed, value.key


def test_the_values_of_a_processor_are_read_and_the_rest_is_marked() -> None:
    made = machines.detect(DUMPS[[path.stem for path in DUMPS].index("icelake-gold-6336y")])
    mine, bundled = parsed(made), tomllib.loads((REPOSITORY / "machines" / "icelake-6346.toml").read_text())
    # The bundled file was written by hand from the same leaves; frequency and with it memory are another model's.
    for cache in ("l1d", "l2", "llc"):
        assert mine["mmu"][cache]["ways"] == bundled["mmu"][cache]["ways"]
        assert mine["mmu"][cache]["latency_cycles"] == bundled["mmu"][cache]["latency_cycles"]
    assert mine["mmu"]["l1_tlb"] == bundled["mmu"]["l1_tlb"]
    assert mine["mmu"]["l2_tlb"] == bundled["mmu"]["l2_tlb"]
    assert mine["mmu"]["guest_pwc"] == bundled["mmu"]["guest_pwc"]
    assert mine["frequency_mhz"] == 2400
    by_key = {value.key: value for value in made.values}
    assert not by_key["mmu.l2.ways"].assumed
    assert by_key["mmu.memory_latency_cycles"].assumed
    nanoseconds = 1000 * bundled["mmu"]["memory_latency_cycles"] / bundled["frequency_mhz"]
    assert abs(1000 * mine["mmu"]["memory_latency_cycles"] / 2400 - nanoseconds) < 0.5


def test_a_guest_is_told_that_its_cpuid_may_be_masked() -> None:
    guest = machines.detect(next(path for path in DUMPS if "guest" in path.stem))
    metal = machines.detect(next(path for path in DUMPS if path.stem == "genoa-9124"))
    assert any("KVMKVMKVM" in note and "mask" in note for note in guest.notes)
    assert not any("virtual machine" in note for note in metal.notes)
    # The leaf for 1 GiB pages is masked: what it would say is assumed, and said to be.
    giant = [value for value in guest.values if value.value == ["1GiB"]]
    assert [value.assumed for value in giant] == [True]
    assert [value.assumed for value in metal.values if value.value == ["1GiB"]] == [False]


def test_cpuid_that_is_known_to_be_wrong_is_named() -> None:
    made = machines.detect(next(path for path in DUMPS if path.stem.startswith("sapphire")))
    assert any("64 entries" in note and "96" in note for note in made.notes)


def test_another_microarchitecture_is_not_passed_for_the_same() -> None:
    made = machines.detect(next(path for path in DUMPS if path.stem == "milan-7763"))
    assert not made.nearest["same"]
    assert "not the same" in machines.checked(made)


def test_detect_here_writes_a_file_on_which_a_run_can_be_made(command: Command, tmp_path: Path, scenario: Path) -> None:
    done = command("machine", "detect", "-o", "mine.toml", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["schema"] == 1
    assert found["file"] == "mine.toml"
    assert (tmp_path / "mine.toml").read_text() == found["toml"]
    assert command("machine", "check", "mine.toml").returncode == 0
    scenario.write_text(scenario.read_text().replace('"broadwell-asap"', '"mine.toml"'))
    assert command("run", str(scenario), "--quick", "--json").returncode == 0


def test_what_is_wrong_is_one_line_and_nothing_is_written(command: Command, tmp_path: Path) -> None:
    (tmp_path / "no.txt").write_text("CPUID 00000000: 1-2\n")
    (tmp_path / "empty.txt").write_text("hello\n")
    before = sorted(tmp_path.iterdir())
    for arguments, expected in [
        (("machine", "detect", "-o", "mine"), "add .toml"),
        (("machine", "detect", "--cpuid", "no.txt", "-o", "mine.toml"), "no.txt: line 1"),
        (("machine", "detect", "--cpuid", "empty.txt"), "has no CPUID line"),
        (("machine", "detect", "--cpuid", "absent.txt"), "absent.txt"),
        (("machine", "show", "zen5"), "did you mean 'zen4'?"),
        (("machine", "check", "absent.toml"), "absent.toml"),
        (("keys", "machines"), "did you mean 'machine'?"),
        (("keys", "machine", "--schema", "--json"), "give one"),
    ]:
        done = command(*arguments)
        assert done.returncode == 2, arguments
        assert expected in done.stderr, done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert not done.stdout
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("path", BUNDLED, ids=lambda path: path.stem)
def test_show_has_a_unit_for_every_number(path: Path) -> None:
    found = machines.lines(path.stem)
    for line in found:
        if line["value"].isdecimal() and line["key"] != "schema":
            assert line["unit"], line["key"]
    assert {line["key"] for line in found} >= {"frequency_mhz", "mmu.l1d.size", "mmu.l1_tlb.0.ways"}


def test_show_prints_no_key_cut(command: Command) -> None:
    done = command("machine", "show", "zen4")
    for line in machines.lines("zen4"):
        assert line["key"] in done.stdout


@pytest.mark.parametrize("kind", keys.KINDS)
def test_every_key_says_what_it_means(kind: str) -> None:
    found = [key for section in keys.sections(kind) for key in section.keys]
    assert found
    for key in found:
        assert key.text, key.path
        if key.type == "number" and not key.path.endswith("schema"):
            assert key.unit or key.path.endswith("seed"), key.path  # a seed counts nothing
            assert key.range, key.path


def test_the_schema_of_a_matrix_has_the_keys_that_are_read() -> None:
    properties = keys.schema("matrix")["properties"]
    assert tuple(properties) == matrix._MATRIX_KEYS
    assert tuple(properties["configuration"]["items"]["properties"]) == matrix._CONFIGURATION_KEYS
    assert tuple(properties["variant"]["items"]["properties"]) == matrix._VARIANT_KEYS


def check(node: Any, value: Any, root: Any, at: str = "") -> list[str]:
    """What a schema has against a value: as much of JSON Schema as these schemas use."""
    node = {**root["$defs"][node["$ref"].rpartition("/")[2]], **node} if "$ref" in node else node
    choices = [choice for choice in ("oneOf", "anyOf") if choice in node]
    wrong = [f"{at}: fits none" for name in choices if all(check(one, value, root, at) for one in node[name])]
    kinds = node.get("type", [])
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and names[type(value)] not in kinds and not ("number" in kinds and isinstance(value, int)):
        return [*wrong, f"{at}: is no {kinds}"]
    if "const" in node and value != node["const"]:
        wrong.append(f"{at}: is not {node['const']!r}")
    if "enum" in node and value not in node["enum"]:
        wrong.append(f"{at}: is not in {node['enum']}")
    if isinstance(value, int) and not node.get("minimum", value) <= value <= node.get("maximum", value):
        wrong.append(f"{at}: {value} is out of range")
    if isinstance(value, dict):
        known = node.get("properties", {})
        wrong += [f"{at}: needs {key}" for key in node.get("required", ()) if key not in value]
        for key, inner in value.items():
            if key in known:
                wrong += check(known[key], inner, root, f"{at}.{key}")
            elif isinstance(node.get("additionalProperties"), dict):
                wrong += check(node["additionalProperties"], inner, root, f"{at}.{key}")
            elif node.get("additionalProperties") is False:
                wrong.append(f"{at}: no key {key}")
    if isinstance(value, list) and "items" in node:
        wrong += [text for inner in value for text in check(node["items"], inner, root, f"{at}[]")]
    return wrong


@pytest.mark.parametrize(
    ("kind", "pattern"),
    [
        ("machine", "machines/*.toml"),
        ("costs", "costs/*.toml"),
        ("scenario", "scenarios/*.toml"),
        ("matrix", "python/nestwalk/matrices/*.toml"),
    ],
)
def test_files_that_come_with_nestwalk_fit_their_schema_and_wrong_ones_do_not(kind: str, pattern: str) -> None:
    schema = keys.schema(kind)
    files = sorted(REPOSITORY.glob(pattern))
    assert files
    for path in files:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        assert check(schema, table, schema) == [], path
        assert check(schema, {**table, "schema": 2}, schema)
        assert check(schema, {**table, "colour": "red"}, schema)


def test_a_number_out_of_the_range_of_the_schema_is_refused_by_the_reader_too(tmp_path: Path) -> None:
    text = (REPOSITORY / "machines" / "zen4.toml").read_text(encoding="utf-8")
    schema = keys.schema("machine")
    for right, wrong in (
        ("latency_cycles = 4 ", "latency_cycles = 0 "),
        ("walk_critical_permille = 700", "walk_critical_permille = 1001"),
    ):
        changed = text.replace(right, wrong, 1)
        assert changed != text
        assert any("out of range" in what for what in check(schema, tomllib.loads(changed), schema))
        path = tmp_path / "odd.toml"
        path.write_text(changed)
        with pytest.raises(NestwalkError, match=r"odd.toml:\d+:\d+"):
            machines.check(str(path))
