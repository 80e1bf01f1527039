# SPDX-License-Identifier: GPL-2.0
"""What `make check` and `make test` run."""

import collections
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import typing

import build
import opcost
import outside
import qemu
import record
import vmm
from qemu import Failure, boot, boot_kind

NPT, SHADOW = "EPYC,+svm,+npt", "EPYC,+svm,-npt"
METRIC_STOCK_MIN, METRIC_PATCHED_MAX = 4.0, 1.05
# The table itself takes 0.03 % of dense memory and 0.2 % of sparse memory; the rest is what runs differ by.
OOM_SHARE_MIN = 0.985

# How many tests there are. Folios beside reservations are of 6.12 only.
KUNIT_SUITES = "ptemagnet-part,hugegpt-pool,sorted-tables"
KUNIT_OK, PTEMAGNET_OK, VARIANT_OK = {"6.1": (49, 51, 45), "6.12": (50, 52, 46)}[build.RELEASE.name]
# With lockdep: that it has seen the locks of sorted page tables, on 6.12 those of VMAs too.
SORTED_OK, SORTED_LOCKDEP = 28, {"6.1": 5, "6.12": 6}[build.RELEASE.name]
# Kinds that have five levels of page tables under QEMU, whose addresses are tried too: those booted as bzImage,
# which switches to them.
FIVE_LEVELS = build.BZIMAGES


def require(condition, message):
    if not condition:
        raise Failure(message)


def count_ok(lines, wanted, name, more=False):
    """Every test script says how much it tested; another number, as when a test skips, is a failure too.

    With more: only a lesser one.
    """
    ok = sum(line.startswith("ok ") for line in lines)
    skipped = [line for line in lines if line.startswith("skip ")]
    print(
        f"          {name}: {ok} ok"
        + (f", {len(skipped)} skipped: " + ", ".join(s[7:] for s in skipped) if skipped else "")
    )
    require(ok == wanted or (more and ok > wanted), f"{name}: {ok} tests ran, {wanted} expected")


def quarantine(kind):
    """For the command line: that KASAN keeps freed objects, so that slab is no measure of what is left."""
    return "nw.quarantine=1" if kind == "debug" else ""


# Kinds with memory errors (MEMORY_FAILURE, HWPOISON_INJECT), which have tests of these besides.
MEMORY_ERRORS = ("debug", "debian")


def options(kind):
    """For the command line of a kind.

    The CPU that is emulated needs no page-table isolation, so Debian's kernel would leave it off. init_on_alloc is
    Debian's default, page_owner allocates memory while pages are freed.

    """
    return "page_owner=on init_on_alloc=1 pti=on" if kind == "debian" else quarantine(kind)


def kunit(kind):
    lines = boot_kind(
        kind,
        "kunit",
        cpus=2,
        append=f"kunit.enable=1 nw.suites={KUNIT_SUITES} {options(kind)}",
    )
    # One test of memory errors in each suite.
    count_ok(lines, KUNIT_OK + 2 * (kind in MEMORY_ERRORS), f"kunit {kind}")


def ptemagnet(kind):
    lines = boot_kind(kind, "ptemagnet", mem=1024, append=options(kind))
    # Two nodes and compaction are other steps. Of memory errors: soft, in mapped pages, and in reserved ones.
    count_ok(lines, PTEMAGNET_OK + 3 * (kind in MEMORY_ERRORS), f"ptemagnet {kind}")


def variant():
    """Five-level tables, PGDs of two pages, and neither NUMA nor memory cgroups."""
    kunit("variant")
    append = "pti=on hugegpt=force"
    lines = boot_kind("variant", "ptemagnet", append=append)
    count_ok(lines, VARIANT_OK, "ptemagnet variant")
    lines = boot_kind("variant", "stress", append=f"{append} nw.seconds=15")
    count_ok(lines, 3, "stress variant")
    _, distribution, found = outside.walk("variant", 2, append=append)
    require(found[0][0] == 5, "variant: the page table has not five levels")
    require(distribution[1:] == [0] * 7, f"variant: {distribution} from outside")
    sorted_tables("variant", "pti=on")


def compaction(kind):
    """In a guest whose clock counts instructions: what else the machine does is not in its CPU time."""
    lines = boot_kind(
        kind,
        "ptemagnet",
        "compaction",
        mem=1024,
        cpus=1,
        icount=0,
        append="nw.only=compaction_is_linear",
    )
    for line in lines:
        if "CPU time to compact" in line:
            print(f"          {line}")
    count_ok(lines, 5, f"compaction {kind}")


def numa(kind):
    lines = boot_kind(
        kind,
        "ptemagnet",
        "numa",
        mem=1024,
        append="numa=fake=2 nw.numa=1 "
        "nw.only=numa_policy,numa_no_remote_groups,numa_pressure,sequential,dontneed,killed",
    )
    count_ok(lines, 10, f"numa {kind}")


def frags(lines):
    """{(tag, order): mean} of the FRAG lines."""
    return {
        (r["tag"], r["order"]): r["mean"] for r in (json.loads(line[5:]) for line in lines if line.startswith("FRAG "))
    }


def gate(kind):
    lines = boot_kind(kind, "gate", mem=1024)
    m = frags(lines)
    for (tag, order), mean in m.items():
        print(f"          {tag:8} {order:4} {mean:.3f}")
    for order in ("seq", "rand"):
        require(m[("co12.0", order)] > METRIC_STOCK_MIN, f"gate: without reservations {m[('co12.0', order)]} ({order})")
        require(m[("co12.2", order)] < METRIC_PATCHED_MAX, f"gate: with reservations {m[('co12.2', order)]} ({order})")


