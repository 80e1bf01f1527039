# SPDX-License-Identifier: MIT OR Apache-2.0
"""A guest for tests: a stock kernel of this distribution, and an initramfs with the program ``guest/known.c``."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

KERNEL_PACKAGE = "linux-image-cloud-amd64"
APPEND = "console=ttyS0 panic=-1 quiet nokaslr tsc_early_khz=2000000 tsc=unstable no_timer_check"
SMALL, LARGE = 0x6000_0000_0000, 0x6100_0000_0000
SMALL_PAGES, LARGE_BYTES, ACCESSES = 2048, 2 << 20, 60_000
MASK = (1 << 64) - 1


def known() -> Iterator[tuple[int, bool]]:
    """The accesses that the program makes between its markers: address, and whether it is a store."""
    x = 1
    for n in range(ACCESSES, 0, -1):
        x ^= x << 13 & MASK
        x ^= x >> 7
        x ^= x << 17 & MASK
        yield SMALL + 8 * ((x >> 11) % (SMALL_PAGES * 512)), bool(x & 1)
        if n % 8 == 0:
            yield LARGE + 8 * ((x >> 11) % (LARGE_BYTES // 8)), True


def _tool(name: str) -> str:
    """The path of a program; without it the test is skipped."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(
            f"no {name} here, which makes or runs a guest for this test (Debian: apt install qemu-system-x86 gcc)"
        )
    return path


def kernel(folder: Path) -> Path:
    """A kernel to boot: ``NESTWALK_GUEST_KERNEL``, or Debian's for clouds, downloaded and unpacked, not installed."""
    given = os.environ.get("NESTWALK_GUEST_KERNEL")
    if given:
        return Path(given)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "nestwalk-tests"
    kept = sorted(cache.glob("boot/vmlinuz-*-cloud-amd64"))
    if kept:
        return kept[-1]
    show = subprocess.run([_tool("apt-cache"), "depends", KERNEL_PACKAGE], capture_output=True, text=True, check=False)
    names = [line.split()[1] for line in show.stdout.splitlines() if "Depends: linux-image-" in line]
    if not names:
        pytest.skip(f"no kernel for a guest: apt knows no {KERNEL_PACKAGE}; name one in NESTWALK_GUEST_KERNEL")
    done = subprocess.run(
        [_tool("apt-get"), "download", names[0]], cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )
    packages = list(folder.glob("*.deb"))
    if done.returncode != 0 or not packages:
        pytest.skip(f"no kernel for a guest: apt-get download {names[0]} failed; name one in NESTWALK_GUEST_KERNEL")
    subprocess.run([_tool("dpkg-deb"), "-x", packages[0], folder / "unpacked"], check=True)
    (cache / "boot").mkdir(parents=True, exist_ok=True)
    for found in (folder / "unpacked/boot").glob("vmlinuz-*"):
        shutil.copy(found, cache / "boot" / found.name)
    return kernel(folder)


def initramfs(folder: Path) -> Path:
    """The program as /init and /known, with a console."""
    program = folder / "known"
    source = Path(__file__).parent / "guest/known.c"
    done = subprocess.run(
        [_tool("gcc"), "-O2", "-static", "-o", program, source], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"the guest's program cannot be linked statically: {done.stderr.splitlines()[-1]}")
    code = program.read_bytes()
    parts = [
        _entry("dev", 0o040755, b""),
        _entry("dev/console", 0o020600, b"", device=(5, 1)),
        _entry("init", 0o100755, code),
        _entry("known", 0o100755, code),
        _entry("TRAILER!!!", 0, b""),
    ]
    path = folder / "initramfs.gz"
    path.write_bytes(gzip.compress(b"".join(parts), 1))
    return path


def _entry(name: str, mode: int, data: bytes, device: tuple[int, int] = (0, 0)) -> bytes:
    """An entry of a cpio archive in the "newc" format, which needs no root to be made."""
    fields = (0, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(name) + 1, 0)
    head = "070701" + "".join(f"{field:08X}" for field in fields) + name + "\0"
    return _padded(head.encode()) + _padded(data)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def command_line(
    folder: Path, *, memory: str = "640M", cpus: int = 1, cpu: str = "max", forever: bool = False
) -> list[str]:
    """QEMU's for such a guest; its program runs for ever if ``forever``."""
    _tool("qemu-system-x86_64")
    return [
        *("qemu-system-x86_64", "-M", "pc", "-accel", "tcg,thread=multi", "-cpu", cpu, "-smp", str(cpus), "-m", memory),
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-serial", f"file:{folder / 'console'}", "-kernel", str(kernel(folder))),
        *("-initrd", str(initramfs(folder)), "-append", APPEND + " -- forever" * forever),
    ]
