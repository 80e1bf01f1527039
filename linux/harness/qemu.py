# SPDX-License-Identifier: GPL-2.0
"""Boot a kernel under QEMU TCG (no KVM needed), keep its console, judge it."""

import itertools
import json
import re
import subprocess
import sys
import time

import build

# The TSC frequency is given, and the timer not checked: against an emulated PIT on a busy machine that is noise,
# and nested guests hang on it. A CPU that a busy machine does not run for half a minute is no stall of RCU's: what
# really hangs runs into the time limit of boot().
COMMAND_LINE = (
    "console=ttyS0 panic=-1 nokaslr reboot=t quiet tsc_early_khz=2000000 tsc=unstable no_timer_check "
    "rcupdate.rcu_cpu_stall_timeout=250 oops=panic"
)


class Failure(Exception):  # noqa: N818, it is what a test says
    """A test that did not hold; the message says which."""


# Seconds.
RESTART_MAX = 60

# By how many kB the kernel's objects may grow from before a test to after it, when what can be reclaimed has been:
# what tests leave in this kernel is up to 1.1 MB, of mounts, cgroups and swap. KASAN's quarantine is a
# thirty-second of memory.
SLAB_GROWTH_MAX = 4096


def command(kernel, initrd, test, *, cpu="max", cpus=2, mem=1024, append="", extra=(), icount=None, turns=False):
    """The QEMU command line of one boot.

    With icount=N the guest's clock goes on by 2^N ns an instruction; Linux then boots with one CPU only. With turns
    the guest's CPUs run one at a time, in turns that end with each interrupt.

    """
    build.use(build.LINUX / "guest" / f"t-{test}.sh")
    accel = [] if icount is None else ["-icount", f"shift={icount},sleep=off"]
    thread = "single" if turns or icount is not None else "multi"
    return [
        "qemu-system-x86_64",
        "-M",
        "pc",
        "-accel",
        f"tcg,thread={thread}",
        *accel,
        "-cpu",
        cpu,
        "-smp",
        f"{cpus},sockets={cpus}",
        "-m",
        str(mem),
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-serial",
        "stdio",
        "-no-reboot",
        "-kernel",
        str(kernel),
        "-initrd",
        str(initrd),
        "-append",
        f"{COMMAND_LINE} test={test} {append}",
        *extra,
    ]


def grown(lines):
    """What guest/grower.c has printed, with the pages that then were on per-CPU lists, where guest/lib.sh asked."""
    found = []
    for line in lines:
        if line.startswith("GROWN "):
            found.append({**json.loads(line[6:]), "per_cpu": 0})
        elif line.startswith("PER_CPU "):
            found[-1]["per_cpu"] = int(line[8:])
    return found


def console(log):
    return log.read_text(errors="replace").replace("\r", "").splitlines()


def has(log, pattern):
    return pattern is not None and any(re.search(pattern, line) for line in console(log))


def wait(name, guest, log, timeout, until=None):
    """Until the guest is gone, or its console has the pattern.

    After DONE it has RESTART_MAX seconds: without NPT the emulator may spin there.
    """
    start, done = time.monotonic(), None
    while guest.poll() is None:
        now = time.monotonic()
        if now - start > timeout:
            raise Failure(f"{name}: no end after {timeout} s, see {log}")
        if has(log, until):
            return
        if done is None and any(line.startswith("DONE ") for line in console(log)):
            done = now
        if done is not None and now - done > RESTART_MAX:
            print(f"          {name}: done, but not gone {RESTART_MAX} s later")
            return
        time.sleep(0.5)


# Under KASAN the kernel, with or without the series, complains of an interrupt that comes while identify_cpu() has the
# width of addresses reset, at boot: KASAN then takes the address of a per-CPU variable for a wild one.
TOO_EARLY = "KASAN: wild-memory-access in rcu_is_watching"


def boot(name, kernel, initrd, test, *, timeout=1200, strict=True, until=None, again=False, **kw):
    """Boot, run the guest script t-TEST.sh, return the console lines.

    With a pattern for until, the guest ends when its console has that.

    Fails when the guest does not reach its end, when a test says "not ok", or when the
    kernel complained (lockdep, KASAN, bad page, ...). After an interrupt that came too early, it boots once again.

    """
    log, start = build.run_folder() / f"{name}.log", time.monotonic()
    with log.open("wb") as f:
        guest = subprocess.Popen(
            ["nice", "-n", "10", *command(kernel, initrd, test, **kw)],
            stdin=subprocess.DEVNULL,
            stdout=f,
            stderr=subprocess.STDOUT,
        )
        try:
            wait(name, guest, log, timeout, until)
        finally:
            guest.kill()
            guest.wait()
    lines = console(log)
    print(f"[{time.monotonic() - start:6.1f} s] booted {name}")
    sys.stdout.flush()
    if has(log, until):
        return lines
    at_boot = itertools.takewhile(lambda line: not line.startswith("UP "), lines)
    if not again and any(TOO_EARLY in line for line in at_boot):
        print(f"          {name}: an interrupt came while the CPU was being identified; again")
        return boot(name, kernel, initrd, test, timeout=timeout, strict=strict, until=until, again=True, **kw)
    if not any(line.startswith("DONE ") for line in lines):
        raise Failure(f"{name}: the guest did not reach its end, see {log}\n" + "\n".join(lines[-15:]))
    bad = []
    for number, line in enumerate(lines):
        if line.startswith(("not ok", "SPLAT")):
            said = itertools.takewhile(lambda before: before.startswith("# "), reversed(lines[:number]))
            bad += [*reversed([*said]), line]
    for before, after in (
        map(int, m.groups()) for line in lines if (m := re.match(r"SLAB (\d+) kB before, (\d+) kB after", line))
    ):
        if after - before > SLAB_GROWTH_MAX and "quarantine" not in kw.get("append", ""):
            bad.append(f"{before} kB of slab before the test, {after} kB after it")
    if strict and bad:
        raise Failure(f"{name}:\n  " + "\n  ".join(bad[:40]) + f"\n  see {log}")
    return lines


def boot_kind(kind, test, name=None, **kw):
    """Boot a kind of kernel with the programs of guest/. Its log is named by the test, or by name, and the kind."""
    return boot(f"{name or test}-{kind}", build.kernel(kind), build.initramfs(), test, **kw)
