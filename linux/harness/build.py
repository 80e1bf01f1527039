# SPDX-License-Identifier: GPL-2.0
"""Unpack, patch, configure and build the kernels, the guest programs and the initramfs.

Everything lands in one build directory (NESTWALK_LINUX_BUILD, default linux/build);
each step is skipped when its inputs have not changed. Several suites may use one
directory at once: those of one release build one at a time, and what a suite boots,
and what it writes while it runs, is in a folder of its own, run_folder().
"""

import atexit
import collections
import contextlib
import fcntl
import functools
import hashlib
import lzma
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import typing
from pathlib import Path

LINUX = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("NESTWALK_LINUX_BUILD", LINUX / "build")).resolve()


class Release(typing.NamedTuple):
    """A kernel that the series exists for."""

    name: str
    # Of Debian's package of its source.
    version: str
    # Below linux/: the folder of its patches.
    series: str
    # What its folders and fragments of configurations are named by, besides.
    suffix: str
    # Of its selftests of mm, below tools/testing/selftests.
    selftests: str
    # Whether Debian's own configuration is a kind of kernel here.
    debian: bool
    # Whether it has tests of mm/vma.c that are built in user space.
    vma_tests: bool

    @property
    def package(self):
        return f"linux-source-{self.name}"

    def tarball(self):
        """Debian's source, which the archive keeps for years."""
        return unpacked(self.package, self.version) / f"usr/src/{self.package}.tar.xz"

    @property
    def pristine(self):
        """Where the source is."""
        return BUILD / f"pristine{self.suffix}"

    def cloud(self):
        """Debian's configuration for virtual machines of clouds.

        Of whatever version: the archive has only the newest, and the build ends where an option that matters
        differs from it (unlike_debian).
        """
        package = f"linux-config-{self.name}"
        return unpacked(package) / f"usr/src/{package}/config.amd64_none_cloud-amd64.xz"


RELEASES = {
    r.name: r
    for r in (
        Release("6.1", "6.1.192-2", "patches", "", "vm", True, False),
        Release("6.12", "6.12.117-1~deb12u1", "patches-6.12", "-6.12", "mm", False, True),
    )
}
# What is meant where no other is named.
NAMED = os.environ.get("NESTWALK_LINUX", "6.1")
if NAMED not in RELEASES:
    print(f"LINUX={NAMED}: the series is not there for it; give one of {', '.join(RELEASES)}", file=sys.stderr)
    sys.exit(2)
RELEASE = RELEASES[NAMED]
PACKAGES = {
    "build-essential": "gcc",
    "make": "make",
    "flex": "flex",
    "bison": "bison",
    "bc": "bc",
    "libelf-dev": Path("/usr/include/libelf.h"),
    "cpio": "cpio",
    "xz-utils": "xz",
    "qemu-system-x86": "qemu-system-x86_64",
    "busybox-static": "busybox",
    "ccache": "ccache",
    "patch": "patch",
    "zstd": "zstd",
}
# What the kernel's tests in user space need besides.
VMA_PACKAGES = {"liburcu-dev": Path("/usr/include/x86_64-linux-gnu/urcu.h")}
# Debug checks are a second kernel; "stock" and "hugetlb" are the unpatched tree.
KINDS = {
    "stock": ["base"],
    "hugetlb": ["base", "hugetlb"],
    "nestwalk": ["base", "nestwalk"],
    "debug": ["base", "nestwalk", "debug"],
    "variant": ["base", "nestwalk", "variant"],
    # The debug kernel with deliberate mistakes, of which it has to complain: see mistakes().
    "mistakes": ["base", "nestwalk", "debug"],
    # On top of Debian's own: see compiled().
    "debian": ["debian", "nestwalk"],
}
# What QEMU boots through a boot stub, and not by its PVH entry.
BZIMAGES = ("debug", "mistakes", "variant", "debian")
# The modules of Debian's configuration that are built, in the order in which they are loaded.
MODULES = {
    "IRQ_BYPASS_MANAGER": "virt/lib/irqbypass.ko",
    "KVM": "arch/x86/kvm/kvm.ko",
    "KVM_AMD": "arch/x86/kvm/kvm-amd.ko",
}
UNPATCHED = ("stock", "hugetlb")
PROGRAMS = [
    "frag",
    "corun",
    "pmtest",
    "provoke",
    "stress",
    "toucher",
    "grower",
    "faultbench",
    "opbench",
    "minivmm",
    "hcprobe",
    "record",
    "superpages",
    "folios",
    "swapper",
    "sorter",
]
DIRECTORIES = ("bin", "dev", "proc", "sys", "tmp", "cg", "l2")
JOBS = os.environ.get("NESTWALK_JOBS", str(os.cpu_count() or 2))
# Logs of so many finished suites are kept.
RUNS_KEPT = 8
# In the environment of a suite's step: where its folder is to be.
STEP_FOLDER = "NESTWALK_STEP_FOLDER"
# Files below linux/ that this process has used, and that what it found out hangs on: see record.py.
USED = set()
# Locks that this process holds, and how often it has entered them.
_held = collections.Counter()


