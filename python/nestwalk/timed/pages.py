# SPDX-License-Identifier: MIT OR Apache-2.0
"""Which pages a program gets that is started here: 4 KiB only, or huge ones wherever the kernel has them."""

from __future__ import annotations

import ctypes
import os
import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nestwalk.errors import NestwalkError

if TYPE_CHECKING:
    from collections.abc import Iterator

Pages = Literal["4k", "huge"]
BOTH: tuple[Pages, Pages] = ("4k", "huge")

Means = Literal["always", "madvise"]
"""How a program gets huge pages: the kernel gives them to everyone, or its memory allocator has to ask."""

PR_SET_THP_DISABLE = 41
"""``include/uapi/linux/prctl.h``; programs that are started inherit it."""
SETTING = "sys/kernel/mm/transparent_hugepage/enabled"
TUNABLES = "GLIBC_TUNABLES"
ASKING = "glibc.malloc.hugetlb=1"
"""glibc 2.35 and later: ``malloc`` advises the kernel of huge pages for what it gets."""


def means(root: Path = Path("/")) -> Means:
    """How programs get huge pages on this machine.

    Raises:
        NestwalkError: When no program gets any, with what to do.
    """
    path = root / SETTING
    try:
        text = path.read_text(encoding="ascii")
    except OSError as error:
        raise NestwalkError(f"{path}: {error.strerror}; this needs Linux with transparent huge pages") from error
    chosen = re.search(r"\[(\w+)\]", text)
    if chosen is not None and chosen[1] in ("always", "madvise"):
        return "always" if chosen[1] == "always" else "madvise"
    raise NestwalkError(f"{path}: {text.strip()}: no program gets huge pages; as root: echo madvise > {path}")


def environment(pages: Pages, how: Means) -> dict[str, str]:
    """The environment of a program that is to have such pages."""
    found = dict(os.environ)
    if pages == "huge" and how == "madvise":
        found[TUNABLES] = ":".join(filter(None, (found.get(TUNABLES), ASKING)))
    return found


@contextmanager
def started_with(pages: Pages) -> Iterator[None]:
    """Programs that are started meanwhile have such pages.

    Raises:
        NestwalkError: When the kernel cannot do without huge pages for one program (Linux before 3.15).
    """
    _disable(pages == "4k")
    try:
        yield
    finally:
        _disable(False)


def _disable(yes: bool) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_THP_DISABLE, int(yes), 0, 0, 0):
        raise NestwalkError(f"prctl(PR_SET_THP_DISABLE): {os.strerror(ctypes.get_errno())}; this needs Linux 3.15")
