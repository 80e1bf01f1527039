# SPDX-License-Identifier: MIT OR Apache-2.0
"""One program, recorded by our plugin and by valgrind, and imported through two formats: the same walks.

DynamoRIO is not packaged for the distributions that the tests run on, so its file is written here, from what valgrind
saw. That tests the import, not DynamoRIO's tracer. The array begins at a multiple of 2 MiB and is touched in order
first: valgrind and QEMU place mappings elsewhere, and how an array lies in the tables decides some per cent of a walk's
latency. What differs then is start-up: some twenty pages, after which the guest's and the host's tables lie in other
sets of the caches. That moves `vm-4k` by 0.4 to 1 %, and the two where fewer tables compete by 0.1 %.
"""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support import Command

PROGRAM = """
#include <stdlib.h>
int main(void)
{
    unsigned long n = 1ul << 22, at = 1; /* words: 32 MiB */
    volatile long *words = aligned_alloc(1ul << 21, n * sizeof *words);

    for (unsigned long i = 0; i < n; i += 512)
        words[i] = 1;
    for (long i = 0; i < 200000; i++) {
        at = at * 6364136223846793005ul + 1442695040888963407ul;
        words[(at >> 33) % n] += i;
        words[i % 512] += i;
    }
    return 0;
}
"""

#: By how much the latency of a walk may differ.
LATENCY = {"native-4k": 0.005, "vm-host-2m": 0.005, "vm-4k": 0.02}


def drmemtrace(lackey: Path, path: Path) -> None:
    """Writes what lackey saw as DynamoRIO would have: version 7, one thread of process 1."""
    record = struct.Struct("<HHQ").pack
    parts = [record(25, 0, 7), record(28, 12, 7), record(22, 4, 1), record(24, 4, 1)]
    kinds = {"I  ": (10,), " L ": (0,), " S ": (1,), " M ": (0, 1)}
    for line in lackey.read_text().splitlines():
        if line[:3] in kinds:
            address, size = line[3:].split(",")
            parts += [record(kind, int(size), int(address, 16)) for kind in kinds[line[:3]]]
    path.write_bytes(b"".join([*parts, record(26, 0, 0)]))


def test_capture_lackey_and_drmemtrace_give_the_same_walks(command: Command, tmp_path: Path) -> None:
    for tool, package in (("cc", "gcc"), ("valgrind", "valgrind"), ("qemu-x86_64", "qemu-user")):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed (apt-get install {package})")
    program, lackey = tmp_path / "program", tmp_path / "lackey"
    program.with_suffix(".c").write_text(PROGRAM)
    subprocess.run([str(shutil.which("cc")), "-O1", "-o", program, program.with_suffix(".c")], check=True)
    words = ["valgrind", "--tool=lackey", "--trace-mem=yes", f"--log-file={lackey}", str(program)]
    subprocess.run(words, check=True, timeout=300)
    drmemtrace(lackey, tmp_path / "drmemtrace")
    traces = {name: tmp_path / f"{name}.nwt" for name in ("capture", "lackey", "drmemtrace")}
    done = command("capture", "--whole", "-o", traces["capture"], "--", program)
    assert done.returncode == 0, done.stderr
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for name, trace in traces.items():
        if name != "capture":
            done = command("trace", "convert", tmp_path / name, trace)
            assert done.returncode == 0, done.stderr
        done = command("compare", "--trace", trace, *(f"--only={name}" for name in LATENCY), "--json")
        assert done.returncode == 0, done.stderr
        rows.update({(name, row["configuration"]): row for row in json.loads(done.stdout)["rows"]})
    for configuration, latency in LATENCY.items():
        ours, text, offline = (rows[name, configuration] for name in traces)
        assert ours["walks_per_kiloaccess"] > 100
        bounds = {"walks_per_kiloaccess": 0.005, "references_per_walk": 0.005, "walk_latency_cycles": latency}
        for key, bound in bounds.items():
            assert offline[key] == text[key]
            assert text[key] == pytest.approx(ours[key], rel=bound), f"{configuration} {key}"