def use(*paths):
    USED.update(str(path.relative_to(LINUX)) for path in paths)


@contextlib.contextmanager
def holding(name):
    """Only one process at a time is in here, for a name; whoever is may enter again."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / name).open("w", encoding="utf-8") as lock:
        if not _held[name]:
            fcntl.flock(lock, fcntl.LOCK_EX)
        _held[name] += 1
        try:
            yield
        finally:
            _held[name] -= 1


def building():
    """Only one process changes what there is of this release in the build directory."""
    return holding(f"lock{RELEASE.suffix}")


def built(function):
    """Decorates what builds: one process at a time, and once a process for the same arguments."""

    @functools.cache
    @functools.wraps(function)
    def wrapper(*args):
        with building():
            return function(*args)

    return wrapper


@functools.cache
def run_folder():
    """This process's own folder below runs/, or in that of the suite whose step it is.

    When it ends, only its logs stay; of finished suites the last RUNS_KEPT do.
    """
    runs = BUILD / "runs"
    if step := os.environ.get(STEP_FOLDER):
        folder = Path(step)
        folder.mkdir()
        atexit.register(keep_logs, folder)
        return folder
    with holding("lock-runs"):
        folder = runs / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        folder.mkdir(parents=True)
        # Held for as long as the process lives, however it ends.
        lock = (folder / "lock").open("w", encoding="utf-8")
        fcntl.flock(lock, fcntl.LOCK_EX)
        finished = [f for f in sorted(runs.iterdir()) if not in_use(f)]
        for old in finished:
            keep_logs(old)
        for old in finished[:-RUNS_KEPT]:
            shutil.rmtree(old)
    # Refers to the lock, so that it stays open.
    atexit.register(lambda: (keep_logs(folder), lock.close()))
    return folder


def in_use(folder):
    """Whether the process whose folder this is still runs."""
    try:
        with (folder / "lock").open(encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


def keep_logs(folder):
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix != ".log":
            path.unlink()


def run(*args, **kw):
    """Run a command, show its output only when it fails."""
    kw.setdefault("cwd", BUILD)
    r = subprocess.run(
        [str(a) for a in args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **kw
    )
    if r.returncode:
        sys.stdout.write(r.stdout[-6000:])
        sys.exit(f"failed ({r.returncode}): {' '.join(map(str, args))}")
    return r.stdout


def missing_packages(packages):
    """Packages whose marker file or program is absent."""
    return [
        package
        for package, marker in packages.items()
        if not (marker.exists() if isinstance(marker, Path) else shutil.which(marker))
    ]


def deps(more=None, debian=False):
    """Install what is missing when root; otherwise say exactly what to install.

    With more: packages besides, as in PACKAGES; debian: Debian's configuration too.
    """
    packages = PACKAGES | (more or {})
    absent = missing_packages(packages)
    if absent:
        command = ["apt-get", "-o", "DPkg::Lock::Timeout=600", "install", "-y", "--no-install-recommends", *absent]
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            sys.exit("missing: " + " ".join(absent) + "\ninstall them first, as root:\n  " + " ".join(command))
        output = apt(command)
        if missing_packages(packages):
            sys.exit(output + "\nstill missing: " + " ".join(missing_packages(packages)))
    # Now, and not when the first step needs them.
    with building():
        if not (RELEASE.pristine / "unpacked").exists():
            RELEASE.tarball()
        if debian and RELEASE.debian:
            RELEASE.cloud()


def apt(command, **kw):
    """Run it, once more with new lists of packages if it fails and these can be had.

    Returns the end of what it had to say.
    """
    env = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    for again in (False, True):
        r = subprocess.run(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **kw
        )
        if r.returncode == 0 or again:
            break
        subprocess.run(
            ["apt-get", "update"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
        )
    return r.stdout[-3000:]


def installed(package):
    """The version of a package that is installed, "" if none is."""
    r = subprocess.run(
        ["dpkg-query", "-W", "-f", "${db:Status-Abbrev}${Version}", package],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    return r.stdout.removeprefix("ii ") if r.stdout.startswith("ii ") else ""


def unpacked(package, version=None):
    """Debian's package, of a version or of any: the folder that its files are below, which is / if it is installed.

    It is unpacked into the build folder else, and not installed: no version of a source may take the place of
    another, and with a configuration would come the source of its own version.
    """
    if shutil.which("dpkg-query") and (there := installed(package)) and version in (None, there):
        return Path("/")
    name = f"{package}={version}" if version else package
    folder = BUILD / "packages" / name.replace(":", "_")
    if folder.exists():
        return folder
    if not shutil.which("apt-get"):
        sys.exit(f"missing: {name}, unpacked into {folder} (dpkg-deb -x)")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        output = apt(["apt-get", "-o", "APT::Sandbox::User=root", "download", name], cwd=scratch)
        archives = list(Path(scratch).glob("*.deb"))
        if not archives:
            sys.exit(f"{output}\nstill missing: {name}, unpacked into {folder} (dpkg-deb -x)")
        run("dpkg-deb", "-x", archives[0], Path(scratch) / "whole")
        (Path(scratch) / "whole").rename(folder)
    return folder


def digest(*paths):
    """One hash over the names and contents of files."""
    h = hashlib.sha256()
    for p in paths:
        h.update(Path(p).name.encode() + b"\0" + Path(p).read_bytes())
    return h.hexdigest()


def stamped(stamp, value):
    return stamp.exists() and stamp.read_text() == value


def patches(release=RELEASE):
    """The series, in order."""
    series = LINUX / release.series / "series"
    return [series.parent / line for line in series.read_text().splitlines() if line and not line.startswith("#")]


def mistakes(release=RELEASE):
    """The patches of kind mistakes, on top of the series."""
    own = LINUX / "harness" / f"mistakes-{release.name}.patch"
    return [LINUX / "harness" / "mistakes.patch", *([own] if own.exists() else [])]


def wanted_patches(kind, release):
    if kind in UNPATCHED:
        return []
    return patches(release) + (mistakes(release) if kind == "mistakes" else [])


def base_folder(kind):
    """What trees and kernels are in.

    Kind mistakes has one of its own, with the names of kind debug in it, for the compiler cache.
    """
    return BUILD / kind if kind == "mistakes" else BUILD


@built
def source(kind, release=RELEASE):
    """The kernel tree of a kind: stock, or with the series applied (never fuzzily)."""
    base = base_folder(kind)
    base.mkdir(exist_ok=True)
    tree = base / (f"source-stock{release.suffix}" if kind in UNPATCHED else release.package)
    wanted = wanted_patches(kind, release)
    value = release.version + digest(*wanted)
    stamp = base / f"{tree.name}.stamp"
    if stamped(stamp, value):
        return tree
    pristine = release.pristine
    if not (pristine / "unpacked").exists():
        shutil.rmtree(pristine, ignore_errors=True)
        pristine.mkdir(parents=True)
        run("tar", "xf", release.tarball(), "-C", pristine, "--strip-components=1")
        (pristine / "unpacked").touch()
    fresh = base / (tree.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    run("cp", "-al", pristine, fresh)
    for p in wanted:
        # patch(1) writes a new file and renames it, so the hard links to the pristine tree stay intact.
        with p.open(encoding="utf-8") as text:
            run("patch", "-p1", "-s", "--fuzz=0", cwd=fresh, stdin=text)
    keep_times(tree, fresh)
    shutil.rmtree(tree, ignore_errors=True)
    fresh.rename(tree)
    stamp.write_text(value)
    return tree


def keep_times(old, new):
    """Give patched files that have not changed since the last build their old time stamps, so that make skips them."""
    if not old.exists():
        return
    for path in new.rglob("*"):
        if path.is_file() and path.stat().st_nlink == 1:
            before = old / path.relative_to(new)
            if before.exists() and before.read_bytes() == path.read_bytes():
                os.utime(path, ns=(before.stat().st_atime_ns, before.stat().st_mtime_ns))


def wanted_options(fragments):
    """The lines that set an option; a later fragment overrides an earlier one."""
    wanted = {}
    for line in (line for f in fragments for line in f.read_text().splitlines()):
        words = line.removeprefix("# ").replace("=", " ").split()
        if words and words[0].startswith("CONFIG_"):
            wanted[words[0]] = line
    return [line for line in wanted.values() if not line.startswith("#")]


@built
def kernel(kind, release=RELEASE):
    """What QEMU boots, built if need be: this run's own copy, which no later build changes."""
    image = compiled(kind, release)
    copy = run_folder() / f"{image.name}-{kind}{release.suffix}"
    shutil.copyfile(image, copy)
    return copy


