# SPDX-License-Identifier: MIT OR Apache-2.0
"""The keys of all sorts of files with their units and ranges: as a list, as a page, and as JSON Schema for editors.

All of it is made from one schema a sort of file. Those of machine, scenario and cost files the engine makes from the
types that it reads them into and from the table of ranges that it checks them by.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from nestwalk import _native
from nestwalk.errors import unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

KINDS = ("machine", "scenario", "costs", "matrix", "sweep")
"""The sorts of files."""

Schema = dict[str, Any]

_LARGE = 10**9
_DEFAULT_MAX = 40
_SEED_MAX = (1 << 63) - 1


@dataclass(frozen=True)
class Key:
    """A key of a file."""

    path: str
    """Where it is: ``mmu.l1d.ways``; ``[]`` behind what there are several of, ``*`` for any name."""
    type: str
    """What its value is, in words."""
    unit: str
    """Of a number; may be empty."""
    range: str
    """What a number or a size may be; may be empty."""
    upper: str
    """Why it may not be more: ``a limit: ...`` or ``an assumption: ...``; may be empty."""
    values: tuple[tuple[str, str], ...]
    """If it is one of a few: each of them, and what it means."""
    default: str | None
    """As a file would write it; None where there is none."""
    required: bool
    text: str
    when: str = ""
    """The value of another key of its table with which it exists: ``kind = "thp"``."""


@dataclass
class Section:
    """The keys of a table."""

    path: str
    text: str
    when: str = ""
    keys: list[Key] = field(default_factory=list)
    repeats: bool = False
    """Whether the file has it as ``[[path]]``."""


def schema(kind: str) -> Schema:
    """The JSON Schema of files of a sort (draft 2020-12).

    Raises:
        NestwalkError: When there is no such sort.
    """
    if kind not in KINDS:
        raise unknown("sort of file", kind, KINDS)
    if kind == "matrix":
        from nestwalk import matrix_schema

        return matrix_schema.schema()
    if kind == "sweep":
        from nestwalk.sweeps import spec_schema

        return spec_schema.schema()
    found: Schema = json.loads(_native.schema(kind))
    return found


def sections(kind: str) -> list[Section]:
    """The tables of a sort of file with their keys, outermost first."""
    return _Walk(schema(kind)).sections


def to_json(kind: str) -> dict[str, Any]:
    """All keys, for scripts."""
    found = [asdict(key) for section in sections(kind) for key in section.keys]
    return {"schema": 1, "kind": kind, "keys": found}


def units(kind: str) -> Callable[[str], str]:
    """The unit of each key of a sort of file, by a path whose lists are numbered: ``mmu.l1_tlb.0.ways``."""
    walk = _Walk(schema(kind))
    known = {key.path: key.unit for section in walk.sections for key in section.keys}

    def unit(path: str) -> str:
        path = re.sub(r"\.\d+(?=\.|$)", "[]", path)
        for alias, shown in walk.aliases:
            if path.startswith(f"{alias}."):
                path = shown + path[len(alias) :]
        return known.get(path, "")

    return unit


class _Walk:
    """Goes through a schema and collects its tables."""

    def __init__(self, root: Schema) -> None:
        self.root = root
        self.sections: list[Section] = []
        self.places: dict[str, str] = {}  # where a shared type was shown first
        self.aliases: list[tuple[str, str]] = []  # where it comes again
        self.table(root, "", root.get("description", ""), repeats=False)

    def resolve(self, node: Schema) -> Schema:
        """A schema without references, and without the null of what may be left out."""
        while True:
            if "$ref" in node:
                rest = {key: value for key, value in node.items() if key != "$ref"}
                node = {**self.root["$defs"][node["$ref"].rpartition("/")[2]], **rest}
                continue
            options = [option for option in node.get("anyOf", ()) if option.get("type") != "null"]
            if len(options) == 1 and len(node["anyOf"]) > 1:
                rest = {key: value for key, value in node.items() if key != "anyOf"}
                node = {**options[0], **rest}
                continue
            return node

    def target(self, node: Schema) -> str:
        """The name of the shared type that a schema refers to, if it does."""
        options = [node, *node.get("anyOf", ())]
        return next((option["$ref"].rpartition("/")[2] for option in options if "$ref" in option), "")

    def table(self, node: Schema, path: str, text: str, *, repeats: bool) -> None:
        """A table: its own keys, then those of the tables in it."""
        variants = [self.resolve(variant) for variant in node.get("oneOf", ()) or node.get("anyOf", ())]
        tables = [variant for variant in variants if variant.get("properties")]
        if not tables:
            self.keys(node, Section(path, text, repeats=repeats))
            return
        if any(variant.get("type") == "string" for variant in variants):
            text += " Instead of the table a text: its `name`."
        self.sections.append(Section(path, text, repeats=repeats))
        for variant in tables:
            tags = [(key, value["const"]) for key, value in variant["properties"].items() if "const" in value]
            if tags:
                ((tag, value),) = tags
                own = {key: value for key, value in variant["properties"].items() if key != tag}
                when = f"{tag} = {_toml(value)}"
            else:
                own, when = variant["properties"], ""
                if len(own) == 1 and variant.get("description"):  # named by its one key
                    own = {key: {"description": variant["description"], **value} for key, value in own.items()}
            about = variant.get("description", "") if tags else ""
            self.keys({**variant, "properties": own}, Section(path, about, when))

    def keys(self, node: Schema, section: Section) -> None:
        """The keys of a table and, after them, the tables in it."""
        self.sections.append(section)
        required = node.get("required", ())
        inner: list[tuple[Schema, str, str, bool]] = []
        for name, raw in self.properties(node):
            path = f"{section.path}.{name}" if section.path else name
            found = self.resolve(raw)
            items = self.resolve(found["items"]) if isinstance(found.get("items"), dict) else None
            repeats = items is not None and self.is_table(items)
            shown = items if repeats and items is not None else found
            if not repeats and not self.is_table(found):
                section.keys.append(_leaf(path, found, items, name in required, section.when))
                continue
            path += "[]" if repeats else ""
            kind = self.target(raw if not repeats else found["items"])
            before = self.places.setdefault(kind, path) if kind else path
            text = _one_line(found.get("description", ""))
            if before != path:
                self.aliases.append((path, before))
                text += f" The keys are those of `{_heading(before)}`."
            word = "tables" if repeats else "a table"
            default = None if found.get("default") in (None, [], {}) or name in required else _toml(found["default"])
            section.keys.append(Key(path, word, "", "", "", (), default, name in required, text, section.when))
            if before == path:
                inner.append((shown, path, _one_line(shown.get("description", "")), repeats))
        for shown, path, text, repeats in inner:
            self.table(shown, path, text, repeats=repeats)

    def properties(self, node: Schema) -> Iterator[tuple[str, Schema]]:
        """The properties of a table; ``*`` is that of any name, which says what it may be."""
        yield from node.get("properties", {}).items()
        others = node.get("additionalProperties")
        if isinstance(others, dict) and others:
            yield "*", others

    def is_table(self, node: Schema) -> bool:
        """Whether a schema is that of a table whose keys are known."""
        if node.get("properties") or isinstance(node.get("additionalProperties"), dict):
            return True
        return any(self.resolve(one).get("properties") for one in (*node.get("oneOf", ()), *node.get("anyOf", ())))


def _leaf(path: str, node: Schema, items: Schema | None, required: bool, when: str) -> Key:
    about = items if items is not None else node
    kinds = about.get("type", "string")
    kinds = [kinds] if isinstance(kinds, str) else [kind for kind in kinds if kind != "null"]
    values = [(_toml(value), "") for value in about.get("enum", ())]
    values += [(_toml(one["const"]), _one_line(one.get("description", ""))) for one in about.get("oneOf", ())]
    if "const" in about:
        values.append((_toml(about["const"]), ""))
    words = {
        ("string", "integer"): "size",
        ("integer",): "number",
        ("number",): "number",
        ("boolean",): "true or false",
        ("object",): "table",
    }
    word = about.get("x-type") or words.get(tuple(kinds), "text")
    if values:
        word = "one of the values below" if len(values) > 1 else f"`{values[0][0]}`"
    if items is not None:
        word = f"list: {word}"
    default = None if node.get("default") is None or required else _toml(node["default"])
    text = _one_line(node.get("description", ""))
    return Key(
        path,
        word,
        about.get("x-unit", ""),
        _range(about),
        about.get("x-upper", ""),
        tuple(values),
        default,
        required,
        text,
        when,
    )


def _range(node: Mapping[str, Any]) -> str:
    if "x-range" in node:
        least, most = node["x-range"]
        return f"{least} to {most}"
    least, most = node.get("minimum", node.get("exclusiveMinimum")), node.get("maximum")
    if least is None or most is None:
        return ""
    above = "above " if "minimum" not in node else ""
    return f"{above}{_number(least)} to {_number(most)}"


def _number(value: float) -> str:
    if value == _SEED_MAX:
        return "2^63 - 1"
    if isinstance(value, int) and value > _LARGE and value & (value - 1) == 0:
        return f"2^{value.bit_length() - 1}"
    return f"{value:,}".replace(",", " ") if isinstance(value, int) else f"{value:g}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        inner = ", ".join(f"{key} = {_toml(item)}" for key, item in value.items() if item is not None)
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _heading(path: str) -> str:
    """A table's path as a file writes it."""
    if path.endswith("[]"):
        return f"[[{path.replace('[]', '')}]]"
    return f"[{path.replace('[]', '')}]"


