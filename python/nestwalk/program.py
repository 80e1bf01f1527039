# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a comparison runs: a trace, or a generator by its preset, with a name for people."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestwalk import data

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nestwalk.toml_file import KeyPath


@dataclass(frozen=True)
class Program:
    """A program."""

    name: str
    """For scripts and files."""
    title: str
    """For people."""
    workload: Mapping[str, Any]
    """The ``workload`` of its scenarios."""
    quick: Mapping[str, Any]
    """The same where it is to be quick; a trace is cut short besides."""
    workload_path: KeyPath = ()
    """Where ``workload`` is in the matrix file, if it is from one."""
    quick_path: KeyPath = ()
    """Where ``quick`` is."""


def of_trace(trace: str) -> Program:
    """A trace, by the name of a bundled one or by its file.

    Raises:
        NestwalkError: When there is neither.
    """
    reference = data.reference(trace)
    workload = {"trace": reference}
    return Program(Path(reference).stem, reference, workload, workload)