@functools.cache
def stripped(kind):
    """The same without symbols, for an initramfs."""
    out = run_folder() / f"{kernel(kind).name}.stripped"
    run("strip", "-o", out, kernel(kind))
    return out


def fragment(name, release):
    """The file of a fragment: the release's own where there is one."""
    own = LINUX / "config" / f"{name}{release.suffix}.fragment"
    return own if own.exists() else LINUX / "config" / f"{name}.fragment"


def compiler(tree, out, base):
    """Make and its environment, for a kernel of a tree into a folder.

    Equal files below the same paths from base on come from the compiler cache.
    """
    env = dict(
        os.environ,
        KBUILD_BUILD_USER="nestwalk",
        KBUILD_BUILD_HOST="nestwalk",
        KBUILD_BUILD_TIMESTAMP="2026-01-01 00:00:00 UTC",
    )
    # Beyond the build folder, so that a new clone does not begin with an empty one.
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    env.setdefault("CCACHE_DIR", str(caches / "nestwalk" / "ccache"))
    env.setdefault("CCACHE_BASEDIR", str(base))
    env.setdefault("CCACHE_NOHASHDIR", "1")
    env.setdefault("CCACHE_MAXSIZE", "5G")
    return ["nice", "-n", "10", "make", "-s", "-C", tree, f"O={out}"], env


