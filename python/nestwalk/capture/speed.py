# SPDX-License-Identifier: MIT OR Apache-2.0
"""How fast a capture is: redis under ``nestwalk capture``, for ``nestwalk bench``."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path
from typing import Any

from nestwalk.capture import program, session, tools
from nestwalk.errors import NestwalkError

NAME = "capture"
UNIT = "accesses/s"
KEYS = 100_000
CALLS = 100_000
"""GETs of random keys; as many SETs and a fifth more come before them."""
SIZE_BYTES = 16_000_000


def measure(repetitions: int) -> dict[str, Any]:
    """Accesses a second of processor time: of QEMU with the plugin, of what makes the trace, and of the client.

    Where a tool is missing the result has no ``value``, and says why under ``unavailable``.
    """
    nothing = dict.fromkeys(("clock_ghz", "cycles", "width", "memory_bytes"))
    try:
        value = max(_once() for _ in range(repetitions))
    except NestwalkError as error:
        return {"name": NAME, "value": None, "unit": UNIT, **nothing, "unavailable": f"because {error}"}
    return {"name": NAME, "value": value, "unit": UNIT, **nothing}


def _once() -> float:
    benchmark = tools.find("redis", "redis-benchmark")
    tools.find("redis", "redis-server")
    port = _free_port()
    options = ("--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--loglevel", "warning")
    found = program.find(["redis-server", "--port", str(port), *options])
    emulator = tools.find("qemu", f"qemu-{found.architecture}")
    client = f"{benchmark} -p {port} -q -r {KEYS} -P 16"
    with tempfile.TemporaryDirectory(prefix="nestwalk-capture-") as folder:
        done = session.run(
            session.Request(
                program=found,
                target=Path(folder) / "redis.nwt",
                emulator=emulator,
                plugin=tools.plugin(emulator, os.environ.get("CC") or "cc"),
                size=SIZE_BYTES,
                precision=0.02,
                port=port,
                client=f"{client} -t set -n {CALLS * 6 // 5} -d 256 && {client} -t get -n {CALLS}",
                quiet_output=True,
            )
        )
    # How wide an interval is says nothing of speed.
    wrong = [warning for warning in done.warnings if not warning.startswith("the walk latency's interval")]
    if wrong:
        raise NestwalkError(f"the capture of redis went wrong: {wrong[0]}")
    speed: float = done.report["accesses"] / done.report["cpu_seconds"]
    return speed


def _free_port() -> int:
    """A port of 127.0.0.1 at which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
