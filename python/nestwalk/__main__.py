# SPDX-License-Identifier: MIT OR Apache-2.0
"""The entry of ``nestwalk`` and ``python -m nestwalk``: whatever goes wrong ends in one line and an exit code."""

from __future__ import annotations

import os
import sys

from nestwalk.errors import EXIT_ERROR, EXIT_INTERRUPTED, NestwalkError


def main() -> None:
    """Runs the command on the program's arguments, and ends the program."""
    try:
        code = _run(sys.argv[1:])
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    if code == EXIT_INTERRUPTED:
        sys.stderr.write("nestwalk: interrupted; nothing was written\n")
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    # Imported here, so that Ctrl-C during the import is met by the line above and not by a traceback.
    import typer

    from nestwalk.cli import app

    try:
        code = app(arguments or ["--help"], prog_name="nestwalk", standalone_mode=False)
    except typer.exceptions.TyperException as error:
        return _say(error.format_message())
    except NestwalkError as error:
        return _say(str(error))
    except BrokenPipeError:
        # Whoever read our output has had enough; Python must not complain about it at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_ERROR
    return code if isinstance(code, int) else 0


def _say(message: str) -> int:
    sys.stderr.write(f"nestwalk: error: {' '.join(message.split())}\n")
    return EXIT_ERROR


if __name__ == "__main__":
    main()
