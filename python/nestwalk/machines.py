# SPDX-License-Identifier: MIT OR Apache-2.0
"""Machine files: made from the processor that this runs on, shown with units and sources, and checked.

A detected file says of each value where it comes from: a CPUID leaf, Linux, or, marked as assumed, the nearest bundled
machine. Registers describe sizes; no register says how long anything takes.
"""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestwalk import _native, checks, keys
from nestwalk.errors import NestwalkError, shown, unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

CACHES = {"l1d": 1, "l2": 2, "llc": 3}
"""The caches of a machine file, and their levels."""

PAGE_SIZES = ("4KiB", "2MiB", "1GiB")

COPIED = ("guest_pwc", "host_pwc", "nested_tlb")
"""Parts of ``[mmu]`` of which no register says anything."""


@dataclass(frozen=True)
class Value:
    """A value of a machine file."""

    key: str
    """Where it is: ``mmu.l1d.ways``; entries of lists are numbered from 0."""
    value: int | str | list[str]
    assumed: bool
    """Whether it was taken from another machine, since nothing here says it."""
    source: str
    """Where it comes from."""


@dataclass
class Detected:
    """A machine file made from a processor."""

    name: str
    description: str
    processor: Mapping[str, Any]
    """What CPUID says."""
    nearest: Mapping[str, Any]
    """The bundled machine that fills in the rest: ``machine``, ``microarchitecture``, ``same``."""
    values: list[Value] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What to know of it: a sentence each."""

    def to_json(self) -> dict[str, Any]:
        """Everything, for scripts."""
        return {
            "schema": 1,
            "name": self.name,
            "description": self.description,
            "processor": dict(self.processor),
            "nearest": dict(self.nearest),
            "values": [asdict(value) for value in self.values],
            "notes": self.notes,
            "toml": self.toml(),
        }

    def toml(self) -> str:
        """The machine file."""
        lines = ["# Written by `nestwalk machine detect`, nestwalk " + _native.version() + "."]
        lines += [f"# {note}" for note in self.notes]
        lines += ["schema = 1", f"name = {_toml(self.name)}", f"description = {_toml(self.description)}"]
        table = ""
        for value in self.values:
            head, _, key = value.key.rpartition(".")
            if head != table:
                table = head
                name = re.sub(r"\.\d+$", "", head)
                lines += ["", f"[{name}]" if name == head else f"[[{name}]]"]
            comment = f"assumed: {value.source}" if value.assumed else value.source
            lines.append(f"{key} = {_toml(value.value)}" + (f" # {comment}" if comment else ""))
        return "\n".join(lines) + "\n"


def detect(dump: Path | None = None, name: str | None = None) -> Detected:
    """The machine file of this processor, or of one whose CPUID was recorded.

    Args:
        dump: What ``cpuid -1 -r`` printed, or a dump of InstLatx64; this processor if there is none.
        name: What to call the machine (default: after the processor).

    Raises:
        NestwalkError: When the dump cannot be read.
    """
    if dump is None:
        found = json.loads(_native.processor())
    else:
        try:
            text = dump.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise unreadable(dump, error) from error
        found = json.loads(_native.processor(text, str(dump)))
    return _Maker(found).make(name)


def lines(name: str) -> list[dict[str, Any]]:
    """The keys of the machine ``name`` (or of a file), each with ``key``, ``value``, ``unit`` and ``source``.

    Raises:
        NestwalkError: When there is no such machine, or a run would refuse it.
    """
    found = json.loads(_native.machine(checks.text("machine", name)))["lines"]
    units = keys.units("machine")
    return [
        {"key": line["key"], "value": line["value"], "unit": units(line["key"]), "source": line["comment"]}
        for line in found
    ]


def check(name: str) -> dict[str, Any]:
    """Says that a run would take the machine ``name`` (or that of a file): its name and description.

    Raises:
        NestwalkError: When it would not; the line says why.
    """
    import tomllib

    found = tomllib.loads(json.loads(_native.machine(checks.text("machine", name)))["text"])
    return {"name": found["name"], "description": found["description"]}


class _Maker:
    """Makes a machine file from what was found, and from the nearest bundled machine."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        self.processor: dict[str, Any] = found["processor"]
        self.nearest: dict[str, Any] = found["nearest"]
        self.live = found["sysfs"] is not None
        self.sysfs: dict[str, Any] = found["sysfs"] or {"caches": []}
        self.base = self.nearest["machine"]
        base_lines = json.loads(_native.machine(self.base))["lines"]
        self.lines = {line["key"]: line for line in base_lines}
        self.notes: list[str] = []
        self.values: list[Value] = []

    def make(self, name: str | None) -> Detected:
        brand = self.processor["brand"] or f"{self.processor['vendor'] or 'unknown vendor'} processor"
        where = "family {family:02X}h model {model:02X}h stepping {stepping}".format(**self.processor)
        self._about(brand, where)
        self._frequency()
        self._timing()
        self._mmu()
        description = f"{brand} ({where}), detected; the rest as {self.base}"
        return Detected(name or _slug(brand), description, self.processor, self.nearest, self.values, self.notes)

    def _about(self, brand: str, where: str) -> None:
        kind = "the same microarchitecture" if self.nearest["same"] else "the nearest bundled machine, not the same"
        self.notes.append(f"Processor: {brand}, {where}: {self.nearest['microarchitecture']}.")
        self.notes.append(
            f"What is marked as assumed cannot be read here and was taken from {self.base} ({kind}); docs/machines.md "
            "says what is known of it."
        )
        hypervisor = self.processor["hypervisor"]
        if hypervisor is not None:
            self.notes.append(
                f"This is a virtual machine ({hypervisor or 'of an unnamed hypervisor'}): the hypervisor may mask or "
                "change what CPUID says. Run this on the host to be sure."
            )
        self.notes += self.processor["notes"]

    def _add(self, key: str, value: int | str | list[str], source: str, *, assumed: bool = False) -> None:
        self.values.append(Value(key, value, assumed, source))

    def _assume(self, key: str, own_key: str | None = None) -> None:
        """The nearest machine's value."""
        line = self.lines[key]
        said = f", where it says: {line['comment']}" if line["comment"] else ""
        self._add(own_key or key, _parsed(line["value"]), f"as {self.base}{said}", assumed=True)

    def _frequency(self) -> None:
        """The clock under load: the highest that anything here shows."""
        shown = {
            "measured when this was written: a chain of additions, one a cycle": self._clock_mhz(),
            "the highest clock of /proc/cpuinfo when this was written": self.sysfs.get("current_mhz"),
            "cpufreq, without turbo": self.sysfs.get("base_mhz"),
            "CPUID leaf 16h, without turbo": self.processor["base_mhz"],
        }
        known = [(mhz, source) for source, mhz in shown.items() if mhz]
        if not known:
            self._assume("frequency_mhz")
            return
        mhz, source = max(known, key=lambda one: one[0])
        self._add("frequency_mhz", mhz, source)

    def _clock_mhz(self) -> int | None:
        """The clock in effect, where the processor is this one: Linux and CPUID leave turbo out."""
        ghz = _native.clock_ghz() if self.live else None
        return round(ghz * 1000) if ghz is not None else None

    def _timing(self) -> None:
        timing = [key for key in self.lines if key.startswith("timing.")]
        core = [key for key in timing if key.startswith("timing.out_of_order.")]
        for key in timing:
            if key != "timing.source" and key not in core:
                self._add(key, _parsed(self.lines[key]["value"]), f"as {self.base}", assumed=True)
        self._add("timing.source", f"Assumed: all as {self.base}, whose file says where they come from.", "")
        for key in core:
            self._assume(key)

    def _mmu(self) -> None:
        self._memory_latency()
        for key in ("mmu.l1d_miss_registers", "mmu.l2_tlb_hit_cycles", "mmu.segment_latency_cycles"):
            if key in self.lines:
                self._assume(key)
        for name, level in CACHES.items():
            self._cache(name, level)
        for name, level in (("l1_tlb", 1), ("l2_tlb", 2)):
            self._tlb(name, level)
        for key in self.lines:
            if key.split(".")[1:2] and key.split(".")[1] in COPIED:
                self._assume(key)

    def _memory_latency(self) -> None:
        """Memory answers in ns, whatever the core's clock is."""
        mhz = next(value.value for value in self.values if value.key == "frequency_mhz")
        base_mhz, base_cycles = (
            int(self.lines[key]["value"]) for key in ("frequency_mhz", "mmu.memory_latency_cycles")
        )
        cycles = round(base_cycles * int(str(mhz)) / base_mhz)
        source = f"the {1000 * base_cycles / base_mhz:.1f} ns of {self.base} at this clock"
        self._add("mmu.memory_latency_cycles", cycles, source, assumed=True)

    def _cache(self, name: str, level: int) -> None:
        base = f"mmu.{name}"
        cpuid = _of_level(self.processor["caches"], level)
        linux = _of_level(self.sysfs["caches"], level)
        found, source = (cpuid, cpuid["source"]) if cpuid else (linux, "Linux, /sys/devices/system/cpu/cpu0/cache")
        if found is None:
            self.notes.append(f"Nothing here describes the cache {name}; it was taken from {self.base}.")
            for key in ("size", "ways"):
                self._assume(f"{base}.{key}")
        else:
            if cpuid and linux and (cpuid["bytes"], cpuid["ways"]) != (linux["bytes"], linux["ways"]):
                self.notes.append(
                    f"CPUID and Linux disagree about the cache {name}: {_size(cpuid['bytes'])}, {cpuid['ways']} ways, "
                    f"and {_size(linux['bytes'])}, {linux['ways']} ways. CPUID's was taken."
                )
            shared = f"; shared by processors {linux['shared_by']}" if linux and linux.get("shared_by") else ""
            self._add(f"{base}.size", _size(found["bytes"]), source + shared)
            self._add(f"{base}.ways", found["ways"], source)
        self._assume(f"{base}.latency_cycles")
        if name == "llc":
            self._policy(found.get("inclusive") if found else None, source)

    def _policy(self, inclusive: bool | None, source: str) -> None:
        base = _parsed(self.lines["mmu.llc.policy"]["value"])
        if inclusive is None:
            self._assume("mmu.llc.policy")
        elif inclusive:
            self._add("mmu.llc.policy", "inclusive", source)
        elif base != "inclusive":
            self._add("mmu.llc.policy", base, f"{source} says not inclusive; the rest as {self.base}", assumed=True)
        else:
            what = f"{source} says not inclusive, and {self.base}, which is, does not say what else"
            self._add("mmu.llc.policy", "non-inclusive", what, assumed=True)

    def _tlb(self, name: str, level: int) -> None:
        arrays = [tlb for tlb in self.processor["tlbs"] if tlb["level"] == level]
        base = list(self._base_arrays(name))
        if not arrays or (level == 1 and not any("4KiB" in tlb["sizes"] for tlb in arrays)):
            self.notes.append(f"Nothing here describes the TLB of level {level}; it was taken from {self.base}.")
            for number, _ in enumerate(base):
                self._assume_array(name, number, number)
            return
        for number, tlb in enumerate(arrays):
            key = f"mmu.{name}.{number}"
            self._add(f"{key}.sizes", tlb["sizes"], tlb["source"])
            self._add(f"{key}.entries", tlb["entries"], tlb["source"])
            self._add(f"{key}.ways", tlb["ways"], tlb["source"])
        held = {size for tlb in arrays for size in tlb["sizes"]}
        for number, array in enumerate(base):
            if not self.processor["giant_tlb_known"] and array["sizes"] == ["1GiB"] and "1GiB" not in held:
                self._assume_array(name, number, len(arrays))
        if self.nearest["same"]:
            self._compare(name, arrays, base)

    def _base_arrays(self, name: str) -> Iterator[dict[str, Any]]:
        number = 0
        while (key := f"mmu.{name}.{number}") + ".sizes" in self.lines:
            yield {part: _parsed(self.lines[f"{key}.{part}"]["value"]) for part in ("sizes", "entries", "ways")}
            number += 1

    def _assume_array(self, name: str, number: int, own: int) -> None:
        for part in ("sizes", "entries", "ways"):
            self._assume(f"mmu.{name}.{number}.{part}", f"mmu.{name}.{own}.{part}")

    def _compare(self, name: str, arrays: Sequence[Mapping[str, Any]], base: Sequence[Mapping[str, Any]]) -> None:
        """CPUID is known to be wrong here and there: say where a bundled file of the same core differs."""
        for size in PAGE_SIZES:
            here, there = (next((tlb for tlb in group if size in tlb["sizes"]), None) for group in (arrays, base))
            if here and there and (here["entries"], here["ways"]) != (there["entries"], there["ways"]):
                self.notes.append(
                    f"{name}, {size}: {here['source']} says {here['entries']} entries in {here['ways']} ways; "
                    f"{self.base}, the same microarchitecture, has {there['entries']} in {there['ways']} "
                    "(docs/machines.md)."
                )


