# SPDX-License-Identifier: MIT OR Apache-2.0
"""The pinned packages: all lists are installed into one environment, one after another."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "requirements"
PIN = re.compile(r"^([a-z0-9-]+)==(\S+)", re.MULTILINE)


@pytest.mark.parametrize("name", ["run", "docs"])
def test_no_list_takes_back_what_the_developers_one_has_installed(name: str) -> None:
    pins, developers = (set(PIN.findall((FOLDER / f"{one}.txt").read_text(encoding="utf-8"))) for one in (name, "dev"))
    assert pins
    packages = {package for package, _ in developers}
    assert {pin for pin in pins if pin[0] in packages} <= developers
