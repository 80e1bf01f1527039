# SPDX-License-Identifier: MIT OR Apache-2.0
"""A plain reader of the raw stream, written from its description in capture/README.md."""

import struct
from collections import namedtuple

HEADER = struct.Struct("<IIQIIQ")
ACCESS = struct.Struct("<QQ")
EVENT = struct.Struct("<QIIQQQQ")
MAGIC = 0x43525441
MMAP, MUNMAP, BRK, MREMAP, MPROTECT, MADVISE, CLONE, EXIT, VMA, MARK, CHILD_EXIT, COPY = range(1, 13)

Block = namedtuple("Block", "tid kind instructions records")
Access = namedtuple("Access", "vaddr site instructions size store")
Event = namedtuple("Event", "accesses_before op flags addr len arg result")


def blocks(data):
    """All blocks of a stream; raises ValueError where it is not well-formed."""
    at = 0
    while at < len(data):
        magic, tid, n, size, kind, instructions = HEADER.unpack_from(data, at)
        at += HEADER.size
        record = {0: ACCESS, 1: EVENT}.get(kind)
        if magic != MAGIC or record is None or n == 0 or size != n * record.size:
            raise ValueError(f"bad block header at byte {at - HEADER.size}")
        if at + size > len(data):
            raise ValueError(f"block cut short at byte {at}")
        records = record.iter_unpack(data[at : at + size])
        at += size
        yield Block(tid, kind, instructions, [parse(kind, fields) for fields in records])


def parse(kind, fields):
    if kind == 1:
        return Event(*fields)
    vaddr, packed = fields
    return Access(
        vaddr,
        site=packed & 0xFFFFFFFF,
        instructions=packed >> 32 & 0xFFFF,
        size=1 << (packed >> 48 & 0xFF),
        store=packed >> 56 & 1 == 1,
    )