def configure(tree, out, fragments, make, env, *, base=None):
    """Make a configuration on top of base, the text of a whole one, or of the smallest there is. Return its lines."""
    out.mkdir(parents=True, exist_ok=True)
    if base is None:
        run(*make, "tinyconfig", env=env)
        run(tree / "scripts/kconfig/merge_config.sh", "-m", "-O", out, out / ".config", *fragments, cwd=tree, env=env)
    else:
        # Of two values of an option the later one counts. merge_config.sh starts several processes for each line.
        (out / ".config").write_text("\n".join([base, *(f.read_text() for f in fragments)]))
    run(*make, "olddefconfig", env=env)
    return (out / ".config").read_text().splitlines()


def compile_kernel(make, target, env):
    """Returns what make and the compiler had to say."""
    cc = ["CC=ccache gcc"] if shutil.which("ccache") else []
    return run(*make, f"-j{JOBS}", *cc, target, env=env)


def debian_config(release):
    """Debian's configuration. Of what it has as modules, only MODULES are left."""
    if not release.debian:
        print(f"debian: with LINUX={release.name} there is no kernel of Debian's configuration", file=sys.stderr)
        sys.exit(2)
    text = lzma.decompress(release.cloud().read_bytes()).decode()
    return re.sub(
        r"^CONFIG_(\w+)=m$",
        lambda m: m[0] if m[1] in MODULES else f"# CONFIG_{m[1]} is not set",
        text,
        flags=re.MULTILINE,
    )


