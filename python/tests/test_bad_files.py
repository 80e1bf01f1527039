# SPDX-License-Identifier: MIT OR Apache-2.0
"""Files that users write: what is wrong is said with file, line, column and key, and with what would be right."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import Command

from nestwalk import matrix
from nestwalk.cloud import fleets
from nestwalk.errors import NestwalkError

HEAD = 'schema = 1\n\n[[configuration]]\nname = "a"\n'
"""Of a matrix; what is added begins with line 5."""

MATRICES = [
    ("", "m.toml: schema is missing; give schema = 1"),
    ("schema = 2\n", "m.toml:1:10: schema is 2; this version reads schema = 1"),
    ("schema = true\n", "m.toml:1:10: schema is true; this version reads schema = 1"),
    ("schema = 1\n", "m.toml: there is no [[configuration]]; give at least one, so there is what to run"),
    (
        'schema = 1\ncolour = "red"\n',
        (
            "m.toml:2:1: unknown key 'colour'; there are schema, title, baseline, variant, configuration, host, guest, "
            "limit, left_out, program"
        ),
    ),
    ("schema = 1\nconfiguration = 3\n", "m.toml:2:17: configuration = 3: give tables, each headed [[configuration]]"),
    ("schema = 1\n[[configuration]]\n", 'm.toml:2:1: configuration 1: name is missing; give name = "..."'),
    ("schema = 1\n[[configuration]]\nname = 4\n", "m.toml:3:8: configuration 1: name = 4: give a text in quotes"),
    (
        'schema = 1\n[[configuration]]\nname = ""\n',
        "m.toml:3:8: configuration 1: the name is empty; results are known by it, so give one",
    ),
    (
        'schema = 1\n[[configuration]]\nname = "../x"\n',
        (
            "m.toml:3:8: configuration '../x': the name '../x' cannot name a file; leave out slashes, control "
            "characters, and a leading dot or dash"
        ),
    ),
    (
        'schema = 1\n[[configuration]]\nname = "a\\nb"\n',
        (
            "m.toml:3:8: configuration 'a\\nb': the name 'a\\nb' cannot name a file; leave out slashes, control "
            "characters, and a leading dot or dash"
        ),
    ),
    (
        f'schema = 1\n[[configuration]]\nname = "{61 * "x"}"\n',
        f"m.toml:3:8: configuration '{61 * 'x'}': the name has 61 bytes; give at most 60",
    ),
    (
        HEAD + "scenaro = {}\n",
        (
            "m.toml:5:1: configuration 'a': unknown key 'scenaro', did you mean 'scenario'?; there are name, title, "
            "description, scenario, changes, techniques, role"
        ),
    ),
    (HEAD + "title = [1]\n", "m.toml:5:9: configuration 'a': title = an array: give a text in quotes"),
    (
        HEAD + "scenario = 3\n",
        "m.toml:5:12: configuration 'a': scenario = 3: give a table, such as scenario = { corunner = \"random\" }",
    ),
    (
        HEAD + 'changes = "host setting"\n',
        (
            "m.toml:5:11: configuration 'a': changes = 'host setting': give a list of guest setting, host setting, "
            "guest kernel, host kernel, hardware"
        ),
    ),
    (
        HEAD + 'changes = [\n  "host setting",\n  "gest kernel",\n]\n',
        (
            "m.toml:7:3: configuration 'a': unknown change 'gest kernel', did you mean 'guest kernel'?; there are "
            "guest setting, host setting, guest kernel, host kernel, hardware"
        ),
    ),
    (
        HEAD + "techniques = [1.5]\n",
        "m.toml:5:15: configuration 'a': techniques has 1.5: give a list of texts in quotes",
    ),
    (
        HEAD + 'role = "remedy"\n',
        "m.toml:5:8: configuration 'a': unknown role 'remedy'; there are advice, limit, setup",
    ),
    (
        HEAD + '[[configuration]]\nname = "a"\n',
        "m.toml:6:8: the name 'a' is taken by line 4; give each entry a name of its own",
    ),
    (
        HEAD + '[[variant]]\nname = "v"\nevery_kernel = []\n',
        "m.toml:7:16: variant 'v': every_kernel = an array: give a table, such as every_kernel = { levels = 5 }",
    ),
    (
        HEAD + '[[limit]]\nname = "l"\ntitle = ""\ndescription = ""\nof = "b"\nkind = "l1d"\n',
        "m.toml:9:6: limit 'l': unknown configuration 'b'; there are a",
    ),
    (
        HEAD + '[[limit]]\nname = "l"\ntitle = ""\ndescription = ""\nof = "a"\nkind = "l1"\n',
        "m.toml:10:8: limit 'l': unknown kind 'l1', did you mean 'l1d'?; there are l1d, no-walk",
    ),
    (HEAD + '[[left_out]]\nwhat = "x"\n', 'm.toml:5:1: left_out 1: why is missing; give why = "..."'),
    (
        HEAD + '[[program]]\nname = "x"\ntitle = "x"\n',
        "m.toml:5:1: program 'x': workload is missing; give a table, such as workload = { trace = \"redis\" }",
    ),
    (
        HEAD + 2 * '[[program]]\nname = "x"\ntitle = "x"\nworkload = { trace = "redis" }\n',
        "m.toml:10:8: the name 'x' is taken by line 6; give each entry a name of its own",
    ),
    (
        'baseline = "b"\n' + HEAD,
        "m.toml:1:12: unknown baseline 'b'; there are a",
    ),
    ("schema = \n", "m.toml:1:10: string values must be quoted, expected literal string"),
    (HEAD + 'name = "b"\n', "m.toml:5:1: duplicate key"),
    (
        f"title = {3000 * '['}{3000 * ']'}\n",
        "m.toml:1:89: tables and arrays are nested too deeply: take some levels out",
    ),
]


@pytest.mark.parametrize(("text", "said"), MATRICES)
def test_matrices(text: str, said: str) -> None:
    with pytest.raises(NestwalkError) as caught:
        matrix.parse(text, "m.toml")
    assert str(caught.value) == said


PARTS = 'schema = 1\n\n[[configuration]]\nname = "a"\nscenario = {{ {} }}\n'
"""Of a matrix: a part of a scenario in line 5."""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (PARTS.format("kernels = [{ cpus = 0 }]"), "m.toml:5:34: a: kernels.cpus = 0: give 1 to 4096 processors"),
        (PARTS.format("kernels = [{}, { cups = 1 }]"), "m.toml:5:38: a: unknown field `cups`"),
        (PARTS.format("kernels = [{ manager = { kind = 'tph' } }]"), "m.toml:5:46: a: unknown variant `tph`"),
        (PARTS.format("kernels = []"), "m.toml:5:24: a: kernels: there are 0"),
        (PARTS.format("kernels = [{}], asap = { }"), "m.toml:5:37: a: asap"),
        (PARTS.format("kernels = 7"), "m.toml:5:24: a: invalid type: integer `7`, expected an array"),
        (PARTS.format("kernels = [{ memory = true }]"), "m.toml:5:36: a: kernels.memory = true: give"),
        (PARTS.format("workload = { trce = 'x' }, kernels = [{}]"), "m.toml:5:"),
        (
            PARTS.format("kernels = [{}]") + '[[variant]]\nname = "v"\nscenario = { corunner = "nobody" }\n',
            "m.toml:8:25: a+v: unknown variant `nobody`",
        ),
        (
            PARTS.format("kernels = [{}]") + '[[variant]]\nname = "v"\nevery_kernel = { levels = 3 }\n',
            "m.toml:8:27: a+v: kernels.levels = 3: give 4 to 5 levels",
        ),
    ],
)
def test_parts_of_scenarios_in_matrices(command: Command, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "m.toml").write_text(text, encoding="utf-8")
    done = command("compare", "--matrix", "m.toml", "--trace", "bfs", "--quick")
    assert done.returncode == 2
    assert done.stderr.startswith(f"nestwalk: error: {said}"), done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_programs_of_matrices(command: Command, tmp_path: Path) -> None:
    text = (
        HEAD + "scenario = { kernels = [{}] }\n[[program]]\nname = 'p'\ntitle = 'p'\n"
        "workload = { generator = { kind = 'gups', footprint = '1 GiB', warm_accesses = 0, measured_accesses = 0 } }\n"
    )
    (tmp_path / "m.toml").write_text(text, encoding="utf-8")
    done = command("matrix", "--matrix", "m.toml")
    where = text.splitlines()[8].index("measured_accesses = 0") + len("measured_accesses = ") + 1
    assert f"m.toml:9:{where}: a: workload.generator.measured_accesses = 0: give 1 to" in done.stderr


FLEET = '[[group]]\nname = "g"\nhosts = 2\ncores = 8\nmemory = "8 GiB"\n'

FLEETS = [
    ("", ": schema is missing; give schema = 1"),
    ("schema = 1\n", ": there is no [[group]]; give at least one"),
    ("schema = 1\n[group]\n", ":2:1: group = a table: give tables, each headed [[group]]"),
    ("schema = 1\n" + FLEET.replace("cores", "core"), ":5:1: group 'g': unknown key 'core', did you mean 'cores'?"),
    ("schema = 1\n" + FLEET.replace("8 G", "8 g"), ":6:10: group 'g': memory: '8 giB' is no size; write a number"),
    (
        "schema = 1\n" + FLEET.replace("8 GiB", "99999 TiB"),
        ":6:10: group 'g': memory = '99999 TiB': give less than 16 TiB",
    ),
    (
        "schema = 1\n[defaults]\nreserved = 4\n" + FLEET,
        ":3:12: group 'g': reserved = 4: give a size with its unit, such as '128 GiB'",
    ),
    ("schema = 1\n" + 2 * FLEET, ":8:8: group 2: the name 'g' is taken; give each group a name of its own"),
    (
        "schema = 1\n" + FLEET + "[scheduler]\ncpu_allocation_ratio = nan\n",
        ":8:24: [scheduler]: cpu_allocation_ratio = nan: give a number above 0, at most 1e+06",
    ),
]


@pytest.mark.parametrize(("text", "said"), FLEETS)
def test_fleets(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "f.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(NestwalkError) as caught:
        fleets.load(str(path))
    assert str(caught.value).startswith(f"{path}{said}"), str(caught.value)
