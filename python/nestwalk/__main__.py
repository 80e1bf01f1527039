# SPDX-License-Identifier: MIT OR Apache-2.0
"""The entry of ``nestwalk`` and ``python -m nestwalk``: whatever goes wrong ends in one line and an exit code."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress

from nestwalk import say, streams
from nestwalk.errors import EXIT_ERROR, EXIT_INTERRUPTED, NestwalkError, printable, shown


def main() -> None:
    """Runs the command on the program's arguments, and ends the program."""
    code = EXIT_ERROR
    try:
        streams.prepare()
        code = _run(sys.argv[1:])
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    if code == EXIT_INTERRUPTED:
        from nestwalk import files

        written = ", ".join(shown(path) for path in files.written)
        stores = "".join(
            f"; {made} of its runs {'is' if made == 1 else 'are'} kept in {shown(place)}, and the same command goes on"
            for place, made in files.kept.items()
        )
        say.line(f"nestwalk: interrupted; {f'written before: {written}' if written else 'nothing was written'}{stores}")
    with suppress(KeyboardInterrupt):
        code = streams.finish(code)
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    try:
        # Imported here, so that Ctrl-C and failures during the import are met below and not by a traceback.
        from nestwalk import completion

        if completion.is_asked():
            sys.stdout.write(completion.answer() + "\n")
            return 0
        from nestwalk.cli import app

        code = app(arguments or ["--help"], prog_name="nestwalk", standalone_mode=False)
    except BrokenPipeError:
        # Whoever read our output has had enough.
        streams.give_up()
        return EXIT_ERROR
    except SystemExit as ended:
        if not ended.code:  # a shell asked for completions, and has them
            return 0
        streams.give_up()  # typer's answer to the same as above
        return EXIT_ERROR
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 (the one place where whatever goes wrong becomes one line)
        return _say(error)
    return code if isinstance(code, int) else 0


def _say(error: BaseException) -> int:
    """The one line, and the traceback where ``-v`` asks for it."""
    if say.level() is say.Level.VERBOSE:
        import traceback

        say.line("".join(traceback.format_exception(error)).rstrip())
    say.line(f"nestwalk: error: {printable(' '.join(_message(error).split()))}")
    return EXIT_ERROR


_NO_RESOURCES = ("start new thread", "Resource temporarily unavailable", "Cannot allocate memory")
"""What Python, and a panic of the library of data frames (no ``Exception``), say where a thread cannot be made."""


def _message(error: BaseException) -> str:
    match error:
        case NestwalkError():
            return str(error)
        case _ if hasattr(error, "format_message"):  # typer's, of a command line that is wrong
            from nestwalk import usage

            return usage.explained(error)
        case UnicodeError():
            return f"text that is no UTF-8 where only UTF-8 will do: {error}"
        case _ if isinstance(error, MemoryError) or any(sign in str(error) for sign in _NO_RESOURCES):
            return "memory or threads ran out; allow more (ulimit -v, ulimit -u), or run fewer at once (--jobs 1)"
        case OSError() | ImportError() if _errno(error) is not None or isinstance(error, OSError):
            return _of_system(error)
        case _:
            return f"this is a bug in Nestwalk, please report it: {type(error).__name__}: {error} (-v shows where)"


def _errno(error: BaseException | None) -> int | None:
    """The system's number for ``error``, or for what lies behind it."""
    while error is not None:
        if isinstance(error, OSError):
            return error.errno
        error = error.__cause__ or error.__context__
    return None


def _of_system(error: Exception) -> str:
    """What the system refused."""
    from nestwalk import files

    number = _errno(error)
    if number in (errno.EMFILE, errno.ENFILE):
        return f"{os.strerror(number)}: allow more open files (ulimit -n 256)"
    if not files.working_directory_exists():
        return files.GONE
    if not isinstance(error, OSError):
        return str(error)
    name = error.filename if isinstance(error.filename, str) else None
    # What names no file is a stream, and errors of standard error are not told.
    place = "standard output: " if name is None else f"{shown(name)}: "
    return place + files.reason(error)


if __name__ == "__main__":
    main()