# Where the kernel's options for memory, preemption and hardening are, and those of them that only its drivers
# select in Debian's configuration, or memory errors and page_owner here.
KCONFIG = (
    "mm/Kconfig",
    "mm/Kconfig.debug",
    "kernel/Kconfig.preempt",
    "kernel/Kconfig.hz",
    "kernel/Kconfig.locks",
    "security/Kconfig.hardening",
    "lib/Kconfig.kasan",
)
SELECTED = {
    "BALLOON_COMPACTION",
    "GET_FREE_REGION",
    "HMM_MIRROR",
    "MEMORY_BALLOON",
    "VMAP_PFN",
    "ZSMALLOC",
    "ARCH_SUPPORTS_MEMORY_FAILURE",
    "PAGE_EXTENSION",
}


def unlike_debian(tree, config, base, fragments):
    """Options of KCONFIG that a configuration has otherwise than Debian's, but for those that a fragment sets.

    Sorted.
    """
    names = {
        name
        for file in KCONFIG
        for name in re.findall(r"^\s*(?:menu)?config (\w+)", (tree / file).read_text(), re.MULTILINE)
    }
    ours, debian = ({line for line in lines if re.match(r"CONFIG_\w+=", line)} for lines in (config, base.splitlines()))
    differ = {line.partition("=")[0].removeprefix("CONFIG_") for line in ours ^ debian}
    chosen = set(re.findall(r"^(?:# )?CONFIG_(\w+)", "\n".join(f.read_text() for f in fragments), re.MULTILINE))
    return sorted((differ & names) - chosen - SELECTED)


@built
def compiled(kind, release=RELEASE):
    """Configure and build one kernel; returns the vmlinux, or the bzImage where QEMU needs that."""
    base = debian_config(release) if kind == "debian" else None
    tree, out = (
        source(kind, release),
        base_folder(kind) / f"kernel-{'debug' if kind == 'mistakes' else kind}{release.suffix}",
    )
    fragments = [fragment(f, release) for f in KINDS[kind]]
    use(*fragments, *(mistakes(release) if kind == "mistakes" else []))
    stamp = out / "nestwalk.config.stamp"
    make, env = compiler(tree, out, base_folder(kind))
    value = (
        (hashlib.sha256(base.encode()).hexdigest() if base else "")
        + digest(*fragments)
        + digest(*wanted_patches(kind, release))
    )
    if not stamped(stamp, value):
        config = configure(tree, out, fragments, make, env, base=base)
        for line in wanted_options(fragments):
            if line not in config:
                sys.exit(f"{kind}: option lost in configuration: {line}")
        if base and (others := unlike_debian(tree, config, base, fragments)):
            sys.exit(f"{kind}: not as Debian has it, by no fragment: {', '.join(others)}")
        stamp.write_text(value)
    target, image = ("bzImage", "arch/x86/boot/bzImage") if kind in BZIMAGES else ("vmlinux", "vmlinux")
    compile_kernel(make, target, env)
    if base:
        compile_kernel(make, "modules", env)
    return out / image


