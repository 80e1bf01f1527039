# SPDX-License-Identifier: MIT OR Apache-2.0
"""Orders: a run reduced to what its result depends on, so that it can be made anywhere and known again.

The key of an order is the SHA-256 of the model that the engine computes (``_native.model``) and of the whole
configuration, in which each trace is its checksum. What a run, a machine or a cost file is called is not part of it:
two runs that differ in names only have one result, and each reader puts its own names back (:func:`own`).
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestwalk import _native, data, files
from nestwalk.errors import NestwalkError
from nestwalk.sizes import size_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from nestwalk.pool import Job
    from nestwalk.toml_file import KeyPath

NAME = "run"
"""What every run is called while it is made."""
SUFFIX = ".toml"
CHUNK_BYTES = 1 << 20
KIND_DIGITS = 16
MEMORY_BASE_BYTES = 128 << 20
"""Of a run, whatever it simulates."""
SIMULATED_BYTES = 16
"""Bytes of simulated memory for each of the simulator's own."""


@dataclass(frozen=True)
class Blob:
    """A file that the engine reads: a trace, a dump of page tables."""

    sha256: str
    path: str
    """Where it is on the machine that wrote the order."""
    bundled: str = ""
    """Its name among the traces that come with the package, if it is one of them."""
    bytes: int = 0


@dataclass(frozen=True)
class Order:
    """What is to be computed. It can be pickled, and needs no file of the machine that wrote it."""

    key: str
    """64 hexadecimal digits."""
    kind: str
    """Equal for runs that take about the same time and memory: of one program, measured alike, as deep."""
    model: str
    depends_on: Mapping[str, Any]
    """All of the configuration, without names; a part of the result."""
    scenario: Mapping[str, Any]
    """The scenario to be run, with keys of :attr:`texts` for the files that it names, and traces left out."""
    texts: Mapping[str, str]
    """Machine and cost files that do not come with the package, by the key of the scenario that names them."""
    blobs: tuple[tuple[KeyPath, Blob], ...]
    """The files that go to paths of keys of the scenario."""
    memory_bytes: int = field(default=0, compare=False)
    """What it needs: what earlier runs of the kind did at most, or, of the first one, :func:`_memory_at_most`."""

    def written(self, folder: Path, find: Callable[[Blob], Path]) -> str:
        """The scenario as TOML, after its texts were written to ``folder``; blobs are where ``find`` says."""
        from nestwalk import scenario

        table = json.loads(json.dumps(self.scenario))
        for key, text in self.texts.items():
            name = f"{key}-{self.key[:16]}{SUFFIX}"
            (folder / name).write_text(text, encoding="utf-8")
            table[key] = name
        for path, blob in self.blobs:
            _set(table, path, str(find(blob).absolute()))
        return scenario.write(table)


@dataclass(frozen=True)
class Wanted:
    """A run that somebody wants, and the order that makes it."""

    job: Job
    order: Order
    configuration: Mapping[str, Any]
    """With the names that the job uses."""
    populated_by: str
    """Equal for runs whose memory is populated in the same way."""

    def own(self, result: dict[str, Any]) -> dict[str, Any]:
        """The result of the order with this run's names."""
        name = self.configuration["scenario"]["name"]
        row = {**result["row"], "configuration": name}
        return {**result, "name": name, "row": row, "configuration": self.configuration}


def of(job: Job) -> Wanted:
    """The order for ``job``.

    Raises:
        NestwalkError: When the engine refuses it, or a file that it names cannot be read.
    """
    try:
        configuration = json.loads(_native.configuration(job.scenario, str(job.path)))
    except NestwalkError as error:
        said = job.explain(str(error))
        raise NestwalkError(said if said != str(error) else f"{job.name}: {said}") from error
    base = job.path.parent
    scenario = dict(configuration["scenario"])
    texts = {key: _text(base / scenario[key]) for key in ("machine", "costs") if Path(scenario[key]).suffix == SUFFIX}
    blobs = tuple((path, _blob(name, base, trace=path[-1] == "trace")) for path, name in _files(scenario))
    bare = json.loads(json.dumps({**scenario, "name": NAME, "description": ""}))
    nameless = json.loads(json.dumps(configuration))
    nameless["scenario"] = json.loads(json.dumps({**bare, "machine": "", "costs": ""}))
    for path, blob in blobs:
        _set(nameless["scenario"], path, f"sha256:{blob.sha256}")
    for part in ("machine", "costs"):
        nameless[part].update({key: "" for key in ("name", "description") if key in nameless[part]})
    model = _native.model()
    key = _digest({"model": model, **nameless})
    memory = _memory_at_most(nameless["scenario"], blobs)
    order = Order(key, _kind(nameless["scenario"]), model, nameless, bare, texts, blobs, memory)
    populated_by = _digest(_native.populated_by(job.scenario, str(job.path)))
    return Wanted(job, order, configuration, populated_by)


