# SPDX-License-Identifier: MIT OR Apache-2.0
"""Axes of a sweep: a key (or several that change together) and its values, as a specification writes them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from nestwalk.errors import NestwalkError, unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nestwalk.toml_file import KeyPath, Table

FILES = ("scenario", "machine", "costs")
"""What the first name of a key may be."""
POINTS_MAX = 100_000
"""Of an axis, and of a whole sweep; an assumption: more would not fit on a page, and their results not on a laptop."""
STEP_SLACK = 1e-9
"""Of a step: the last value of a range may be off by so much."""
SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]iB|B)", re.ASCII)

KEYS = ("name", "key", "keys", "values", "range", "log", "when")


@dataclass(frozen=True)
class Value:
    """A point of an axis."""

    shown: Any
    """In tables, in Parquet and for conditions: a number or a text."""
    settings: tuple[tuple[KeyPath, Any, KeyPath], ...]
    """Keys that it sets: where, to what, and where in the specification that is written."""


@dataclass(frozen=True)
class Axis:
    """An axis."""

    name: str
    values: tuple[Value, ...]
    when: tuple[Clause, ...] = ()
    """It is there only where all of these hold; elsewhere its keys stay what they are."""


@dataclass(frozen=True)
class Clause:
    """That the value of an axis is one of some, or in a range."""

    axis: str
    values: tuple[Any, ...] = ()
    least: float | None = None
    most: float | None = None

    def holds(self, point: Mapping[str, Any]) -> bool:
        """Of a point; an axis that it does not have holds nothing."""
        value = point.get(self.axis)
        if self.least is None and self.most is None:
            return value in self.values
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)


def read(entry: Table) -> Axis:
    """An entry ``[[axis]]``.

    Raises:
        NestwalkError: When it is not what it should be.
    """
    entry.only(KEYS)
    if ("key" in entry.value) == ("keys" in entry.value):
        raise entry.refused(
            "", 'give either key = "machine.mmu.llc.ways" or keys = ["...", "..."], which change together'
        )
    zipped = "keys" in entry.value
    paths = _keys(entry) if zipped else [_path(entry, entry.text("key"), "key")]
    name = entry.text("name", ", ".join(".".join(map(str, path[1:])) for path in paths))
    if not name or not name.isprintable():
        raise entry.refused("name", "the name of an axis is empty, or cannot be printed; it heads a column")
    given = [key for key in ("values", "range", "log") if key in entry.value]
    if len(given) != 1:
        what = f"has {' and '.join(given)}" if given else "has no values"
        raise entry.refused("", f"axis '{name}' {what}: give one of values, range, log")
    if given == ["values"]:
        values = _listed(entry, paths, zipped=zipped)
    else:
        numbers = _range(entry.inner("range")) if given == ["range"] else _log(entry.inner("log"))
        if zipped:
            raise entry.refused(given[0], f"{given[0]} gives one number a point; keys need values = [[..., ...], ...]")
        place = (*entry.path, given[0])
        values = [Value(number, ((paths[0], number, place),)) for number in numbers]
    shown = [value.shown for value in values]
    if len(set(map(repr, shown))) < len(shown):
        raise entry.refused(given[0], f"axis '{name}' has a value twice; each makes a run of its own")
    return Axis(name, tuple(values), clauses(entry, "when"))


def _keys(entry: Table) -> list[KeyPath]:
    found = entry.value["keys"]
    if not isinstance(found, list) or not found or not all(isinstance(key, str) for key in found):
        raise entry.wrong("keys", found, "a list of keys in quotes")
    return [_path(entry, key, "keys", number) for number, key in enumerate(found)]


def _path(entry: Table, key: str, *where: str | int) -> KeyPath:
    """A dotted key as a path: ``machine.mmu.l2_tlb.0.ways``."""
    names = key.split(".")
    if names[0] not in FILES or len(names) == 1 or not all(names):
        what = f'{key!r}: begin with one of {", ".join(FILES)}, then a dot and the key, such as "machine.mmu.llc.ways"'
        raise entry.refused(str(where[0]), what, *where[1:])
    return tuple(int(name) if name.isdecimal() else name for name in names)


def _listed(entry: Table, paths: list[KeyPath], *, zipped: bool) -> list[Value]:
    found = entry.value["values"]
    if not isinstance(found, list) or not found:
        raise entry.wrong("values", found, "a list with at least one value")
    if len(found) > POINTS_MAX:
        raise entry.refused("values", f"there are {len(found):,} values; give at most {POINTS_MAX:,}")
    values = []
    for number, value in enumerate(found):
        place = (*entry.path, "values", number)
        if not zipped:
            values.append(Value(_shown(value), ((paths[0], value, place),)))
            continue
        if not isinstance(value, list) or len(value) != len(paths):
            raise entry.refused("values", f"each value must be a list of {len(paths)}, one for each key", number)
        settings = tuple((path, one, (*place, at)) for at, (path, one) in enumerate(zip(paths, value, strict=True)))
        values.append(Value(", ".join(str(_shown(one)) for one in value), settings))
    return values


def _shown(value: Any) -> Any:
    """A value as tables have it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        inner = ", ".join(f"{key} {_shown(one)}" for key, one in value.items())
        return inner or "none"
    if isinstance(value, list):
        return ", ".join(str(_shown(one)) for one in value)
    return value


