# SPDX-License-Identifier: MIT OR Apache-2.0
"""Charts become SVG in a process of their own: ``python -m nestwalk.renderer``.

The renderer (vl-convert) is a JavaScript engine, which ends its process where memory is limited (``ulimit -v``) or a
standard stream is closed. Here that costs a picture and not the results. The process lives as long as this one; a chart
goes in as a line of JSON, and a line of JSON comes back: ``{"svg": "..."}`` or ``{"error": "one line"}``.
"""

from __future__ import annotations

import atexit
import html
import json
import signal
import subprocess
import sys
import threading
from typing import Any

from nestwalk import say

WORKER = ["-m", "nestwalk.renderer"]
"""What Python is told to run."""

SECONDS_MAX = 120.0
"""A chart takes one second at most on an idle machine; one that takes so long never ends."""

FAILURES_MAX = 2
"""After so many dead processes no other is started: what ended them will end the next one, too."""


class _Renderer:
    """The process, started when the first chart comes."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._failures = 0
        self._why = ""
        self._lock = threading.Lock()

    def svg(self, specification: dict[str, Any]) -> str:
        """The chart drawn, or a line of text in its place that says why it is not."""
        with self._lock:
            why = self._why
            while self._failures < FAILURES_MAX:
                try:
                    answer = self._ask(specification)
                except (OSError, ValueError) as error:
                    self._failures += 1
                    why = self._why = self._end(str(error))
                    continue
                if "svg" in answer:
                    return str(answer["svg"])
                why = str(answer["error"])
                break
        say.warn(f"a picture is unavailable, because {why}; all else is complete")
        return in_its_place(why)

    def _ask(self, specification: dict[str, Any]) -> dict[str, Any]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, *WORKER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
                start_new_session=True,  # Ctrl-C is for the command, which then ends it
            )
            atexit.register(self._end, "")
        if self._process.stdin is None or self._process.stdout is None:
            raise ValueError("it has no pipes")
        limit = threading.Timer(SECONDS_MAX, self._process.kill)
        limit.start()
        try:
            self._process.stdin.write(json.dumps(specification) + "\n")
            self._process.stdin.flush()
            answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        finally:
            limit.cancel()
        return answer

    def _end(self, why: str) -> str:
        """Ends the process, if there is one, and says how it ended."""
        process, self._process = self._process, None
        if process is None:
            return f"no process can be started to draw it ({why})"
        try:
            code = process.wait(0.0 if not why else 5.0)  # it has ended already, and how is the interesting part
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:  # what was still to be written to a process that is gone
                    continue
        if code == -signal.SIGKILL:
            return f"the process that draws was killed: memory ran out, or it took longer than {SECONDS_MAX:.0f} s"
        if code < 0:
            return f"the process that draws was ended by signal {-code} (is memory limited, as by ulimit -v?)"
        return f"the process that draws ended with exit code {code}"


_renderer = _Renderer()


def svg(specification: dict[str, Any]) -> str:
    """The Vega-Lite chart ``specification`` as an SVG element; where it cannot be drawn, one that says why."""
    return _renderer.svg(specification)


def in_its_place(why: str) -> str:
    """An SVG element with one line of text."""
    text = html.escape(f"This picture is unavailable, because {why}.")
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" class="unavailable" width="640" height="40" viewBox="0 0 640 40">'
        f'<text x="0" y="24" font-size="12" fill="#000">{text}</text></svg>'
    )


def main() -> None:
    """Draws what comes in on standard input until it ends."""
    import vl_convert

    for line in sys.stdin:
        try:
            answer = {"svg": vl_convert.vegalite_to_svg(json.loads(line))}
        except (ValueError, TypeError) as error:
            answer = {"error": " ".join(str(error).split())}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