def pressure(kind):
    lines = boot_kind(kind, "pressure", mem=600)
    count_ok(lines, 13, f"pressure {kind}")


def pressure_of_each_lru(kind):
    """With active and inactive LRU lists, which are Debian's default, and with generations."""
    for generations in ("n", "y"):
        lines = boot(
            f"pressure-{kind}-{generations}",
            build.kernel(kind),
            build.initramfs(),
            "pressure",
            mem=720,
            append=f"nw.generations={generations} {options(kind)}",
        )
        count_ok(lines, 14, f"pressure {kind}, lru_gen={generations}")


def balancing(kind, seconds):
    """NUMA balancing unmaps and moves pages while reservations come and go, on two nodes of the firmware's tables."""
    nodes = [
        f"-object memory-backend-ram,id=m{n},size=512M -numa node,nodeid={n},memdev=m{n},cpus={n}".split()
        for n in (0, 1)
    ]
    lines = boot_kind(
        kind,
        "balancing",
        mem=1024,
        cpus=2,
        timeout=2400,
        extra=[word for node in nodes for word in node],
        append=f"nw.seconds={seconds} {options(kind)}",
    )
    count_ok(lines, 7, f"balancing {kind}")
    for line in lines:
        if line.startswith(("STRESS", "# balancing")):
            print(f"          {line}")


