# SPDX-License-Identifier: MIT OR Apache-2.0
"""The keys of a sweep's specification, as JSON Schema. Which keys there are is what the reader reads."""

from __future__ import annotations

from typing import Any

from nestwalk import matrix_schema
from nestwalk.errors import SEED_MAX
from nestwalk.sweeps import axes, spec

_TEXT: dict[str, Any] = {"type": "string"}
_NUMBER: dict[str, Any] = {"type": ["number", "string"], "x-type": "number or size"}
_APART = {"type": "number", "x-unit": "that of the values", "x-range": ("above 0", "any")}
_FACTOR = {"type": "number", "x-unit": "times", "x-range": ("above 1", "any")}
_NAMES = {"type": "array", "items": _TEXT}
_CONDITION = {"type": "object", "x-type": "table of axes, each with a value, a list, or { from, to }"}
_ENDS = {
    "from": {**_NUMBER, "description": "The first value; a number, or a size such as `4 GiB`."},
    "to": {**_NUMBER, "description": "The last one, if a step meets it."},
}


def _table(properties: dict[str, Any], required: list[str], description: str) -> dict[str, Any]:
    about = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {**about, "description": description}


_AXIS = {
    "name": {**_TEXT, "description": "Its name in tables and conditions; the key without its first word if left out."},
    "key": {**_TEXT, "pattern": r"^(scenario|machine|costs)\..+$", "description": "The key that it sets, with dots."},
    "keys": {**_NAMES, "description": "Instead of `key`: several keys, which change together."},
    "values": {"type": "array", "minItems": 1, "description": "Its values; with `keys` lists of as many."},
    "range": _table(
        {**_ENDS, "step": {**_APART, "default": 1, "description": "From one value to the next."}},
        ["from", "to"],
        "Instead of `values`: numbers or sizes at equal distances.",
    ),
    "log": _table(
        {
            **_ENDS,
            "factor": {**_FACTOR, "description": "From one value to the next."},
            "points": {
                "type": "integer",
                "x-unit": "values",
                "minimum": 2,
                "maximum": axes.POINTS_MAX,
                "description": "Or: so many.",
            },
        },
        ["from", "to"],
        "Instead of `values`: each a factor above the one before.",
    ),
    "when": {**_CONDITION, "description": "It is there only where these hold of earlier axes."},
}


def schema() -> dict[str, Any]:
    """The JSON Schema of a specification (draft 2020-12)."""
    program = matrix_schema.schema()["properties"]["program"]["items"]
    part = {"type": "object", "default": {}}
    file: dict[str, Any] = {
        "schema": {"const": spec.SCHEMA, "type": "integer", "description": "The version of this file's shape."},
        "title": {**_TEXT, "description": "What the sweep is called; the file's name if it is left out."},
        "base": {**_TEXT, "description": "A scenario that all runs begin with: a file, or a bundled one's name."},
        "programs": {**_NAMES, "description": "Traces: bundled ones by name, or files."},
        "program": {
            "type": "array",
            "items": program,
            "description": "A program that is no trace, as in a matrix.",
        },
        "machines": {**_NAMES, "description": "Machines by name or file; the base's if left out."},
        "techniques": _table(
            {
                "matrix": {**_TEXT, "default": "standard", "description": "A matrix by name or file."},
                "only": {**_NAMES, "description": "Rows of it; all if left out."},
            },
            [],
            "The rows of a matrix, each a technique; what the base says if left out.",
        ),
        "seeds": {
            "type": ["array", "object"],
            "items": {"type": "integer", "minimum": 0, "maximum": SEED_MAX},
            "x-type": "list of numbers, or { from, to }",
            "description": "Everything random follows from it; each makes a run.",
        },
        "set": _table(
            {
                name: {**part, "x-type": f"a part of a {name} file", "description": "In all runs."}
                for name in axes.FILES
            },
            [],
            "What is set in all runs.",
        ),
        "axis": {
            "type": "array",
            "items": _table({key: _AXIS[key] for key in axes.KEYS}, [], ""),
            "description": "A key and its values; every axis runs against every other.",
        },
        "skip": {
            "type": "array",
            "items": _CONDITION,
            "description": "Runs of which all of this holds are left out.",
        },
    }
    description = "A sweep: what `nestwalk sweep` makes."
    top = _table({key: file[key] for key in spec.KEYS}, ["schema"], description)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Sweep", **top}