def modules(kind, release=RELEASE):
    """KVM's modules as entries of an initramfs, where it is not built in; their names sort as they are loaded."""
    if kind != "debian":
        return ()
    out = compiled(kind, release).parents[3]
    return tuple((f"/modules/{i}.ko", out / path, 644) for i, path in enumerate(MODULES.values()))


def kernels_of_each_patch(release=RELEASE):
    """For each patch of the series in its order: it, a kernel with it and those before it, and what make had to say.

    One tree, to which one patch after the other is applied, so that make compiles what the patch changes. Tree and
    kernel are named as those of kind nestwalk, for the compiler cache. With NESTWALK_EACH_FROM=N in the environment
    those before the Nth are only applied, and NESTWALK_EACH_TO=N ends with the Nth.

    """
    first, last = (
        int(os.environ.get(f"NESTWALK_EACH_{end}", default)) for end, default in (("FROM", "1"), ("TO", "999"))
    )
    base = BUILD / "each"
    tree, out = base / source("nestwalk", release).name, base / f"kernel-nestwalk{release.suffix}"
    pristine, fragments = BUILD / f"pristine{release.suffix}", [fragment(f, release) for f in KINDS["nestwalk"]]
    use(*fragments)
    make, env = compiler(tree, out, base)
    texts = {p: p.read_text(encoding="utf-8") for p in patches(release)}
    options = {
        p: {f"CONFIG_{name}" for name in re.findall(r"^\+config (\w+)", text, re.MULTILINE)}
        for p, text in texts.items()
    }
    later = set.union(*options.values())
    base.mkdir(exist_ok=True)
    with (base / "lock").open("w", encoding="utf-8") as lock:
        # One at a time, but beside what is built elsewhere.
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(tree, ignore_errors=True)
        run("cp", "-al", pristine, tree)
        # In the kernel's folder there may be objects of the last patch: what the series changes has to look newer.
        for name in {name for text in texts.values() for name in re.findall(r"^--- a/(\S+)", text, re.MULTILINE)}:
            if (pristine / name).exists():
                # Not the hard link, which is the pristine tree's file as well.
                (tree / name).unlink()
                shutil.copyfile(pristine / name, tree / name)
                shutil.copymode(pristine / name, tree / name)
        for number, patch in enumerate(list(texts)[:last], 1):
            run("patch", "-p1", "-s", "--fuzz=0", "-i", patch, cwd=tree)
            later -= options[patch]
            if number < first:
                continue
            config = configure(tree, out, fragments, make, env)
            for line in wanted_options(fragments):
                if line not in config and line.split("=")[0] not in later:
                    sys.exit(f"{patch.name}: option lost in configuration: {line}")
            said = compile_kernel(make, "vmlinux", env)
            copy = run_folder() / f"vmlinux-{patch.name.partition('-')[0]}"
            shutil.copyfile(out / "vmlinux", copy)
            yield patch, copy, said


@built
def plugin(name):
    """A QEMU plugin of this directory as a shared object."""
    src, out = LINUX / "harness" / f"{name}.c", BUILD / f"{name}{RELEASE.suffix}.so"
    if not out.exists() or out.stat().st_mtime < src.stat().st_mtime:
        run("gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", out, src)
    return out


@built
def guest_programs():
    """Static test programs for the initramfs."""
    out = guest_folder()
    out.mkdir(parents=True, exist_ok=True)
    headers = list((LINUX / "guest").glob("*.h"))
    for name in PROGRAMS:
        src, exe = LINUX / "guest" / f"{name}.c", out / name
        if exe.exists() and exe.stat().st_mtime > max(f.stat().st_mtime for f in (src, *headers)):
            continue
        run("gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-pthread", "-o", exe, src)
    return [out / name for name in PROGRAMS] + [selftest(), kvm_selftest()]


def guest_folder():
    return BUILD / f"guest{RELEASE.suffix}"


