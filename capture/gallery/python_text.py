# SPDX-License-Identifier: MIT OR Apache-2.0
"""Writes so many bytes (its argument) of the source of Python's standard library, from its start again if need be."""

import itertools
import sys
import sysconfig
from pathlib import Path


def main() -> None:
    """Files in the order of their names, so that it is the same text each time."""
    left = int(sys.argv[1])
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("**/*.py"))
    for path in itertools.cycle(files):
        if left <= 0:
            break
        text = path.read_bytes()[:left]
        sys.stdout.buffer.write(text)
        left -= len(text)


if __name__ == "__main__":
    main()
