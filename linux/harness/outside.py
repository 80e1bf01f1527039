# SPDX-License-Identifier: GPL-2.0
"""Look at a running guest from outside: walk its page tables in the file that is its memory.

    outside.py KIND MODE [TABLES [TRACE [SORTED [MIB]]]]     e.g. outside.py nestwalk 2 /some/tables.zst /some/trace.zst

Measures fragmentation without asking the guest, and compares with what the guest says of itself.
TABLES: every page-table page of the process, and the regions that the kernel says they lie in; TRACE: accesses of
the process with their physical addresses, by a QEMU plugin. In the formats of docs/whole-vms.md and
linux/data/README.md. "-": none. SORTED: vm.sorted_page_tables. MIB: how much the process touches; 192 with a trace,
else 64.
"""

import json
import mmap
import os
import re
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import build
import qemu

ADDRESS = 0x000F_FFFF_FFFF_F000
PRESENT, HUGE = 1, 1 << 7
# Accesses in a trace that is saved. Twice as many are recorded, since some may be those of another process.
SAVED = 50000
# A guest may take so many seconds of CPU time (of QEMU's): the machine may be busy with other things. And ten times
# as many by the clock: a guest that waits for ever takes no CPU time.
LIMIT_S, LIMIT_CLOCK_S = 400, 4000


class Monitor:
    """QEMU's QMP, for human monitor commands."""

    def __init__(self, path, vm):
        self.socket = socket.socket(socket.AF_UNIX)
        end = time.monotonic() + LIMIT_CLOCK_S
        while True:
            try:
                self.socket.connect(str(path))
                break
            except OSError:
                if vm.poll() is not None or time.monotonic() > end:
                    raise qemu.Failure(f"monitor: {path} never answered") from None
                time.sleep(0.1)
        self.file = self.socket.makefile("rw")
        self.file.readline()
        self.call("qmp_capabilities")

    def call(self, command, **arguments):
        self.file.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self.file.flush()
        while True:
            reply = json.loads(self.file.readline())
            if "return" in reply:
                return reply["return"]
            if "error" in reply:
                raise qemu.Failure(f"monitor: {reply['error']}")

    def human(self, line):
        return self.call("human-monitor-command", **{"command-line": line})


def tables(memory, cr3, levels):
    """All page-table pages of the user half: (level, first address, gpa, 512 entries), root first."""
    todo, found = [(levels, 0, cr3 & ADDRESS)], []
    while todo:
        level, va, gpa = todo.pop()
        if gpa + 4096 > len(memory):
            continue
        entries = struct.unpack_from("<512Q", memory, gpa)
        found.append((level, va, gpa, entries))
        if level > 1:
            for i, e in enumerate(entries[:256] if level == levels else entries):
                if e & PRESENT and not (e & HUGE and level <= 3):
                    todo.append((level - 1, va | i << (12 + 9 * (level - 1)), e & ADDRESS))
    return found


def frames(found, start, pages):
    """Gfn of each page of a range, from the leaf tables; None where not mapped."""
    leaf = {va: entries for level, va, _, entries in found if level == 1}
    out = []
    for va in range(start, start + pages * 4096, 4096):
        entries = leaf.get(va & ~0x1FFFFF)
        e = entries[va >> 12 & 511] if entries else 0
        out.append((e & ADDRESS) >> 12 if e & PRESENT else None)
    return out


def fragmentation(gfns):
    """Distribution over 1..8 of distinct gfn >> 3 of complete groups of 8."""
    distribution = [0] * 8
    for g in range(0, len(gfns) - 7, 8):
        group = gfns[g : g + 8]
        if None not in group:
            distribution[len({f >> 3 for f in group}) - 1] += 1
    return distribution


def pack(path, data):
    subprocess.run(["zstd", "-q", "-f", "-19", "-o", path], input=data, check=True)


def dump(path, found, regions=""):
    """Page tables as records: level, first address, gpa, 512 entries; all little-endian 64-bit.

    Then the kernel's regions, if there are any.
    """
    if not regions:
        nodes = (struct.pack("<3Q512Q", level, va, gpa, *entries) for level, va, gpa, entries in found)
        pack(path, b"NWPT0001" + struct.pack("<Q", len(found)) + b"".join(nodes))
        return
    # The root is first. Its upper half is not followed here, so that it must be 0 in this format.
    level, va, gpa, entries = found[0]
    whole = [(level, va, gpa, (*entries[:256], *[0] * 256)), *found[1:]]
    nodes = (struct.pack("<3Q512Q", level, va, gpa, *entries) for level, va, gpa, entries in whole)
    name, body = b"regions", regions.encode()
    section = struct.pack("<2Q", len(name), len(body)) + name + body
    pack(path, b"NWPT0003" + struct.pack("<Q", len(found)) + b"".join(nodes) + section)


def regions_in(log):
    """What the guest said of the regions of its process: lines of debugfs, as they are; empty if there is none."""
    lines = re.findall(r"^REGION (.*?)\r?$", log, re.MULTILINE)
    return "".join(f"{line}\n" for line in lines) if len(lines) > 1 else ""