def _of_level(caches: Sequence[Mapping[str, Any]], level: int) -> Mapping[str, Any] | None:
    return next((cache for cache in caches if cache["level"] == level), None)


def _parsed(text: str) -> Any:
    import tomllib

    return tomllib.loads(f"value = {text}")["value"]


def _size(number: int) -> str:
    """Bytes as a machine file writes them."""
    for unit, step in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if number % step == 0:
            return f"{number // step}{unit}"
    return f"{number}B"


def _slug(brand: str) -> str:
    """A name for files and tables."""
    text = re.sub(r"\((r|tm)\)|@.*$|\b(cpu|processor)\b", " ", brand.lower())
    return re.sub(r"[^a-z0-9]+", "-", text).strip("-") or "detected"


def _toml(value: int | str | list[str]) -> str:
    """A value as TOML writes it; texts are made of printable ASCII, which JSON writes alike."""
    return json.dumps(value)


def write(made: Detected, path: Path) -> None:
    """Writes a machine file that a run takes.

    Raises:
        NestwalkError: When a run would refuse it, which nothing should be written for; or it cannot be written.
    """
    from nestwalk import files

    if path != files.STDOUT and path.suffix != ".toml":
        raise NestwalkError(f"{shown(path)}: a machine file is recognised by its ending; add .toml to it")
    files.check_file(path)
    files.write_file(path, checked(made))


def checked(made: Detected) -> str:
    """The text of a machine file that a run takes.

    Raises:
        NestwalkError: When a run would refuse it.
    """
    text = made.toml()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{made.name}.toml"
        path.write_text(text, encoding="utf-8")
        try:
            check(str(path))
        except NestwalkError as error:
            what = str(error).removeprefix(str(path))
            raise NestwalkError(f"what this processor says makes no machine to simulate{what}") from error
    return text
