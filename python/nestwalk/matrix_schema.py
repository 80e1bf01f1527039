# SPDX-License-Identifier: MIT OR Apache-2.0
"""The keys of a matrix file, as JSON Schema. Which keys there are is what :mod:`nestwalk.matrix` reads."""

from __future__ import annotations

from typing import Any

from nestwalk import matrix, techniques
from nestwalk.what_if import LIMITS

_TEXT: dict[str, Any] = {"type": "string"}
_PART: dict[str, Any] = {"type": "object", "x-type": "a part of a scenario file"}

_FILE = {
    "schema": {"const": matrix.SCHEMA, "type": "integer", "description": "The version of this file's shape."},
    "title": {**_TEXT, "description": "What the comparison is called."},
    "baseline": {
        **_TEXT,
        "description": "The configuration against which pictures show the others; the first one if it is left out.",
    },
    "variant": {"description": "What every configuration is run with; one empty variant if there is none."},
    "configuration": {"description": "What is compared, in this order; `relative_time` is relative to the first one."},
    "host": {"description": "A host's kernel: each `[[guest]]` on each of them is a configuration `GUEST-on-HOST`."},
    "guest": {"description": "A guest's kernel, for the same."},
    "limit": {"description": "A row that is computed from the counters of a run and not simulated."},
    "left_out": {"description": "A mix that is not compared, for the page."},
    "program": {"description": "A program of `nestwalk matrix`."},
}

_NAME = {
    **_TEXT,
    "pattern": "^[^./-][^/]*$|^$",
    "maxLength": matrix.NAME_BYTES_MAX,
    "description": f"For scripts and files; no slash, no leading dot or dash, at most {matrix.NAME_BYTES_MAX} bytes.",
}
_ENTRY = {
    "name": _NAME,
    "title": {**_TEXT, "description": "For tables; the name if it is left out."},
    "description": {**_TEXT, "default": "", "description": "One line about it."},
    "scenario": {
        **_PART,
        "default": {},
        "description": "Any part of a scenario file. Workload, machine and seed come from the command line.",
    },
}

_CONFIGURATION = {
    **_ENTRY,
    "changes": {
        "type": "array",
        "items": {"enum": list(techniques.WHO)},
        "description": "Who must change something for it; `[]` where nobody must.",
    },
    "techniques": {
        "type": "array",
        "items": _TEXT,
        "description": "The techniques that it uses, by their names in `techniques.toml`.",
    },
    "role": {
        "enum": list(getattr(matrix, "ROLES", ())),
        "default": "advice",
        "description": "What the row is to the user: something to do, something that cannot be had, or another set-up.",
    },
}
_VARIANT = {
    **_ENTRY,
    "every_kernel": {**_PART, "default": {}, "description": "What each of the configuration's kernels gets besides."},
    "host_kernel": {**_PART, "default": {}, "description": "What the lowest of them (the host's) gets besides."},
    "guest_kernel": {**_PART, "default": {}, "description": "What the uppermost of them (the guest's) gets besides."},
    "not_quick": {
        **_TEXT,
        "default": "",
        "description": "Why `--quick` leaves it to a full run (`--only` names a row all the same); empty where not.",
    },
}
_SIDE = {
    "name": _NAME,
    "title": {**_TEXT, "description": "For tables; the name if it is left out."},
    "description": {**_TEXT, "default": "", "description": "One line about it."},
    "kernel": {**_PART, "description": "One of the `kernels` of a scenario file."},
    "changes": _CONFIGURATION["changes"],
    "techniques": _CONFIGURATION["techniques"],
}
_LIMIT = {
    "name": _NAME,
    "title": {**_TEXT, "description": "For tables."},
    "description": {**_TEXT, "description": "One line about it."},
    "of": {**_TEXT, "description": "The configuration from whose counters it follows."},
    "kind": {
        "enum": list(LIMITS),
        "description": "The least that walks can cost: each reference an L1-D hit, or no walk.",
    },
}
_LEFT_OUT = {
    "what": {**_TEXT, "description": "The mix."},
    "why": {**_TEXT, "description": "Why it is not compared."},
}
_PROGRAM = {
    "name": _NAME,
    "title": {**_TEXT, "description": "For tables."},
    "workload": {**_PART, "description": "The `workload` of its scenarios."},
    "quick": {**_PART, "description": "The same for `--quick`; as `workload` if it is left out."},
}

_REQUIRED = {
    "variant": ["name"],
    "configuration": ["name"],
    "host": ["name", "kernel"],
    "guest": ["name", "kernel"],
    "limit": list(_LIMIT),
    "left_out": list(_LEFT_OUT),
    "program": ["name", "title", "workload"],
}


def schema() -> dict[str, Any]:
    """The JSON Schema of a matrix file (draft 2020-12)."""
    entries = {
        "variant": _known(_VARIANT, matrix._VARIANT_KEYS),
        "configuration": _known(_CONFIGURATION, matrix._CONFIGURATION_KEYS),
        "host": _known(_SIDE, matrix._SIDE_KEYS),
        "guest": _known(_SIDE, matrix._SIDE_KEYS),
        "limit": _LIMIT,
        "left_out": _LEFT_OUT,
        "program": _PROGRAM,
    }
    properties: dict[str, Any] = {}
    for name, about in _known(_FILE, matrix._MATRIX_KEYS).items():
        properties[name] = about
        if name in entries:
            items = {**_table(entries[name], _REQUIRED[name])}
            properties[name] = {"type": "array", "items": items, **about}
    for name in ("configuration", "host", "guest"):
        properties[name]["minItems"] = 1
    top = _table(properties, ["schema"])
    top["dependentRequired"] = {"host": ["guest"], "guest": ["host"]}
    top["anyOf"] = [{"required": ["configuration"]}, {"required": ["host", "guest"]}]
    description = "A matrix: what `nestwalk compare` and `nestwalk matrix` compare."
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Matrix",
        "description": description,
        **top,
    }


def _known(texts: dict[str, dict[str, Any]], keys: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """The keys that the reader knows, in its order."""
    return {key: texts[key] for key in keys}


def _table(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