def cpu_s(pid):
    """Seconds of CPU time that a process has taken; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def agreeing(found, records):
    """The records that agree with the page tables; others are of another process, or of a page since moved."""
    leaf = {va: entries for level, va, _, entries in found if level == 1}
    kept = []
    for va, rest in struct.iter_unpack("<QQ", records):
        entries = leaf.get(va & ~0x1FFFFF)
        e = entries[va >> 12 & 511] if entries else 0
        if e & PRESENT and e & ADDRESS == rest & ADDRESS:
            kept.append((va, rest))
    return kept


def save_trace(path, records):
    """Accesses: number of records, then their two words."""
    pack(path, b"NWSM0001" + struct.pack("<Q", len(records)) + b"".join(struct.pack("<QQ", *r) for r in records))


def walk(kind, mode, *, mib=64, mem=768, path=None, append="", trace=None, records=100000):
    """Boot, let the guest populate its memory, stop it, walk. Returns (inside, outside, tables).

    With a trace path: also record accesses to high addresses (mappings, stack) of whoever runs in user mode once
    the memory is populated.
    """
    ram, sock, log = (build.run_folder() / f"outside-{kind}-{mode}.{x}" for x in ("ram", "qmp", "log"))
    sock.unlink(missing_ok=True)
    extra = (
        ["-plugin", f"{build.plugin('memtrace')},out={trace},max={records},low=0x700000000000,gate=on"] if trace else []
    )
    command = qemu.command(
        build.kernel(kind),
        build.initramfs(),
        "outside",
        mem=mem,
        append=f"nw.mode={mode} nw.mib={mib} {append}",
        extra=[
            "-object",
            f"memory-backend-file,id=m,mem-path={ram},size={mem}M,share=on",
            "-machine",
            "memory-backend=m",
            "-qmp",
            f"unix:{sock},server=on,wait=off",
            *extra,
        ],
    )
    with log.open("wb") as out:
        vm = subprocess.Popen(
            ["nice", "-n", "10", *command], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        monitor, end = Monitor(sock, vm), time.monotonic() + LIMIT_CLOCK_S
        while not (held := re.search(r"^HOLD (\S+) (\d+)", log.read_text(errors="replace"), re.MULTILINE)):
            if vm.poll() is not None or cpu_s(vm.pid) > LIMIT_S or time.monotonic() > end:
                raise qemu.Failure(f"outside: the guest never held, after {cpu_s(vm.pid):.0f} s of CPU time: see {log}")
            time.sleep(0.2)
        inside = json.loads(re.search(r"^FRAG (.*)", log.read_text(errors="replace"), re.MULTILINE)[1])
        start, pages = int(held[1], 16), int(held[2])
        with ram.open("rb") as f:
            memory = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        while trace and trace.stat().st_size < 16 * records and cpu_s(vm.pid) < LIMIT_S and time.monotonic() < end:
            time.sleep(0.2)
        for _ in range(500):
            monitor.call("stop")
            for cpu in monitor.human("info registers -a").split("CPU#")[1:]:
                register = {k: int(v, 16) for k, v in re.findall(r"\b(CR[34]|CPL)=([0-9a-f]+)", cpu)}
                if register["CPL"] != 3:
                    continue
                found = tables(memory, register["CR3"], 5 if register["CR4"] >> 12 & 1 else 4)
                gfns = frames(found, start, pages)
                if None not in gfns:
                    if path:
                        dump(path, found, regions_in(log.read_text(errors="replace")))
                    return inside, fragmentation(gfns), found
            monitor.call("cont")
            time.sleep(0.01)
        raise qemu.Failure("outside: the process was never seen in user mode")
    finally:
        vm.kill()
        vm.wait()
        ram.unlink(missing_ok=True)


def main():
    kind, mode = sys.argv[1], sys.argv[2]
    trace = build.run_folder() / "outside.trace" if len(sys.argv) > 4 and sys.argv[4] != "-" else None
    ordered = f" nw.sorted={sys.argv[5]}" if len(sys.argv) > 5 else ""
    mib = int(sys.argv[6]) if len(sys.argv) > 6 else 192 if trace else 64
    # Three times what is touched, as for 192 and 64 MiB; the co-runners and the kernel have their part of it.
    inside, outside, found = walk(
        kind,
        mode,
        path=sys.argv[3] if len(sys.argv) > 3 else None,
        trace=trace,
        mib=mib,
        mem=max(768, 3 * mib),
        records=2 * SAVED,
        append="nw.corunners=12" + ordered,
    )
    regions = {gpa >> 21 for _, _, gpa, _ in found}
    print(
        f"inside  {inside['distribution']}\noutside {outside}\n"
        f"{len(found)} page-table pages in {len(regions)} blocks of 2 MiB"
    )
    if trace:
        data = trace.read_bytes()
        records = agreeing(found, data)
        print(
            f"trace: {len(records)} accesses agree with the page tables, "
            f"{len(data) // 16 - len(records)} do not and are left out"
        )
        save_trace(sys.argv[4], records[:SAVED])


if __name__ == "__main__":
    main()