# The page.

_TITLES = {
    "machine": "Keys of machine files",
    "scenario": "Keys of scenario files",
    "costs": "Keys of cost files",
    "matrix": "Keys of matrix files",
    "sweep": "Keys of a sweep's specification",
}


def markdown(kind: str) -> str:
    """The page about a sort of file: a table of keys for each of its tables."""
    lines = [
        "<!-- SPDX-License-Identifier: MIT OR Apache-2.0 -->",
        f"<!-- Written by `nestwalk keys {kind} --markdown` from the code; a test holds it to that. -->",
        f"# {_TITLES[kind]}",
        "",
        f"The same as JSON Schema for editors: `nestwalk keys {kind} --schema` ([how to use it](README.md)).",
    ]
    headings: set[str] = set()
    for section in sections(kind):
        lines += ["", *_section(section, headings)]
    return "\n".join(lines) + "\n"


def _section(section: Section, headings: set[str]) -> list[str]:
    lines: list[str] = []
    name = f"`{_heading(section.path)}`" if section.path else "The file"
    if section.when:
        lines += [f"### {name} with `{section.when}`", ""]
    elif name not in headings:
        lines += [f"## {name}", ""]
    headings.add(name)
    if section.text:
        lines += [_cell(_one_line(section.text)), ""]
    if section.keys:
        lines += ["| key | value | unit | range | if left out | meaning |", "| --- | --- | --- | --- | --- | --- |"]
        lines += [_row(key, section.path) for key in section.keys]
    elif section.when:
        lines += ["No further keys."]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _row(key: Key, table: str) -> str:
    name = key.path[len(table) + 1 :] if table else key.path
    default = "required" if key.required else "" if key.default is None else f"`{key.default}`"
    if len(default) > _DEFAULT_MAX:
        default = "what its own keys have"
    text = key.text
    if len(key.values) > 1:
        meanings = [f"`{value}`: {about}" if about else f"`{value}`" for value, about in key.values]
        text += "<br>" + "<br>".join(meanings)
    limits = f"{key.range}<br>{key.upper}" if key.upper else key.range
    cells = (f"`{name.replace('[]', '')}`", key.type, key.unit, limits, default, text)
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