def selftest():
    """The series' own program among the selftests of mm."""
    tests, exe = source("nestwalk") / "tools/testing/selftests" / RELEASE.selftests, guest_folder() / "ptemagnet"
    sources = [tests / "ptemagnet.c", tests / "vm_util.c"]
    if not exe.exists() or exe.stat().st_mtime < max(f.stat().st_mtime for f in sources):
        # As the folder's Makefile has it on 6.12, whose vm_util.c needs newer headers than Debian 12 has; 6.1's
        # needs none.
        headers = [] if RELEASE.name == "6.1" else ["-isystem", source("nestwalk") / "tools/include/uapi"]
        run("gcc", "-O2", "-Wall", "-static", *headers, "-o", exe, *sources)
    return exe


def kvm_selftest():
    """The series' program of tools/testing/selftests/kvm, with that folder's library and the tree's headers."""
    tree, exe = source("nestwalk"), guest_folder() / "hgpt_test"
    tests = tree / "tools/testing/selftests/kvm"
    library = [*sorted((tests / "lib").glob("*.c")), *sorted((tests / "lib/x86_64").glob("*.[cS]"))]
    sources = [tests / "x86_64/hgpt_test.c", *(f for f in library if f.name != "perf_test_util.c")]
    stamp, value = BUILD / f"hgpt_test{RELEASE.suffix}.stamp", digest(*sources, *patches())
    if not exe.exists() or not stamped(stamp, value):
        folders = [
            tree / "tools/include",
            tree / "tools/arch/x86/include",
            tree / "include/uapi",
            tree / "arch/x86/include/uapi",
            tests / "include",
            tests / "include/x86_64",
            tests / "lib/x86_64",
            tests.parent,
        ]
        # As the folder's Makefile has it, but for headers that are not installed. Its own memcmp() must not become
        # a call of memcmp().
        run(
            "gcc",
            "-O2",
            "-std=gnu99",
            "-Wall",
            "-D_GNU_SOURCE=",
            "-D__packed=__attribute__((packed))",
            "-U_FORTIFY_SOURCE",
            "-fno-stack-protector",
            "-fno-PIE",
            "-no-pie",
            "-static",
            "-pthread",
            "-ffreestanding",
            *(f"-I{f}" for f in folders),
            "-o",
            exe,
            *sources,
        )
        stamp.write_text(value)
    return exe


@built
def archiver():
    """The kernel's own gen_init_cpio, which needs no root for device nodes."""
    gen = BUILD / f"gen_init_cpio{RELEASE.suffix}"
    if not gen.exists():
        run("gcc", "-O2", "-o", gen, source("nestwalk") / "usr/gen_init_cpio.c")
    return gen


@functools.cache
def initramfs(name="initramfs", extra=()):
    """A compressed cpio with busybox, the programs, the scripts, and extra (path, file, mode) entries."""
    gen = archiver()
    scripts = sorted((LINUX / "guest").glob("*.sh"))
    lines = [f"dir /{d} 755 0 0" for d in DIRECTORIES]
    lines += [
        "nod /dev/console 600 0 0 c 5 1",
        "nod /dev/null 666 0 0 c 1 3",
        f"file /bin/busybox {shutil.which('busybox')} 755 0 0",
        "slink /bin/sh busybox 777 0 0",
        f"file /init {LINUX}/guest/init 755 0 0",
    ]
    lines += [f"file /bin/{p.name} {p} 755 0 0" for p in (*guest_programs(), *scripts)]
    folders = (
        {folder for path, _, _ in extra for folder in Path(path).parents}
        - {Path(f"/{d}") for d in DIRECTORIES}
        - {Path("/")}
    )
    lines += [f"dir {folder} 755 0 0" for folder in sorted(folders)]
    lines += [f"file {path} {file} {mode} 0 0" for path, file, mode in extra]
    spec, out = run_folder() / f"{name}.list", run_folder() / f"{name}.cpio.gz"
    spec.write_text("\n".join(lines) + "\n")
    with out.open("wb") as f:
        cpio = subprocess.run([gen, spec], stdout=subprocess.PIPE, check=True).stdout
        subprocess.run(["gzip", "-1"], input=cpio, stdout=f, check=True)
    return out
