# SPDX-License-Identifier: MIT OR Apache-2.0
"""What is made from the schema of a run's statistics: Python's types, and the page that lists every counter."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING, Any

from nestwalk import _native

if TYPE_CHECKING:
    from collections.abc import Iterator

Schema = dict[str, Any]

WIDTH = 110
PLAIN = {"integer": "int", "number": "float", "string": "str", "boolean": "bool", "null": "None"}

MODULE = '''\
# SPDX-License-Identifier: MIT OR Apache-2.0
# ruff: noqa: D205
"""What a run counts: the type of ``Result.statistics``. Written by ``./dev generated`` from the engine's declarations.

A type checker refuses a counter that does not exist: ``statistics["mmu"]["walk_cycle"]``.
"""

from typing import NotRequired, TypedDict


'''

PAGE = """\
<!-- SPDX-License-Identifier: MIT OR Apache-2.0 -->
<!-- Written by `./dev generated` from the code; a test holds it to that. -->
# What a run counts

The tables of `statistics` in a result (`results.json`, `Result.statistics`). A dot leads into a table. Every
counter is a whole number; its unit says of what. Python's types of all of it are in `nestwalk.counters`.
"""


class Types:
    """The tables of a schema, each after those that it refers to."""

    def __init__(self, root: Schema) -> None:
        """Those of ``root``, the schema of a run's statistics."""
        self.root = root
        self.tables: dict[str, Schema] = {}
        self.table("Statistics", root)

    def table(self, name: str, node: Schema) -> None:
        """A table, after the tables inside."""
        for key, value in node["properties"].items():
            self.type(value, name + _camel(key))
        self.tables.setdefault(name, node)

    def type(self, node: Schema, name: str) -> str:
        """The Python type of a value; ``name`` is for a table that has no name of its own."""
        if "$ref" in node:
            target = str(node["$ref"].rpartition("/")[2])
            if target not in self.tables:
                self.table(target, self.root["$defs"][target])
            return target
        if "anyOf" in node:
            return " | ".join(self.type(option, name) for option in node["anyOf"])
        kinds = node["type"]
        if kinds == "array":
            return f"list[{self.type(node['items'], name)}]"
        if kinds == "object" and "properties" not in node:
            return f"dict[str, {self.type(node['additionalProperties'], name)}]"
        if kinds == "object":
            self.table(name, node)
            return name
        return " | ".join(PLAIN[kind] for kind in ([kinds] if isinstance(kinds, str) else kinds))


def _camel(key: str) -> str:
    return "".join(part.capitalize() for part in key.split("_"))


def _text(node: Schema) -> str:
    text = " ".join(node.get("description", "").split())
    return text.replace("[`", "`").replace("`]", "`").replace("\\", "\\\\")


def _docstring(text: str, indent: str) -> list[str]:
    """A docstring; a long one has its first sentences, as far as they fit, on the first line."""
    if len(text) <= WIDTH:
        return [f'{indent}"""{text}"""']
    first, *rest = textwrap.wrap(text, WIDTH)
    return [f'{indent}"""{first}', *(f"{indent}{line}" for line in rest), f'{indent}"""']


def module() -> str:
    """``nestwalk/counters.py``."""
    types = Types(json.loads(_native.statistics_schema()))
    return MODULE + "\n\n\n".join("\n".join(_class(types, name, node)) for name, node in types.tables.items()) + "\n"


def _class(types: Types, name: str, node: Schema) -> Iterator[str]:
    fields = [(key, value, _type(types, name, node, key)) for key, value in node["properties"].items()]
    if not all(key.isidentifier() for key, _, _ in fields):
        yield f"{name} = TypedDict("
        yield f'    "{name}",'
        yield "    {"
        yield from (f'        "{key}": {kind},' for key, _, kind in fields)
        yield "    },"
        yield ")"
        return
    yield f"class {name}(TypedDict):"
    yield from _docstring(_text(node) or "Counters by name.", "    ")
    for key, value, kind in fields:
        yield ""
        yield f"    {key}: {kind}"
        unit = f" ({value['x-unit']})" if "x-unit" in value else ""
        text = _text(value)
        if text:
            yield from _docstring(text + unit, "    ")


def _type(types: Types, name: str, node: Schema, key: str) -> str:
    kind = types.type(node["properties"][key], name + _camel(key))
    return kind if key in node.get("required", ()) else f"NotRequired[{kind}]"


def page() -> str:
    """``docs/reference/counters.md``."""
    types = Types(json.loads(_native.statistics_schema()))
    lines = [PAGE]
    inner = {name for name in types.tables if name != "Statistics" and name not in types.root["$defs"]}
    for name in ["Statistics", *(name for name in types.tables if name not in inner and name != "Statistics")]:
        node = types.tables[name]
        lines += [f"## `{name}`", "", _text(node) or "Counters by name.", ""]
        lines += ["| name | unit or type | meaning |", "| --- | --- | --- |", *_rows(types, name, node, ""), ""]
    return "\n".join(lines).rstrip() + "\n"


def _rows(types: Types, name: str, node: Schema, path: str) -> Iterator[str]:
    for key, value in node["properties"].items():
        kind = types.type(value, name + _camel(key))
        if value.get("type") == "object" and "properties" in value:
            yield from _rows(types, kind, value, f"{path}{key}.")
        else:
            about = value.get("x-unit") or f"`{kind}`".replace("|", "\\|")
            yield f"| `{path}{key}` | {about} | {_text(value)} |"