def oom():
    """Pages that can be had before somebody is killed, stock against patched: the reservations must be no part of it.

    Pages that the killer has left on per-CPU lists count: on 6.12 it comes with any number of these, with and
    without reservations.
    """
    most = {}
    for kind in ("stock", "nestwalk"):
        lines = boot_kind(kind, "oom", mem=400)
        for r in qemu.grown(lines):
            require(r["killed"], f"oom {kind}: {r} was not killed")
            most.setdefault(r["tag"], {}).setdefault(kind, []).append(r["pages"] + r["per_cpu"])
    print(f"          {'pages before the OOM killer':30} {'stock':>8} {'patched':>8}")
    for tag, row in most.items():
        stock, patched = (sorted(row[kind])[len(row[kind]) // 2] for kind in ("stock", "nestwalk"))
        print(f"          {tag:30} {stock:8} {patched:8} ({patched / stock - 1:+.2%})")
        require(patched > OOM_SHARE_MIN * stock, f"oom: {tag}: {patched} pages, the stock kernel has {stock}")


def offline(kind):
    lines = boot_kind(kind, "offline", mem=1536, append="movablecore=768M")
    count_ok(lines, 7, f"offline {kind}", more=True)


def stress(kind, seconds, append=""):
    # Debian's configuration has nodes of the firmware's only, as in balancing().
    nodes = "" if kind == "debian" else "numa=fake=2"
    # page_owner=on (where it is built in) allocates memory while pages are freed.
    lines = boot_kind(
        kind,
        "stress",
        mem=1536,
        timeout=2400,
        append=f"nw.seconds={seconds} hugegpt=force page_owner=on init_on_alloc=1 "
        f"movablecore=768M {nodes} {options(kind)} {append}",
    )
    # With everyone's page tables sorted: what is then left of that.
    everyone = "sorted_page_tables=2" in append
    count_ok(lines, 5 + 3 * everyone, f"stress {kind}")
    for line in lines:
        if line.startswith("STRESS") or (everyone and line.startswith("# sorted:")):
            print(f"          {line}")
        require("=- " not in line or not line.startswith("STRESS"), f"stress {kind}: {line}: it cannot do some of it")


def pool(kind):
    lines = boot_kind(kind, "hugegpt", mem=600, append="hugegpt=force")
    count_ok(lines, 15, f"hugegpt {kind}")
    lines = boot_kind(kind, "l2", "hugegpt-unaware", append="hugegpt=on")
    require(not any(line.startswith("HGPT") for line in lines), "hugegpt=on without a host that knows: there is a pool")


def second_level(kind):
    """Entries of an initramfs: what a guest in the guest boots."""
    return ("/l2/vmlinux", build.stripped(kind), 644), ("/l2/initrd.gz", build.initramfs(), 644)


# Blocks of 2 MiB that the VMM grants a small guest: HGPT_VM_LEAST of guest/hgpt.h.
VM_BLOCKS = 16


def nested(kind, l2_kind, cpu, name, cpus=1):
    """L1 with KVM inside QEMU, L2 inside it."""
    initrd = build.initramfs(f"initramfs-l1-{l2_kind}", (*second_level(l2_kind), *build.modules(kind)))
    lines = boot(
        f"nested-{name}",
        build.kernel(kind),
        initrd,
        "l1",
        cpu=cpu,
        cpus=1 if cpus == 1 else 2,
        mem=1024,
        append=f"nw.cpus={cpus} nw.stock={int(kind in build.UNPATCHED)} {options(kind)}",
        timeout=1200,
    )
    vms = {m[1]: json.loads(m[2]) for m in (re.match(r"VMM\.(\w+) (.*)", line) for line in lines) if m}
    pools = {}
    for line in lines:
        m = re.match(
            r"L2\.(\w+)\| HGPT end node 0 regions (\d+) .*empty (\d+) fallbacks (\d+) .*mapped (\d+) gathered (\d+)",
            line,
        )
        if m:
            pools[m[1]] = [int(x) for x in m.groups()[1:]]
    for vm, v in vms.items():
        print(
            f"          {name} {vm:9} huge_kb={v['huge_kb']} pages_2m={v['pages_2m']} hypercalls={v['hypercalls']} "
            f"mapped={v['hgpt_mapped']} gathered={v['hgpt_gathered']} pool={pools.get(vm)}"
        )
    return lines, vms, pools


def nested_hugegpt(cpu, name, cpus=1, kind="nestwalk"):
    lines, vms, pools = nested(kind, "nestwalk", cpu, name, cpus)
    # Where KVM is a module: that it is, and that it can be taken out again.
    count_ok(lines, 50 + 3 * (cpus > 1) + 2 * bool(build.modules(kind)), f"nested {name}")
    for off in ("unaware", "off"):
        v = vms[off]
        require(
            v["huge_kb"] == 0 and v["hgpt_mapped"] == 0 and off not in pools, f"nested {name}: {off} is not stock: {v}"
        )
    for on in ["on"] + (["smp"] if cpus > 1 else []):
        v, (regions, empty, _, mapped, gathered) = vms[on], pools[on]
        # On a busy machine the guest may make more regions than its VMM grants.
        granted = min(regions, VM_BLOCKS)
        require(granted >= 1 and mapped == granted and gathered == granted, f"nested {name}: {on}: pool {pools[on]}")
        # THP is on advice only, so the huge pages are those of the pool.
        require(v["huge_kb"] >= 2048 * granted, f"nested {name}: {on}: {v['huge_kb']} kB huge for {granted} regions")
        # KVM maps at the next access what was gathered: of a region that nothing has used since, there may be no
        # mapping.
        require(
            "npt" not in name or v["pages_2m"] >= max(1, granted - empty),
            f"nested {name}: {on}: {v['pages_2m']} 2 MiB mappings for {regions} regions, {empty} of them empty",
        )


def nested_stock_host(cpu):
    """A patched guest on an unpatched host: it must be as stock."""
    _, vms, pools = nested("stock", "nestwalk", cpu, "stockhost")
    require(vms["stockhost"]["huge_kb"] == 0 and not pools, f"guest on a stock host: {vms}")


# The last four only where the VMM has an answer.
QEMU_GUESTS = "migratable", "all", "default", "passed", "logged", "moved"


def qemu_bit(program, patched=False):
    """QEMU as the VMM. Debian's has no answer for the guest, which is then as stock. With linux/qemu's patch it has."""
    initrd = build.initramfs("initramfs-qemu", (*second_level("nestwalk"), *vmm.files(program)))
    lines = boot(
        "qemu-bit",
        build.kernel("nestwalk"),
        initrd,
        "qemu",
        cpu=NPT,
        cpus=1,
        mem=1536,
        timeout=1200,
        append=f"nw.patched={int(patched)}",
    )
    count_ok(lines, 8 if patched else 2, "QEMU in the host")
    require(not any("| not ok" in line for line in lines), "QEMU: a guest says that it is not well")
    pools = {}
    for vm in QEMU_GUESTS if patched else QEMU_GUESTS[:2]:
        # The blocks of its pool that the host has answered each of the two calls for, at its first look and its last.
        pools[vm] = [
            tuple(int(n) for n in re.search(r"mapped (\d+) gathered (\d+)", line).groups())
            for line in lines
            if line.startswith(f"QEMU.{vm}| HGPT ") and " node 0 " in line
        ]
        looks = ", then ".join(map(str, pools[vm]))
        print(f"          {vm:10} {f'mapped, gathered: {looks}' if looks else 'no pool: as stock'}")
    unasked = [vm for vm in QEMU_GUESTS[:3] if pools.get(vm)]
    require(not unasked, f"QEMU: guests {unasked} have a pool, for which nobody has asked")
    if patched:
        for vm, looks in ("passed", 1), ("logged", 2), ("moved", 3):
            mapped, gathered = pools[vm][-1] if len(pools[vm]) == looks else (0, 0)
            require(mapped == gathered > 0, f"QEMU: guest {vm} has {pools[vm]}")
        require(pools["logged"][0] == (0, 0), f"QEMU: a guest whose memory is logged has {pools['logged']}")


# What a CPU enters when it finds a lock taken, and when its turn is interrupted.
WAITS = re.compile(
    r"(native_)?queued_(spin|read|write)_lock_slowpath|rwsem_down_(read|write)_slowpath|__mutex_lock_slowpath"
)
INTERRUPTED = "asm_sysvec_apic_timer_interrupt"


def scaling():
    """Concurrent faults (and drops) of one process with 1, 2 and 4 CPUs: locks found taken, for each 100 interruptions.

    The CPUs run in turns, which end with timer interrupts of any of them. A lock is found taken if a turn ends
    while it is held and another CPU then wants it. So this samples, at moments that have nothing to do with the
    locks, how much of the time one is held that others want, however many real CPUs there are and however busy they
    are. What waiting costs it does not say.

    """
    found = collections.defaultdict(lambda: (0, 0))
    # Twice, by turns: what else the machine does is then much the same for both.
    for kind in 2 * ("stock", "nestwalk"):
        path = build.run_folder() / f"scaling-{kind}.txt"
        lines = boot_kind(
            kind,
            "scaling",
            cpus=4,
            turns=True,
            timeout=1200,
            extra=["-plugin", f"{build.plugin('insncount')},profile={path}"],
        )
        runs = [json.loads(line[7:]) for line in lines if line.startswith("FAULTS ")]
        entered = opcost.entries(build.kernel(kind), path)
        for i, r in enumerate(runs):
            key = "on" if r["tag"] == "2" else "off" if kind == "nestwalk" else "stock", r["area"], r["threads"]
            waited, moments = found[key]
            waited += sum(n for (report, f), n in entered.items() if report == i and WAITS.fullmatch(f))
            found[key] = waited, moments + entered[i, INTERRUPTED]
    print(f"          {'locks found taken of 100':24}" + "".join(f" {name:>18}" for name in ("stock", "off", "on")))
    for area in ("own", "shared"):
        for threads in (1, 2, 4):
            rows = [found[name, area, threads] for name in ("stock", "off", "on")]
            print(
                f"          {area:6} {threads} threads         "
                + "".join(f" {100 * w / n:5.2f} ({w:4}/{n:5})" for w, n in rows)
            )
            (few, moments), _, (many, on_moments) = rows
            stock, on = few / moments, many / on_moments
            # Counts this small scatter by their square root: three times that, of both, is chance.
            chance = 3 * math.hypot(1.5 * few**0.5 / moments, many**0.5 / on_moments)
            require(
                on < 1.5 * stock + 0.01 + chance,
                f"scaling: {threads} threads, {area}: {on:.1%} found taken, with the stock kernel {stock:.1%}",
            )


# Steps of guest/opbench.c, and how much longer each may be with reservations. Sparse steps take and free eight
# pages for one. mremap takes 44 instructions a page, so that a table which is still there for some of it (2.2 a
# page) shows: runs had +0.7 and +2.9 %.
ON_MAX = {
    "touch": 1.02,
    "mprotect": 1.02,
    "fork": 1.02,
    "cow": 1.02,
    "rewrite": 1.02,
    "mremap": 1.05,
    "dontneed": 1.0,
    "munmap": 1.0,
    "exit": 1.0,
    "big_touch": 1.02,
    "big_drop": 1.0,
    "sparse_touch": 1.15,
    "sparse_drop": 2.5,
}
# With init_on_alloc=1 the kernel looks at the fields of each page that it hands out (check_pages_enabled), of a
# group at eight for one; clearing the eight would be 28672 more.
CHECKED_MAX = ON_MAX | {"sparse_touch": 1.2}
# One instruction is what the short steps may differ by from run to run. A tick that switches to another thread is
# 6,700, seen in sparse steps, which have 512 pages for the 4096 of the others.
OFF_MAX, OTHERS_MAX, NOISE, SPARSE_NOISE = 1.003, 1.005, 1, 16
# With sorted page tables, against off in the same boot. mremap begins after a tick, so that NOISE, which is 2 % of
# it, is not added.
SORTED_MAX = 1.02


def instructions():
    """Instructions a page of each step: stock, compiled in but off, on for others, on, and with sorted page tables."""
    count = {}
    for kind in ("stock", "nestwalk"):
        for tag, steps in opcost.measure(kind):
            for step, (n, pages) in steps.items():
                row = count.setdefault(step, {})
                row[kind, tag] = min(n / pages, row.get((kind, tag), n / pages))
    tags = ["off", "others", "on", "sorted"]
    print(f"          {'step':12} {'stock':>8} {'off':>17} {'for others':>17} {'on':>17} {'sorted tables':>17}")
    for step, row in count.items():
        stock = row["stock", "off"]
        cells = "".join(f" {row['nestwalk', tag]:8.1f} ({row['nestwalk', tag] / stock - 1:+6.2%})" for tag in tags)
        print(f"          {step:12} {stock:8.1f}{cells}")
    for step, most in ON_MAX.items():
        stock, off, others, on = (
            count[step][k] for k in (("stock", "off"), *(("nestwalk", t) for t in ("off", "others", "on")))
        )
        noise = SPARSE_NOISE if step.startswith("sparse") else NOISE
        require(off < OFF_MAX * stock + noise, f"{step} is longer although PTEMagnet is off: {off:.1f} for {stock:.1f}")
        require(
            others < OTHERS_MAX * stock + noise,
            f"{step} is longer for processes without reservations: {others:.1f} for {stock:.1f}",
        )
        require(on < most * stock, f"{step} is longer with PTEMagnet: {on:.1f} for {stock:.1f}")
        ordered = count[step]["nestwalk", "sorted"]
        require(
            ordered < SORTED_MAX * off + (noise if step != "mremap" else 0),
            f"{step} is longer with sorted page tables: {ordered:.1f} for {off:.1f}",
        )


def clears_once(kind):
    """With init_on_alloc=1, Debian's default, a page is cleared once.

    That is 4096 of the instructions of a touch (32768 of a sparse one if all eight pages are).
    """
    count = {}
    for tag, steps in opcost.measure(kind, append="init_on_alloc=1 nw.short=1"):
        for step, (n, pages) in steps.items():
            count[step, tag] = min(n / pages, count.get((step, tag), n / pages))
    for step in ("touch", "sparse_touch", "big_touch"):
        off, on = count[step, "off"], count[step, "on"]
        print(f"          init_on_alloc=1 {step:12} {off:8.1f} off {on:8.1f} on ({on / off - 1:+6.2%})")
        require(
            on < CHECKED_MAX[step] * off, f"{step} with init_on_alloc=1: {on:.1f} instructions a page for {off:.1f}"
        )


def sorted_tables(kind, append=""):
    """Page tables in the order of their addresses: rules and memory inside; then where they lie, from outside."""
    append = f"{options(kind)} {append}"
    lines = boot_kind(kind, "sorted", cpus=2, mem=768, timeout=2400, append=append)
    count_ok(lines, SORTED_OK + SORTED_LOCKDEP * (kind == "debug") + (kind in FIVE_LEVELS), f"sorted {kind}")
    for what in ("hold", "huge"):
        in_order(kind, what, append)


def sorted_numa(kind):
    """Two nodes: regions are where single tables would be, and not on another node because that has larger blocks."""
    lines = boot_kind(
        kind,
        "sorted-numa",
        cpus=2,
        mem=1024,
        append=f"numa=fake=2 {options(kind)}",
    )
    for line in lines:
        if line.startswith("# sorted:"):
            print(f"          {line}")
    count_ok(lines, 6, f"sorted, two nodes {kind}")


# Processes with regions; how many instructions each may add to a region that is made when the bound is reached; and
# how many a call of the shrinker may take for each place that it is told to look at, of which there are
# SHRINK_BATCH.
CROWD, ASKED_MAX, PLACE_MAX, SHRINK_BATCH = 1000, 30, 200, 128


def crowd(kind):
    """What is done under the mutex of all processes' regions: at the bound, by the shrinker, with few and with many.

    A call of that may not take more because there are more processes; there are more calls then.
    """
    path = build.run_folder() / f"crowd-{kind}.txt"
    lines = boot_kind(
        kind,
        "crowd",
        cpus=1,
        icount=0,
        mem=1024,
        timeout=2400,
        append=f"nw.processes={CROWD}",
        extra=["-plugin", f"{build.plugin('insncount')},profile={path}"],
    )
    count_ok(lines, 4, f"crowd {kind}")
    runs = opcost.counted(lines)
    calls = opcost.entries(build.kernel(kind), path, 1)
    least = {}
    for run, (tag, steps) in enumerate(runs):
        for step, (n, _) in steps.items():
            row = n, calls[run, "sorted_scan"]
            least[step, int(tag)] = min(least.get((step, int(tag)), row), row)
    for (step, n), (instructions, scans) in least.items():
        print(
            f"          {step:8} {n:5} processes: {instructions:9} instructions"
            + f", {scans} calls of the shrinker" * (step == "counted")
        )
    more = (least["asked", CROWD][0] - least["asked", 1][0]) / (CROWD - 1)
    instructions, scans = (least["counted", CROWD][i] - least["counted", 1][i] for i in (0, 1))
    print(
        f"          each process adds {more:.1f} instructions to a region that is made; with all {scans} calls more, "
        f"of {instructions / max(scans, 1):.0f} instructions"
    )
    require(
        1 < more <= ASKED_MAX, f"crowd: {more:.1f} instructions for each process that has regions, {ASKED_MAX} allowed"
    )
    require(
        0 < instructions <= PLACE_MAX * SHRINK_BATCH * scans,
        f"crowd: {instructions} instructions in {scans} calls of the shrinker, "
        f"{PLACE_MAX * SHRINK_BATCH} allowed for each",
    )


# What the debug kernel has to say of each mistake of mistakes*.patch; one of them. Of the last two, guest/provoke.c.
MISTAKES = {
    "put": r"VM_BUG_ON_PAGE\(page_ref_count\(page\) == 0\)",
    # The table's lock: used after it was freed or while it is another's, or there already when the page becomes a
    # table again.
    "twice": r"BUG: KASAN: ((slab-)?use-after-free|.* in __lock_acquire)|BUG: spinlock bad magic|"
    r"VM_BUG_ON_PAGE\(.*(page|ptdesc)->ptl\)",
    "sleep": r"BUG: sleeping function called from invalid context",
    "freed": r"BUG: KASAN: (slab-)?use-after-free",
    "last": r"BUG: KASAN: (slab-)?use-after-free",
    "order": r"WARNING: possible circular locking dependency detected",
    # The lock that stands for reclaim, in lockdep's report of a circle.
    "reclaim": r" \(fs_reclaim\)\{.*, at: ",
    **({"vma": r"WARNING: .*mm/sorted_tables\.c:"} if build.RELEASE.name != "6.1" else {}),
    "contig": r"not ok - nothing of a block is reserved anew",
    "kthread": r"not ok - a kernel thread .* reserves nothing",
}


def complains():
    """The debug kernel with deliberate mistakes: of each it complains, and without one of nothing."""
    for mistake, wanted in {**MISTAKES, "none": None}.items():
        shrink = "nw.shrink=1" if mistake in ("reclaim", "none") else ""
        provoke = "nw.provoke=1" if mistake in ("contig", "kthread", "none") else ""
        lines = boot(
            f"mistake-{mistake}",
            build.kernel("mistakes"),
            build.initramfs(),
            "mistake",
            mem=512,
            until=wanted,
            append=f"mistake={mistake} ignore_loglevel {shrink} {provoke} {quarantine('debug')}",
            strict=wanted is None,
        )
        found = [line for line in lines if wanted and re.search(wanted, line)]
        require(found or wanted is None, f"mistake {mistake}: nothing complains of it")
        if wanted is None:
            count_ok(lines, 5, "mistakes, without one")
        print(f"          {mistake:8} {found[0] if found else 'no complaint'}", flush=True)


# Tables of the mapping that sorter.c holds: 64 MiB, 2 MiB each.
HELD_TABLES = 32


def in_order(kind, what, append):
    """Every table of a mapping lies where its region is: after touches in random order, and of huge pages split so."""
    _, _, found = outside.walk(
        kind, 0, mib=2 * HELD_TABLES, append=f"nw.corunners=1 nw.sorted=1 nw.sorter={what} {append}"
    )
    levels = 4 + (kind in FIVE_LEVELS)
    require(found[0][0] == levels, f"sorted {what}: {found[0][0]} levels, {levels} expected")
    log = (build.run_folder() / f"outside-{kind}-0.log").read_text(errors="replace")
    regions = [
        (int(level), int(start, 16), int(end, 16), int(pfn, 16) << 12)
        for level, start, end, pfn in re.findall(r"^REGION \d+ (\d) (\w+) (\w+) (\w+) ", log, re.MULTILINE)
    ]
    base = 1 << 44
    tables = {va: gpa for level, va, gpa, _ in found if level == 1 and base <= va < base + HELD_TABLES * (2 << 20)}
    region = [r for r in regions if r[0] == 1 and r[1] <= base < r[2]]
    print(
        f"          sorted {what}: {len(tables)} tables from outside, {len(regions)} regions of the process: {region}"
    )
    require(len(tables) == HELD_TABLES and len(region) == 1, f"sorted {what}: not one region: {regions}")
    _, start, end, first = region[0]
    require(end - start >= HELD_TABLES * (2 << 20), f"sorted {what}: the region ends at {end:#x}")
    wrong = [hex(va) for va, gpa in tables.items() if gpa != first + (va - start) // (2 << 20) * 4096]
    require(not wrong, f"sorted {what}: out of place: {wrong}")


def from_outside(kind):
    """The guest's own figure against one made from its memory file, and where its page tables lie."""
    for mode, append in ((0, "hugegpt=off"), (2, "hugegpt=force")):
        inside, distribution, found = outside.walk(kind, mode, append=append)
        groups = sum(distribution)
        mean = sum((i + 1) * n for i, n in enumerate(distribution)) / groups
        regions = {gpa >> 21 for _, _, gpa, _ in found}
        print(
            f"          vm.ptemagnet={mode} {append}: mean {mean:.3f} of {groups} groups from outside, "
            f"{inside['mean']:.3f} from inside; "
            f"{len(found)} table pages in {len(regions)} blocks of 2 MiB"
        )
        require(distribution == inside["distribution"], f"outside: {distribution} is not {inside['distribution']}")
        require(mode == 0 or mean < METRIC_PATCHED_MAX, f"outside: {mean} with reservations")
        require(mode == 0 or len(regions) <= 2, f"outside: page tables in {len(regions)} blocks with the pool")
    trace = build.run_folder() / "outside.trace"
    _, _, found = outside.walk(kind, 2, mib=16, trace=trace)
    data = trace.read_bytes()
    agree = len(outside.agreeing(found, data))
    differ = len(data) // 16 - agree
    print(f"          trace: {agree} accesses agree with the page tables, {differ} do not")
    require(agree > 90000 and differ < agree / 100, f"outside: trace and page tables disagree: {agree} / {differ}")


# What checkpatch --strict says of things that the kernel writes so everywhere: that MAINTAINERS may have to know of
# files (it does from the first patch of each series on), names of page flags, the macros of trace events, sizes
# that are not bits, kunit_test_suite() below its struct, and that pte_alloc() and its like are macros that use an
# argument twice.
CHECKPATCH_IGNORED = (
    "MACRO_ARG_REUSE,FILE_PATH_CHANGES,CAMELCASE,OPEN_ENDED_LINE,PARENTHESIS_ALIGNMENT,BIT_MACRO,LINE_SPACING"
)


def checkpatch():
    tree = build.source("nestwalk")
    for p in build.patches():
        r = subprocess.run(
            [
                "perl",
                tree / "scripts/checkpatch.pl",
                "--strict",
                "--terse",
                "--max-line-length=100",
                "--ignore",
                CHECKPATCH_IGNORED,
                p,
            ],
            stdout=subprocess.PIPE,
            text=True,
            cwd=tree,
            check=False,
        )
        require(r.returncode == 0, f"checkpatch: {p.name}\n{r.stdout}")
    print(f"          checkpatch: {len(build.patches())} patches clean")


def manual():
    """The pages in linux/man name just the series' constants, their examples compile, and groff has no complaint."""
    pages = sorted((build.LINUX / "man").glob("*.[1-9]*"))
    build.use(*pages)
    header = build.source("nestwalk") / "include/uapi/linux/prctl.h"
    defined = set(re.findall(r"#\s*define (PR_\w*PTEMAGNET\w*)", header.read_text()))
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    named = {name for text in texts.values() for name in re.findall(r"PR_\w*PTEMAGNET\w*", text)}
    require(
        named == defined, f"manual: constants {sorted(named ^ defined)} are in the pages only, or in the header only"
    )
    for page, text in texts.items():
        title = re.search(r"^\.TH (\S+) (\S+) ", text, re.MULTILINE)
        require(
            title and f"{title[1]}.{title[2]}" == page.name, f"manual: {page.name}: its title is {title and title[0]}"
        )
        for example in re.findall(r"^\.EX\n(.*?)^\.EE$", text, re.MULTILINE | re.DOTALL):
            source = build.run_folder() / f"{page.name}.c"
            # As a roff program has it: \\& is nothing, \\[rs] a backslash.
            source.write_text(example.replace("\\&", "").replace("\\[rs]", "\\"))
            build.run(
                "gcc",
                "-std=c11",
                "-D_GNU_SOURCE",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-include",
                header,
                "-fsyntax-only",
                source,
            )
    # Warnings of groff, and of man where it is there too, are on standard error, with status 0.
    checkers = [
        c for c in (["groff", "-ww", "-man", "-Tutf8", "-z"], ["man", "--warnings", "-l"]) if shutil.which(c[0])
    ]
    for page in pages:
        for checker in checkers:
            r = subprocess.run(
                [*checker, page],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                env=os.environ | {"LC_ALL": "C.UTF-8"},
                check=False,
            )
            require(r.returncode == 0 and not r.stderr, f"manual: {' '.join(checker)} {page.name}\n{r.stderr}")
    by = " and ".join(c[0] for c in checkers) or "nothing (groff is not installed)"
    print(f"          manual: {len(pages)} pages, checked by {by}")


# Of the kernel's own tests of mm/vma.c in user space: how many there are.
VMA_OK = 15
# 6.12.117's stand-in for the kernel's headers lacks this, so that its tests do not build, without the series either.
VMA_CLOSE = "vma_close(vma)=do{if((vma)->vm_ops&&(vma)->vm_ops->close)(vma)->vm_ops->close(vma);}while(0)"


def vma_tests():
    """tools/testing/vma, which includes mm/vma.c: it has to build with the series, without a warning of its own."""
    said = {}
    for kind in ("stock", "nestwalk"):
        tree, copy = build.source(kind), build.run_folder() / f"vma-{kind}"
        # What it includes is relative to it.
        copy.mkdir()
        for part in ("include", "lib", "mm", "tools"):
            build.run("cp", "-al", tree / part, copy / part)
        folder = copy / "tools/testing/vma"
        out = build.run("make", f"CC=gcc '-D{VMA_CLOSE}'", cwd=folder)
        # Without numbers of lines, which the series changes.
        said[kind] = {re.sub(r":\d+", "", line) for line in out.splitlines() if "warning:" in line}
        tests = build.run("./vma", cwd=folder).splitlines()[-1]
        print(f"          tools/testing/vma, {kind}: {tests}")
        require(tests == f"{VMA_OK} tests run, {VMA_OK} passed, 0 failed.", f"vma: {kind}: {tests}")
        shutil.rmtree(copy)
    require(said["nestwalk"] <= said["stock"], f"vma: warnings: {said['nestwalk'] - said['stock']}")


# What KUnit suites are called where they run, by their symbols.
KUNIT_SYMBOLS = {
    "part_test_suite": "ptemagnet-part",
    "pool_test_suite": "hugegpt-pool",
    "sorted_test_suite": "sorted-tables",
}


def each():
    """The series up to each of its patches is compiled without a warning, boots, runs programs, and is shut down."""
    kunit_ok = 0
    for patch, kernel, said in build.kernels_of_each_patch():
        warnings = [line for line in said.splitlines() if "warning:" in line]
        require(not warnings, f"each: {patch.name}: " + "\n".join(warnings))
        symbols = {line.split()[-1] for line in build.run("nm", kernel).splitlines()}
        suites = [suite for symbol, suite in KUNIT_SYMBOLS.items() if symbol in symbols]
        lines = boot(
            f"each-{patch.name.partition('-')[0]}",
            kernel,
            build.initramfs(),
            "each",
            mem=1024,
            append=f"kunit.enable=1 hugegpt=force nw.suites={','.join(suites)}",
        )
        kernel.unlink()
        ok = [line for line in lines if line.startswith("ok ")]
        kunit_ok = sum("kunit" in line for line in ok)
        print(f"          {patch.name}: {len(ok)} ok, {kunit_ok} of them KUnit's")
        wanted = 1 + 14 * ("part_create" in symbols) + ("hugegpt_setup" in symbols)
        require(len(ok) - kunit_ok == wanted, f"each: {patch.name}: {len(ok) - kunit_ok} tests ran, {wanted} expected")
    # Unless NESTWALK_EACH_TO ended it before.
    require(
        patch != build.patches()[-1] or kunit_ok == KUNIT_OK,
        f"each: {kunit_ok} KUnit tests ran with the whole series, {KUNIT_OK} expected",
    )


class Step(typing.NamedTuple):
    """What a suite runs as a process of its own."""

    name: str
    run: typing.Callable[[], None]
    # CPUs that it keeps busy. Others run beside it as long as there are more.
    cpus: int = 1
    # Debian's packages that it needs besides, as in build.PACKAGES.
    packages: typing.Mapping = {}


CHECK = [
    Step("checkpatch", checkpatch),
    Step("manual", manual),
    Step("kunit", lambda: kunit("nestwalk"), 2),
    Step("ptemagnet", lambda: ptemagnet("nestwalk")),
    Step("gate", lambda: gate("nestwalk"), 2),
    Step("sorted", lambda: sorted_tables("nestwalk"), 2),
    Step("nested npt", lambda: nested_hugegpt(NPT, "npt")),
]
# With Debian's own configuration.
DEBIAN = (
    [
        Step("kunit, debian", lambda: kunit("debian"), 2),
        Step("ptemagnet, debian", lambda: ptemagnet("debian")),
        Step("pressure, debian", lambda: pressure_of_each_lru("debian")),
        Step("balancing, debian", lambda: balancing("debian", 60), 2),
        Step("nested npt, debian", lambda: nested_hugegpt(NPT, "npt-debian", kind="debian")),
        Step("stress, debian", lambda: stress("debian", 60, "preempt=full"), 2),
        Step("sorted, debian", lambda: sorted_tables("debian"), 2),
    ]
    if build.RELEASE.debian
    else []
)
# The kernel's own tests in user space of mm/vma.c, which 6.1 has not.
VMA = [Step("vma in user space", vma_tests, packages=build.VMA_PACKAGES)] if build.RELEASE.vma_tests else []
# What breaks first comes first, but for steps that wait until enough CPUs are free.
TEST = [step for step in CHECK if not step.name.startswith("nested")] + [
    Step("kunit, debug", lambda: kunit("debug"), 2),
    Step("stress, debug", lambda: stress("debug", 120), 2),
    Step("ptemagnet, debug", lambda: ptemagnet("debug")),
    Step("sorted, debug", lambda: sorted_tables("debug"), 2),
    Step("mistakes", complains, 2),
    Step("stress sorted, debug", lambda: stress("debug", 120, "sorted_page_tables=2"), 2),
    Step("stress", lambda: stress("nestwalk", 60), 2),
    Step("stress sorted", lambda: stress("nestwalk", 60, "sorted_page_tables=2"), 2),
    Step("nested npt, 2 CPUs", lambda: nested_hugegpt(NPT, "npt-smp", 2)),
    Step("nested shadow", lambda: nested_hugegpt(SHADOW, "shadow")),
    Step("QEMU in the host", lambda: qemu_bit(vmm.upstream())),
    Step("compaction", lambda: compaction("nestwalk")),
    Step("numa", lambda: numa("nestwalk")),
    Step("sorted, two nodes", lambda: sorted_numa("nestwalk"), 2),
    Step("pressure", lambda: pressure("nestwalk")),
    Step("oom", oom),
    Step("offline", lambda: offline("nestwalk")),
    Step("hugegpt pool", lambda: pool("nestwalk")),
    Step("instructions", instructions),
    Step("crowd", lambda: crowd("nestwalk")),
    Step("clears once", lambda: clears_once("nestwalk")),
    Step("variant", variant),
    Step("from outside", lambda: from_outside("nestwalk"), 2),
    Step("nested on a stock host", lambda: nested_stock_host(NPT)),
    Step("scaling", scaling),
    *VMA,
]
# Builds QEMU, too.
QEMU = [Step("QEMU with the patch", lambda: qemu_bit(vmm.patched(), patched=True), packages=vmm.PACKAGES)]
# The series patch by patch.
EACH = [Step("each", each, 2)]
EVERYTHING = [*TEST, *(step for step in CHECK if step not in TEST), *DEBIAN, *QEMU, *EACH]
SUITES = {"check": CHECK, "test": TEST, "debian": DEBIAN, "qemu": QEMU, "each": EACH, "everything": EVERYTHING}


def run_step(suite, name):
    """One step, in this process."""
    step, begun = next(s for s in SUITES[suite] if s.name == name), time.monotonic()
    try:
        step.run()
    except Failure as e:
        print(f"FAILED    {name}: {e}")
        return 1
    # A part of the series is no record of it.
    if os.environ.get("NESTWALK_RECORD") and not any(key.startswith("NESTWALK_EACH_") for key in os.environ):
        record.write(name, sum(os.times()[:4]), time.monotonic() - begun)
    return 0


class Running:
    """A step that is under way."""

    def __init__(self, suite, step):
        self.step, self.begun = step, time.monotonic()
        self.output = tempfile.TemporaryFile()  # noqa: SIM115, closed with the step
        folder = build.run_folder() / re.sub(r"\W+", "-", step.name)
        self.process = subprocess.Popen(
            [sys.executable, "-B", __file__, "step", suite, step.name],
            stdout=self.output,
            stderr=subprocess.STDOUT,
            env=os.environ | {build.STEP_FOLDER: str(folder)},
        )

    def report(self, status, usage):
        """It has ended.

        Prints what it said, and what it took, of which CPU time says more on a busy machine. Returns that.
        """
        self.process.returncode = os.waitstatus_to_exitcode(status)
        self.output.seek(0)
        sys.stdout.write(self.output.read().decode(errors="replace"))
        cpu = usage.ru_utime + usage.ru_stime
        print(f"[{time.monotonic() - self.begun:6.1f} s, CPU {cpu:6.1f} s] {self.step.name}", flush=True)
        return cpu

    def stop(self):
        # As if somebody had pressed Ctrl-C: it then ends its guests.
        self.process.send_signal(signal.SIGINT)
        self.process.wait()


def run_suite(suite, only):
    """The steps in their order, several at once where there are CPUs for them."""
    if not SUITES[suite]:
        print(f"{suite}: with LINUX={build.RELEASE.name} there is no such suite", file=sys.stderr)
        return 2
    waiting = [step for step in SUITES[suite] if not only or step.name in only]
    for name in set(only) - {step.name for step in waiting}:
        print(f"no step '{name}'; there are: {'; '.join(step.name for step in SUITES[suite])}", file=sys.stderr)
        return 2
    build.deps(
        dict(collections.ChainMap(*(step.packages for step in waiting))), any(step in DEBIAN for step in waiting)
    )
    begun, cpu, failed, running = time.monotonic(), 0, [], {}
    free = cpus = os.cpu_count() or 1
    try:
        while waiting or running:
            while step := next((s for s in waiting if min(s.cpus, cpus) <= free), None):
                waiting.remove(step)
                free -= min(step.cpus, cpus)
                one = Running(suite, step)
                running[one.process.pid] = one
                print(f"          {step.name} begins", flush=True)
            pid, status, usage = os.wait4(-1, 0)
            one = running.pop(pid)
            free += min(one.step.cpus, cpus)
            cpu += one.report(status, usage)
            if one.process.returncode:
                failed.append(one.step.name)
    finally:
        for one in running.values():
            one.stop()
    print(
        f"{'FAILED: ' + ', '.join(failed) if failed else 'ALL PASS'} in {time.monotonic() - begun:.0f} s, "
        f"CPU {cpu:.0f} s"
    )
    return 1 if failed else 0


def main():
    verb, rest = sys.argv[1], sys.argv[2:]
    if verb == "deps":
        build.deps()
    elif verb == "kernel":
        build.deps(debian=rest[0] == "debian")
        print(build.compiled(rest[0]))
    elif verb == "step":
        return run_step(*rest)
    elif verb == "status":
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as other commands end that are piped into head
        record.report([step.name for step in EVERYTHING])
    else:
        return run_suite(verb, rest)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted")
