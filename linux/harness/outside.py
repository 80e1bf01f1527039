# SPDX-License-Identifier: GPL-2.0
"""Look at a running guest from outside: walk its page tables in the file that is its memory.

    outside.py KIND MODE [TABLES [TRACE]]     e.g. outside.py nestwalk 2 /some/tables.zst /some/trace.zst

Measures fragmentation without asking the guest, and compares with what the guest says of itself.
TABLES: every page-table page of the process; TRACE: accesses of the process with their physical addresses, by a QEMU
plugin. Both in the formats of linux/data/README.md.
"""
import json
import mmap
import re
import socket
import struct
import subprocess
import sys
import time

import build
import qemu

ADDRESS = 0x000F_FFFF_FFFF_F000
PRESENT, HUGE = 1, 1 << 7
# Accesses in a trace that is saved. Twice as many are recorded, since some may be those of another process.
SAVED = 50000


class Monitor:
    """QEMU's QMP, for human monitor commands."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        for _ in range(100):
            try:
                self.socket.connect(str(path))
                break
            except OSError:
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
    """gfn of each page of a range, from the leaf tables; None where not mapped."""
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
        group = gfns[g:g + 8]
        if None not in group:
            distribution[len({f >> 3 for f in group}) - 1] += 1
    return distribution


def pack(path, data):
    subprocess.run(["zstd", "-q", "-f", "-19", "-o", path], input=data, check=True)


def dump(path, found):
    """Page tables as records: level, first address, gpa, 512 entries; all little-endian 64-bit."""
    nodes = (struct.pack("<3Q512Q", level, va, gpa, *entries) for level, va, gpa, entries in found)
    pack(path, b"NWPT0001" + struct.pack("<Q", len(found)) + b"".join(nodes))


def agreeing(found, records):
    """The records whose physical address is that of the page tables; others are of another process, or of a page since moved."""
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


def walk(kind, mode, mib=64, mem=768, path=None, append="", trace=None, records=100000):
    """Boot, let the guest populate its memory, stop it, walk. Returns (inside, outside, tables).

    With a trace path: also record accesses to high addresses (mappings, stack) of whoever runs in user mode once
    the memory is populated.
    """
    ram, sock, log = (build.run_folder() / f"outside-{kind}-{mode}.{x}" for x in ("ram", "qmp", "log"))
    sock.unlink(missing_ok=True)
    extra = ["-plugin", f"{build.plugin('memtrace')},out={trace},max={records},low=0x700000000000,gate=on"] if trace else []
    command = qemu.command(build.kernel(kind), build.initramfs(), "outside", mem=mem, append=f"nw.mode={mode} nw.mib={mib} {append}",
                           extra=["-object", f"memory-backend-file,id=m,mem-path={ram},size={mem}M,share=on",
                                  "-machine", "memory-backend=m", "-qmp", f"unix:{sock},server=on,wait=off", *extra])
    with open(log, "wb") as out:
        vm = subprocess.Popen(["nice", "-n", "10", *command], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
    try:
        monitor, end = Monitor(sock), time.monotonic() + 400
        while not (held := re.search(r"^HOLD (\S+) (\d+)", log.read_text(errors="replace"), re.M)):
            if time.monotonic() > end or vm.poll() is not None:
                raise qemu.Failure(f"outside: the guest never held, see {log}")
            time.sleep(0.2)
        inside = json.loads(re.search(r"^FRAG (.*)", log.read_text(errors="replace"), re.M)[1])
        start, pages = int(held[1], 16), int(held[2])
        with open(ram, "rb") as f:
            memory = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        while trace and trace.stat().st_size < 16 * records and time.monotonic() < end:
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
                        dump(path, found)
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
    trace = build.run_folder() / "outside.trace" if len(sys.argv) > 4 else None
    inside, outside, found = walk(kind, mode, path=sys.argv[3] if len(sys.argv) > 3 else None, trace=trace,
                                  mib=192 if trace else 64, records=2 * SAVED, append="nw.corunners=12")
    regions = {gpa >> 21 for _, _, gpa, _ in found}
    print(f"inside  {inside['distribution']}\noutside {outside}\n{len(found)} page-table pages in {len(regions)} blocks of 2 MiB")
    if trace:
        data = trace.read_bytes()
        records = agreeing(found, data)
        print(f"trace: {len(records)} accesses agree with the page tables, {len(data) // 16 - len(records)} do not and are left out")
        save_trace(sys.argv[4], records[:SAVED])


if __name__ == "__main__":
    main()
