# SPDX-License-Identifier: MIT OR Apache-2.0
"""Writes a C file of so many functions, for a compiler to chew on: ``make_source.py FUNCTIONS``."""

import sys

FUNCTION = """
static struct node *step{n}(struct node *list, long seed)
{{
    long sum = seed * {odd};
    for (struct node *at = list; at; at = at->next) {{
        switch ((at->key + {n}) % {cases}) {{
        case 0: at->key = sum ^ {odd}; break;
        case 1: sum += at->key << {shift}; break;
        default: at->key -= sum % (at->key | 1); break;
        }}
        if (at->key > sum)
            at->next = {previous};
    }}
    return list;
}}
"""


def main() -> None:
    """Each function calls the one before it, so that none goes away."""
    count = int(sys.argv[1])
    print("struct node { long key; struct node *next; };")
    for n in range(count):
        previous = f"step{n - 1}(at->next, sum)" if n else "at->next"
        print(FUNCTION.format(n=n, odd=2 * n + 1, cases=3 + n % 5, shift=n % 30, previous=previous))
    print(f"struct node *all(struct node *list) {{ return step{count - 1}(list, 1); }}")


if __name__ == "__main__":
    main()
