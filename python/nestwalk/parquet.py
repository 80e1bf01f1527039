# SPDX-License-Identifier: MIT OR Apache-2.0
"""Parquet files of accesses: read by polars in pieces, and streamed to the engine in the form of the capture plugin."""

from __future__ import annotations

import io
import os
import struct
import threading
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any

from nestwalk.errors import NestwalkError, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    import polars as pl

MAGIC = b"PAR1"
PIECE = 1 << 18
"""Rows read at a time, at most."""
RECORD_BATCH = 3
"""Arrow's ``MessageHeader``."""
PIPE_BUFFER = 1 << 16
"""Bytes collected for the pipe: blocks of a few rows are many where threads take short turns."""
ADDRESS_END = 1 << 56
BLOCK = struct.Struct("<IIQIIQ")
"""Of the raw stream (``capture/README.md``), its header: magic, thread, records, bytes, kind, instructions."""
BLOCK_MAGIC = 0x43525441

NAMES: Mapping[str, tuple[str, ...]] = {
    "address": ("address", "addr", "vaddr", "va", "gva", "ea"),
    "store": ("store", "is_store", "write", "is_write", "rw", "kind", "type", "op"),
    "bytes": ("bytes", "size"),
    "thread": ("thread", "tid"),
    "instruction": ("instruction", "pc", "ip"),
    "instructions": ("instructions", "icount"),
}
"""What a column can be, and the names that are understood without ``--columns``."""

LOADS, STORES = ("r", "l", "read", "load", "0", "false"), ("w", "s", "write", "store", "1", "true")
BYTES_ASSUMED = 8


def is_in(path: Path) -> bool:
    """Whether ``path`` is a Parquet file."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False  # whoever reads it says why


def columns_of(path: Path, names: list[str], given: str | None) -> dict[str, str]:
    """Which of the columns called ``names`` is what.

    Raises:
        NestwalkError: When there is no column of addresses, or ``given`` names what is not there.
    """
    chosen = {}
    for part in (given or "").split(",") if given else []:
        what, _, name = part.partition("=")
        if what not in NAMES:
            raise NestwalkError(f"--columns {part}: give {', '.join(NAMES)}, as address=va,store=is_write")
        if name not in names:
            raise NestwalkError(f"{shown(path)}: has no column {name!r}; it has {', '.join(names)}")
        chosen[what] = name
    lower = {name.lower(): name for name in reversed(names)}
    for what, known in NAMES.items():
        found = next((lower[name] for name in known if name in lower), None)
        if what not in chosen and found is not None and found not in chosen.values():
            chosen[what] = found
    if "address" not in chosen:
        raise NestwalkError(
            f"{shown(path)}: no column is called {', '.join(NAMES['address'])}; it has {', '.join(names)}: say which "
            "has the addresses, with --columns address=NAME"
        )
    return chosen


def _checked(path: Path, columns: Mapping[str, str]) -> pl.LazyFrame:
    """The columns in the engine's types: ``address``, ``packed``, ``thread``."""
    import polars as pl

    frame = pl.scan_parquet(path)
    schema = frame.collect_schema()
    for what, name in columns.items():
        kind = schema[name]
        if not (kind.is_integer() or (what == "store" and kind in (pl.Boolean, pl.String, pl.Categorical))):
            raise NestwalkError(f"{shown(path)}: column {name!r} ({what}) is of {kind}; save it as whole numbers")

    def number(what: str, default: int) -> pl.Expr:
        return pl.col(columns[what]).cast(pl.UInt64) if what in columns else pl.lit(default, pl.UInt64)

    store = pl.lit(0, pl.UInt64)
    if "store" in columns:
        name, kind = columns["store"], schema[columns["store"]]
        store = pl.col(name)
        if not (kind == pl.Boolean or kind.is_integer()):
            words = pl.col(name).cast(pl.String).str.to_lowercase()
            store = words.replace_strict({**dict.fromkeys(LOADS, 0), **dict.fromkeys(STORES, 1)}, default=None)
        store = store.cast(pl.UInt64)
    sizes = number("bytes", BYTES_ASSUMED).clip(1, 1 << 15)
    log2 = pl.sum_horizontal((sizes > (1 << power)).cast(pl.UInt64) for power in range(15))
    packed = (
        number("instruction", 0) % (1 << 32)
        + number("instructions", 1).clip(0, 0xFFFF) * (1 << 32)
        + log2 * (1 << 48)
        + store * (1 << 56)
    )
    return frame.select(
        address=pl.col(columns["address"]).cast(pl.UInt64, strict=False),
        packed=pl.when(store <= 1).then(packed),
        thread=number("thread", 0) % (1 << 32),
    )


def _check(path: Path, piece: pl.DataFrame, begin: int) -> None:
    """Refuses rows, of which ``piece`` has those from ``begin`` on, that are no accesses."""
    import polars as pl

    is_bad = pl.col("address").is_null() | pl.col("packed").is_null() | (pl.col("address") >= ADDRESS_END)
    bad = piece.with_row_index("row", begin).filter(is_bad)
    if not bad.is_empty():
        raise NestwalkError(
            f"{shown(path)}: row {bad['row'][0]} (from 0): no address below 2^56, or neither load nor "
            "store; leave such rows out"
        )


