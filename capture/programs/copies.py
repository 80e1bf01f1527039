# SPDX-License-Identifier: MIT OR Apache-2.0
"""Writes several copies of a preprocessed C file as one, for a compiler to chew on: ``copies.py FILE.i OWN COPIES``.

What comes from a file whose name contains OWN is copied, and each copy's own identifiers get a suffix; what comes
from others, such as the C library's headers, stands once. Renamed are all identifiers that those others and C lack.
"""

import re
import sys
from pathlib import Path

KEYWORDS = (
    "auto break case char const continue default do double else enum extern float for goto if inline int long register "
    "restrict return short signed sizeof static struct switch typedef union unsigned void volatile while main asm "
    "noinline always_inline fallthrough"
)
# Strings, characters and numbers are found so that nothing in them is renamed.
WORD = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|[A-Za-z_]\w*|[0-9][\w.]*')


def main() -> None:
    """Prints the file."""
    path, own, copies = sys.argv[1], sys.argv[2], int(sys.argv[3])
    parts: dict[bool, list[str]] = {False: [], True: []}
    is_own = False
    for line in Path(path).read_text().splitlines(keepends=True):
        marker = re.match(r'# \d+ "([^"]*)"', line)
        if marker:
            is_own = own in marker[1]
        elif not line.startswith("#"):
            parts[is_own].append(line)
    others, text = "".join(parts[False]), "".join(parts[True])
    kept = set(KEYWORDS.split()) | set(WORD.findall(others))
    sys.stdout.write(others)
    for copy in range(copies):

        def renamed(match: re.Match[str], suffix: str = f"_{copy}") -> str:
            word = match[0]
            is_kept = not re.match(r"[A-Za-z_]", word) or word in kept or word.startswith("__")
            return word if is_kept else word + suffix

        sys.stdout.write(WORD.sub(renamed, text) if copy else text)


if __name__ == "__main__":
    main()
