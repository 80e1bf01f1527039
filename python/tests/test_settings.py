# SPDX-License-Identifier: MIT OR Apache-2.0
"""The lines of settings.md and of ``techniques.toml`` are taken by the kernel, QEMU and libvirt that are here."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support import REPOSITORY
from test_docs_blocks import blocks

from nestwalk import techniques

PAGE = REPOSITORY / "docs" / "settings.md"
TEXT = PAGE.read_text(encoding="utf-8")
LINES = [
    line
    for text in (TEXT, *(step.line for one in techniques.known().values() for step in (*one.get, *one.check)))
    for line in text.splitlines()
]
HUGE = Path("/sys/kernel/mm/transparent_hugepage")
FILES = sorted({found for line in LINES for found in re.findall(r"/sys/kernel/mm/[\w/.*-]*[\w*]", line)})
NO_ROOM = re.compile("cannot allocate memory|unable to map backing store|not enough", re.IGNORECASE)
"""What QEMU says of an option that it took, where no huge page is free."""


@pytest.mark.skipif(not (HUGE / "hugepages-32kB/stats/nr_anon").exists(), reason="the kernel is older than Linux 6.12")
@pytest.mark.parametrize("file", FILES)
def test_a_file_of_sysfs_is_in_this_kernel(file: str) -> None:
    assert list(Path("/").glob(file.lstrip("/"))), file


@pytest.mark.skipif(not (HUGE / "khugepaged").exists(), reason="this kernel has no khugepaged")
def test_every_file_of_khugepaged_is_explained_and_has_no_other_name() -> None:
    section = TEXT.partition("## khugepaged")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert len(named) >= 7
    for name in named:
        assert (HUGE / "khugepaged" / name).exists(), name


def qemu(arguments: str) -> str:
    """What QEMU says of arguments (in a VM that never begins); empty if it takes them."""
    binary = shutil.which("qemu-system-x86_64")
    if binary is None:
        pytest.skip("qemu-system-x86_64 is not here")
    small = arguments.replace("16G", "64M")
    done = subprocess.run(
        [binary, "-S", "-display", "none", "-nodefaults", "-monitor", "stdio", *small.split()],
        input="quit\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return "" if done.returncode == 0 else done.stderr


QEMU = sorted(
    {block.text.strip() for block in blocks(PAGE) if block.text.startswith("-m ")}
    | {step.line for one in techniques.known().values() for step in one.get if step.where.startswith("QEMU")}
)


@pytest.mark.parametrize("arguments", QEMU)
def test_qemu_takes_the_options(arguments: str) -> None:
    memory = "" if "-m " in arguments or "-object" not in arguments else "-m 16G "
    # The processor `host` needs KVM; `max` has the same properties.
    said = qemu(memory + arguments.replace("-cpu host,", "-cpu max,"))
    assert not said or NO_ROOM.search(said), said


def test_qemu_refuses_an_option_that_is_misspelt() -> None:
    said = qemu("-m 16G -object memory-backend-memfd,id=m,size=16G,hugetlbsizee=2M -machine memory-backend=m")
    assert "hugetlbsizee" in said
    assert not NO_ROOM.search(said)


DOMAIN = "<domain type='kvm'><name>x</name><memory>1</memory>{}<os><type arch='x86_64'>hvm</type></os></domain>"
LIBVIRT = sorted(
    {"".join(map(str.strip, block.text.splitlines())) for block in blocks(PAGE) if block.language == "xml"}
    | {step.line for one in techniques.known().values() for step in one.get if step.where.startswith("libvirt")}
)


def libvirt(element: str, folder: Path) -> bool:
    """Whether libvirt's schema has such an element in a domain."""
    tool = shutil.which("virt-xml-validate")
    if tool is None:
        pytest.skip("virt-xml-validate is not here")
    file = folder / "domain.xml"
    file.write_text(DOMAIN.format(element), encoding="utf-8")
    return subprocess.run([tool, file, "domain"], capture_output=True, check=False, timeout=60).returncode == 0


@pytest.mark.parametrize("element", LIBVIRT)
def test_libvirt_takes_the_element(element: str, tmp_path: Path) -> None:
    assert ElementTree.fromstring(element).tag == "memoryBacking"  # noqa: S314
    assert libvirt(element, tmp_path)
    assert not libvirt(element.replace("<page ", "<pages "), tmp_path)


def test_there_are_lines_to_check() -> None:
    assert len(FILES) >= 8
    assert len(QEMU) >= 3
    assert LIBVIRT