def _range(table: Table) -> list[Any]:
    """``{ from = 1, to = 9, step = 2 }``; both ends are in it, if the steps meet the last."""
    table.only(("from", "to", "step"))
    first, last, unit = _ends(table)
    step = _number(table, "step", 1)
    if step <= 0:
        raise table.wrong("step", table.value.get("step"), "a number above 0")
    count = math.floor((last - first) / step + STEP_SLACK) + 1
    if count > POINTS_MAX:
        raise table.refused("step", f"that makes {count:,} values; give at most {POINTS_MAX:,}")
    exact, by = Decimal(str(first)), Decimal(str(step))
    return [_with_unit(exact + number * by, unit) for number in range(count)]


def _log(table: Table) -> list[Any]:
    """``{ from = 64, to = 4096, factor = 2 }``, or ``points = 7`` in place of the factor."""
    table.only(("from", "to", "factor", "points"))
    first, last, unit = _ends(table)
    if first <= 0:
        raise table.wrong("from", table.value["from"], "a number above 0: the range is logarithmic")
    if ("factor" in table.value) == ("points" in table.value):
        raise table.refused("", "give either factor = 2 or points = 7")
    if "points" in table.value:
        points = table.whole("points", 2, POINTS_MAX)
        found = [first * (last / first) ** (number / (points - 1)) for number in range(points)]
        whole = isinstance(first, int) and isinstance(last, int)
        return list(dict.fromkeys(_with_unit(Decimal(round(one) if whole else repr(one)), unit) for one in found))
    factor = _number(table, "factor", None)
    if factor <= 1:
        raise table.wrong("factor", table.value["factor"], "a number above 1")
    count = math.floor(math.log(last / first, factor) + STEP_SLACK) + 1
    if count > POINTS_MAX:
        raise table.refused("factor", f"that makes {count:,} values; give at most {POINTS_MAX:,}")
    exact, by = Decimal(str(first)), Decimal(str(factor))
    return [_with_unit(exact * by**number, unit) for number in range(count)]


def _ends(table: Table) -> tuple[float, float, str]:
    """Both ends of a range, and the unit of sizes, which both must have."""
    ends: list[float] = []
    units: list[str] = []
    for key in ("from", "to"):
        value = table.value.get(key)
        size = SIZE.fullmatch(value) if isinstance(value, str) else None
        if size is not None:
            number: float = float(size[1])
            ends.append(int(number) if number.is_integer() else number)
            units.append(size[2])
        else:
            ends.append(_number(table, key, None))
            units.append("")
    if units[0] != units[1]:
        raise table.refused("to", "from and to have different units; write both with the same one")
    if ends[1] < ends[0]:
        raise table.refused("to", f"{ends[1]:g} is below from = {ends[0]:g}")
    return ends[0], ends[1], units[0]


def _number(table: Table, key: str, default: float | None) -> float:
    value = table.value.get(key, default)
    if value is None:
        raise table.refused("", f"{key} is missing; give a number")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise table.wrong(key, value, 'a number, or of from and to a size such as "4 GiB"')
    return value


def _with_unit(value: Decimal, unit: str) -> Any:
    whole = value == value.to_integral_value()
    if unit:
        return f"{int(value) if whole else float(value)} {unit}"
    return int(value) if whole else float(value)


def clauses(entry: Table, key: str) -> tuple[Clause, ...]:
    """A condition: a table of axes, each with a value, a list of values, or ``{ from, to }``; all must hold."""
    return _clauses(entry.inner(key)) if key in entry.value else ()


def _clauses(table: Table) -> tuple[Clause, ...]:
    found = []
    for axis, wanted in table.value.items():
        if isinstance(wanted, dict):
            inner = table.inner(axis)
            inner.only(("from", "to"))
            if not wanted:
                raise table.refused(axis, "give from, to, or both")
            least, most = (_number(inner, end, None) if end in wanted else None for end in ("from", "to"))
            found.append(Clause(axis, (), least, most))
        else:
            values = wanted if isinstance(wanted, list) else [wanted]
            found.append(Clause(axis, tuple(_shown(value) for value in values)))
    return tuple(found)


def condition(entry: Table) -> tuple[Clause, ...]:
    """An entry ``[[skip]]``: the same, as a table by itself."""
    if not entry.value:
        raise entry.refused("", "the condition is empty, so it would leave out every run; name an axis")
    return _clauses(entry)


def check_names(entry: Table, found: tuple[Clause, ...], known: Mapping[str, Any]) -> None:
    """Refuses a condition on an axis that there is not, or on a value that it never has.

    Raises:
        NestwalkError: At the first one.
    """
    for clause in found:
        if clause.axis not in known:
            raise entry.refused(clause.axis, unknown("axis", clause.axis, known))
        for value in clause.values:
            if value not in known[clause.axis]:
                text = ", ".join(str(one) for one in list(known[clause.axis])[:10])
                what = f"axis '{clause.axis}' never is {value!r}; it is one of {text}"
                raise entry.refused(clause.axis, NestwalkError(what))
