# SPDX-License-Identifier: Apache-2.0
"""The command `nestwalk-nova`, on a compute node: the agent, and looks at what it does."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oslo_config import cfg

from nestwalk_nova import conf, linux
from nestwalk_nova.allocation import OPTIONS, merge, segments_needed, units_of
from nestwalk_nova.encoding import Layout, LayoutError, decode, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

LOG = logging.getLogger("nestwalk_nova")

#: As many segments as `show` counts.
_COUNTED_MAX = 1_000_000

#: The largest VM that `show` and `decode` take: 1 EiB.
_MIB_MAX = 1 << 40


def _add_commands(parsers: Any) -> None:
    agent = parsers.add_parser(
        "agent", help="look at the host's memory again and again and write its layout to a file"
    )
    agent.add_argument("--once", action="store_true", help="look once, write the file and end")
    show = parsers.add_parser("show", help="look once and print what would be published")
    text = parsers.add_parser("decode", help="print what a published text says")
    text.add_argument("text", help="the value of nestwalk_segments in a compute node's stats")
    for parser in (show, text):
        parser.add_argument("--json", action="store_true", help="print one JSON object")
        parser.add_argument(
            "--vm", type=_mib, metavar="MIB", help="how many segments a VM of this size would get"
        )


def _mib(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,13}", text) or not 0 < int(text) <= _MIB_MAX:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is not a size in MiB, such as 16384")
    return int(text)


def _configuration(arguments: Sequence[str]) -> Any:
    configuration = cfg.ConfigOpts()
    conf.register(configuration)
    configuration.register_cli_opts(
        [
            cfg.SubCommandOpt("command", title="commands", handler=_add_commands),
            cfg.StrOpt(
                "root",
                default="/",
                help="Read the host's files below this folder: for tests and recordings.",
            ),
        ]
    )
    # Only what --config-file names: nova.conf's own options and secrets are no business of the
    # agent's.
    configuration(
        list(arguments), prog="nestwalk-nova", default_config_files=[], default_config_dirs=[]
    )
    return configuration


def look(configuration: Any) -> tuple[Layout, str, tuple[str, ...]]:
    """The host's layout now, its text, and why it is less exact than it could be.

    Raises:
        HostError: the host's memory cannot be read.
    """
    settings = configuration.nestwalk
    root = Path(configuration.root)
    taken_s = int(time.time())
    if settings.source == "hugetlb":
        free = linux.hugetlb(root, settings.page_size, _reserved(settings.reserved_pages))
    else:
        free = linux.buddy(root)
    text = encode(Layout(taken_s, free.source, free.unit_mib, free.nodes), settings.length_max)
    return decode(text), text, free.notes


def _reserved(pages: dict[str, str]) -> dict[int, int]:
    try:
        reserved = {int(node): int(count) for node, count in pages.items()}
    except ValueError:
        reserved = {-1: -1}
    if any(number < 0 for pair in reserved.items() for number in pair):
        raise linux.HostError(
            f"[nestwalk] reserved_pages: {pages} is not a list of node:pages, for example 0:4,1:4"
        )
    return reserved


def write(path: Path, text: str) -> None:
    """Writes the file so that a reader sees the old text or the new one."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        new.write_text(f"{text}\n", "ascii")
        new.chmod(0o644)
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise linux.HostError(
            f"{path}: {error.strerror}; make its folder, or set segments_file in [nestwalk]"
        ) from None


def run(configuration: Any, stop: threading.Event, *, once: bool) -> None:
    """The agent: a look every `agent_interval` seconds until `stop` is set; then the file goes.

    A look that fails takes the file away, so that nothing old is published, and is logged when the
    trouble begins.

    Raises:
        HostError: the first look failed.
    """
    settings = configuration.nestwalk
    path = Path(settings.segments_file)
    told: object = None
    looked = False
    while not stop.is_set():
        try:
            layout, text, notes = look(configuration)
            write(path, text)
            state: object = (layout.source, notes)
            message = "; ".join((f"writing free segments ({layout.source}) to {path}", *notes))
            looked = True
        except linux.HostError as error:
            _remove(path)
            if once or not looked:
                raise
            state = message = str(error)
        if state != told:
            LOG.warning("%s", message)
            told = state
        if once:
            return
        stop.wait(settings.agent_interval)
    _remove(path)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def summary(
    layout: Layout, text: str, notes: tuple[str, ...], vm_mib: int | None
) -> dict[str, Any]:
    """What `show` and `decode` print with `--json`."""
    unit = layout.unit_mib
    result: dict[str, Any] = {
        "schema": 1,
        "taken_s": layout.taken_s,
        "source": layout.source,
        "unit_mib": unit,
        "nodes": [
            {
                "node": node,
                "free_mib": units_of(free) * unit,
                "segments": sum(count for _, count in free),
                "largest_mib": free[-1][0] * unit if free else 0,
            }
            for node, free in layout.nodes
        ],
        "dropped_segments": layout.dropped_segments,
        "dropped_mib": layout.dropped_units * unit,
        "notes": list(notes),
        "text": text,
    }
    if vm_mib is not None:
        whole = merge([free for _, free in layout.nodes])
        needed = {
            option: segments_needed(whole, -(-vm_mib // unit), option, _COUNTED_MAX)
            for option in OPTIONS
        }
        result["vm"] = {"mib": vm_mib, "segments": needed}
    return result


def _print(result: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result))  # noqa: T201
        return
    lines = [f"source {result['source']}, segments in units of {result['unit_mib']} MiB"]
    lines += [
        f"node {node['node']}: {node['free_mib']} MiB free in {node['segments']} segments, "
        f"the largest {node['largest_mib']} MiB"
        for node in result["nodes"]
    ]
    if result["dropped_segments"]:
        lines.append(
            f"left out: {result['dropped_segments']} small segments, {result['dropped_mib']} MiB"
        )
    lines += [f"note: {note}" for note in result["notes"]]
    for option, needed in result.get("vm", {}).get("segments", {}).items():
        what = f"{needed} segments" if needed is not None else "more than is free"
        lines.append(f"a VM of {result['vm']['mib']} MiB: {what} ({option})")
    lines.append(result["text"])
    print("\n".join(lines))  # noqa: T201


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; 0, or 2 after a line on the standard error stream."""
    logging.basicConfig(format="nestwalk-nova: %(message)s", level=logging.INFO)
    try:
        configuration = _configuration(sys.argv[1:] if arguments is None else arguments)
        command = configuration.command
        if command.name == "agent":
            stop = threading.Event()
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: stop.set())
            run(configuration, stop, once=command.once)
        elif command.name == "show":
            _print(summary(*look(configuration), command.vm), as_json=command.json)
        else:
            _print(
                summary(decode(command.text), command.text, (), command.vm), as_json=command.json
            )
    except (linux.HostError, LayoutError, cfg.Error) as error:
        sys.stderr.write(f"nestwalk-nova: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
