# SPDX-License-Identifier: GPL-2.0
"""Debian's QEMU with the series' patch (linux/qemu): the VMM that answers a guest with HugeGPT."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import build

# Of Debian's package of its source.
VERSION = "1:7.2+dfsg-7+deb12u18"
PATCH = build.LINUX / "qemu/kvm-hgpt.patch"
PACKAGES = {
    "ninja-build": "ninja",
    "meson": "meson",
    "pkg-config": "pkg-config",
    "dpkg-dev": "dpkg-source",
    "libglib2.0-dev": Path("/usr/include/glib-2.0/glib.h"),
    "libpixman-1-dev": Path("/usr/include/pixman-1/pixman.h"),
    "libfdt-dev": Path("/usr/include/libfdt.h"),
}
# What a guest on a serial line needs. It is the same KVM code with all else of Debian's options.
OPTIONS = (
    "--target-list=x86_64-softmmu",
    "--without-default-features",
    "--enable-kvm",
    "--enable-fdt",
    "--disable-tools",
    "--disable-docs",
    "--disable-werror",
)


def fetch(folder):
    """Debian's source package, into a folder.

    Uses this machine's list of archives, and makes lists of sources in that folder only.
    """
    lists = folder / "lists"
    (lists / "partial").mkdir(parents=True)
    archives = build.run(
        "apt-get", "indextargets", "--format", "deb-src $(REPO_URI) $(RELEASE) $(COMPONENT)", "Identifier: Packages"
    )
    (folder / "sources.list").write_text(archives)
    apt = [
        "apt-get",
        "-o",
        f"Dir::Etc::SourceList={folder / 'sources.list'}",
        "-o",
        "Dir::Etc::SourceParts=/dev/null",
        "-o",
        f"Dir::State::Lists={lists}",
        "-o",
        "APT::Sandbox::User=root",
    ]
    build.run(*apt, "update")
    build.run(*apt, "source", "--download-only", f"qemu={VERSION}", cwd=folder)
    return next(folder.glob("*.dsc"))


def patched():
    """Builds it, where that was not done before, and returns the program: some 500 s of CPU time.

    $NESTWALK_QEMU is taken in its place.
    """
    if given := os.environ.get("NESTWALK_QEMU"):
        if not Path(given).is_file():
            sys.exit(
                f"NESTWALK_QEMU={given}: no such program; give a QEMU with {PATCH.name}, or nothing to have one built"
            )
        return Path(given)
    build.use(PATCH)
    with build.holding("lock-qemu"):
        home = build.BUILD / "qemu"
        stamp, program = home / "nestwalk.stamp", home / "build/qemu-system-x86_64"
        value = VERSION + build.digest(PATCH) + " ".join(OPTIONS)
        if build.stamped(stamp, value):
            return program
        shutil.rmtree(home, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=build.BUILD) as scratch:
            build.run("dpkg-source", "--no-check", "-x", fetch(Path(scratch)), home)
        build.run("patch", "-p1", "--fuzz=0", "-i", PATCH, cwd=home)
        (home / "build").mkdir()
        cc = ["--cc=ccache gcc"] if shutil.which("ccache") else []
        build.run("../configure", *OPTIONS, *cc, cwd=home / "build")
        build.run("ninja", f"-j{build.JOBS}", program.name, cwd=home / "build")
        stamp.write_text(value)
    return program


def upstream():
    """Debian's own, as it is installed."""
    return Path(shutil.which("qemu-system-x86_64"))


def files(program):
    """A QEMU with all that it needs, as entries of an initramfs: a host in which it runs is 50 MB larger."""
    libraries = [Path(w) for w in build.run("ldd", program).split() if w.startswith("/")]
    share = Path("/usr/share/qemu")
    firmware = [share / "pvh.bin", share / "kvmvapic.bin", share / "linuxboot_dma.bin"]
    bios = next(p for p in (share / "bios-256k.bin", Path("/usr/share/seabios/bios-256k.bin")) if p.exists())
    return [
        ("/usr/bin/qemu-system-x86_64", program, 755),
        (share / "bios-256k.bin", bios, 644),
        *((p, p, 755) for p in libraries),
        *((p, p, 644) for p in firmware),
    ]