def _words(piece: pl.DataFrame) -> memoryview:
    """Address and packed word of each row in turn, little-endian.

    Without numpy, polars hands out whole columns as Arrow streams only ("Encapsulated message format" and
    ``Message.fbs`` of Arrow's specification): a message of the schema, then some of record batches. A message is a
    mark, the length of its metadata (32 bits each), the metadata and the body, which is the words of the batch here.
    """
    import polars as pl

    stream = io.BytesIO()
    rows = piece.select(words=pl.concat_arr("address", "packed").explode())
    rows.write_ipc_stream(stream, compression="uncompressed")
    whole, parts, at = stream.getbuffer(), [], 0
    while int.from_bytes(whole[at + 4 : at + 8], "little"):
        metadata = at + 8
        at = metadata + int.from_bytes(whole[at + 4 : at + 8], "little")
        message = metadata + int.from_bytes(whole[metadata : metadata + 4], "little")
        if whole[_field(whole, message, 1)] == RECORD_BATCH:
            header = _field(whole, message, 2)
            batch = header + int.from_bytes(whole[header : header + 4], "little")
            count = _field(whole, batch, 0)
            parts.append(whole[at : at + 8 * int.from_bytes(whole[count : count + 8], "little")])
            length = _field(whole, message, 3)
            at += int.from_bytes(whole[length : length + 8], "little")
    return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))


def _field(whole: memoryview, table: int, number: int) -> int:
    """Where a field of the FlatBuffers table at ``table`` is."""
    layout = table - int.from_bytes(whole[table : table + 4], "little", signed=True)
    entry = layout + 4 + 2 * number
    return table + int.from_bytes(whole[entry : entry + 2], "little")


def _write(path: Path, frame: pl.LazyFrame, out: int, failure: list[BaseException]) -> None:
    """Writes the stream to the file descriptor ``out`` and closes it."""
    import polars as pl

    try:
        with os.fdopen(out, "wb", buffering=PIPE_BUFFER) as stream, _spoiling(stream):
            instructions: dict[int, int] = {}
            begin = 0
            for piece in frame.collect_batches(chunk_size=PIECE):
                _check(path, piece, begin)
                begin += len(piece)
                words = _words(piece)
                counted = piece.select(((pl.col("packed") // (1 << 32)) % (1 << 16)).cum_sum()).to_series()
                at, before = 0, 0
                for run in piece.select(pl.col("thread").rle()).to_series():
                    end, thread = at + run["len"], run["value"]
                    instructions[thread] = instructions.get(thread, 0) + counted[end - 1] - before
                    header = BLOCK.pack(BLOCK_MAGIC, thread, end - at, 16 * (end - at), 0, instructions[thread])
                    stream.write(header)
                    stream.write(words[16 * at : 16 * end])
                    at, before = end, counted[end - 1]
    except BrokenPipeError:
        pass  # the engine has ended, and says why
    except BaseException as error:  # noqa: BLE001 (told by the thread that waits)
        failure.append(error)


@contextmanager
def _spoiling(stream: IO[bytes]) -> Iterator[None]:
    """Makes of an error something that the engine refuses: a stream that just ends would be a whole trace to it."""
    try:
        yield
    except BrokenPipeError:
        raise
    except BaseException:
        stream.write(b"\xff" * BLOCK.size)
        raise


@contextmanager
def stream(path: Path, given: str | None) -> Iterator[tuple[str, Callable[[Mapping[str, Any]], dict[str, Any]]]]:
    """The accesses of a Parquet file as a FIFO for the engine, and what to tell it of them.

    Raises:
        NestwalkError: When it has no column of addresses, or columns of other types; when a row has none.
    """
    import polars as pl

    try:
        schema = pl.scan_parquet(path).collect_schema()
        columns = columns_of(path, schema.names(), given)
        frame = _checked(path, columns)
        rows = pl.scan_parquet(path).select(pl.len()).collect().item()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise NestwalkError(f"{shown(path)}: cannot be read as Parquet ({str(error).splitlines()[0]})") from error
    missing = [what for what in NAMES if what not in columns]
    assumed = {
        "store": "loads",
        "bytes": f"{BYTES_ASSUMED} bytes an access",
        "thread": "one thread",
        "instruction": "one instruction that makes all accesses",
        "instructions": "one instruction an access",
    }
    words = [assumed[what] for what in missing]
    warning = "a Parquet file has no memory map: mappings follow from the accesses"
    if words:
        warning += f"; not in its columns, and assumed: {', '.join(words)}"

    def about(options: Mapping[str, Any]) -> dict[str, Any]:
        program = options.get("program") or path.name.split(".")[0]
        return {"program": program, "total": rows, "source_format": "parquet", "warning": warning, "from": "raw"}

    reading, writing = os.pipe()
    failure: list[BaseException] = []
    writer = threading.Thread(target=_write, args=(path, frame, writing, failure), daemon=True)
    writer.start()
    refused: NestwalkError | None = None
    try:
        yield f"/dev/fd/{reading}", about
    except NestwalkError as error:
        refused = error
    finally:
        with suppress(OSError):
            os.close(reading)
        writer.join()
    # What the writer met first is the cause; whether it met something is known when it has ended.
    if failure:
        raise failure[0]
    if refused is not None:
        raise refused