def plain(result: dict[str, Any], order: Order) -> dict[str, Any]:
    """What a run came to, without the names that it was made under: a function of the key."""
    row = {**result["row"], "configuration": NAME}
    return {**result, "name": NAME, "row": row, "configuration": order.depends_on}


def _kind(scenario: Mapping[str, Any]) -> str:
    like = {key: scenario.get(key) for key in ("workload", "sampling", "colocated")}
    return _digest({**like, "kernels": len(scenario["kernels"])})[:KIND_DIGITS]


def _memory_at_most(scenario: Mapping[str, Any], blobs: Sequence[tuple[KeyPath, Blob]]) -> int:
    """Bytes that hold a run of which nothing is known but what it is to simulate.

    An assumption, above all that was measured: of GUPS with 8 GiB, all rows of the matrix ``everything`` and their
    co-runners took 60 MiB and up to 40 MiB a GiB (shadow paging); a plain VM of 32 GiB takes 12.5 MiB a GiB.
    """
    programs = [scenario["workload"], *(beside["workload"] for beside in scenario.get("colocated") or ())]
    footprints = [program.get("generator", {}).get("footprint", "0 B") for program in programs]
    simulated = 0
    for footprint in footprints:
        with suppress(ValueError):  # the engine reads more ways to write a size; then it is not known
            simulated += size_bytes(str(footprint))
    return MEMORY_BASE_BYTES + simulated // SIMULATED_BYTES + sum(blob.bytes for _, blob in blobs)


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _files(scenario: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    """The traces and dumps that a scenario names, with their paths of keys."""
    programs: list[tuple[KeyPath, Mapping[str, Any]]] = [(("workload",), scenario["workload"])]
    for number, beside in enumerate(scenario.get("colocated", ())):
        programs.append((("colocated", number, "workload"), beside["workload"]))
    for path, workload in programs:
        if "trace" in workload:
            yield (*path, "trace"), workload["trace"]
    for number, kernel in enumerate(scenario["kernels"]):
        if kernel.get("dump"):
            yield ("kernels", number, "dump"), kernel["dump"]


def _blob(name: str, base: Path, *, trace: bool) -> Blob:
    """The file called so in a scenario of the folder ``base``, found as the engine finds it."""
    bundled = name if trace and "/" not in name and not Path(name).suffix and name in data.traces() else ""
    path = data.TRACES / f"{name}{data.SUFFIX}" if bundled else base / name
    digest, size = checksum(path)
    return Blob(digest, str(path.absolute()), bundled, size)


_checksums: dict[tuple[str, int, int, int], str] = {}


def checksum(path: Path) -> tuple[str, int]:
    """SHA-256 and bytes of a file; one that has not changed since is not read again.

    Raises:
        NestwalkError: When it cannot be read.
    """
    with files.telling(path, "cannot be read"):
        about = path.stat()
        known = (str(path), about.st_ino, about.st_size, about.st_mtime_ns)
        if known not in _checksums:
            digest = hashlib.sha256()
            with path.open("rb") as file:
                while chunk := file.read(CHUNK_BYTES):
                    digest.update(chunk)
            _checksums[known] = digest.hexdigest()
    return _checksums[known], about.st_size


def _text(path: Path) -> str:
    from nestwalk import scenario

    return scenario.read_text(path)


def _set(table: Any, path: KeyPath, value: Any) -> None:
    for name in path[:-1]:
        table = table[name]
    table[path[-1]] = value
