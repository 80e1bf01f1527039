/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The raw stream: what the plugin writes and a converter reads. Described in ../README.md.
 * All fields are little-endian; x86-64 hosts write them as they are.
 */
#ifndef NESTWALK_STREAM_H
#define NESTWALK_STREAM_H

#include <stdint.h>

#define STREAM_MAGIC 0x43525441u

enum block_kind { BLOCK_ACCESSES = 0, BLOCK_EVENTS = 1 };

struct block_header {
    uint32_t magic;
    uint32_t tid;          /* dense, in order of first appearance, never used again */
    uint64_t n;            /* records in this block */
    uint32_t bytes;        /* bytes of records that follow */
    uint32_t kind;         /* enum block_kind */
    uint64_t instructions; /* executed by this thread up to the end of the block */
};

struct access_record {
    uint64_t vaddr;
    uint64_t packed; /* site | instructions since last << 32 | log2 size << 48 | store << 56 */
};

#define ACCESS_INSTRUCTIONS_SHIFT 32
#define ACCESS_INSTRUCTIONS_MAX 0xffffu
#define ACCESS_SIZE_SHIFT 48
#define ACCESS_STORE_SHIFT 56

enum event_op {
    EVENT_MMAP = 1,     /* addr, len asked; arg = prot | map flags << 32; result = address */
    EVENT_MUNMAP = 2,   /* addr, len */
    EVENT_BRK = 3,      /* addr asked (0 = just asking); arg = break before; result = break after */
    EVENT_MREMAP = 4,   /* addr, len; arg = new length; flags = MREMAP_*; result = new address */
    EVENT_MPROTECT = 5, /* addr, len; arg = prot */
    EVENT_MADVISE = 6,  /* addr, len; arg = advice */
    EVENT_CLONE = 7,    /* flags = 0 thread, 1 process; arg = clone flags; result = kernel's id */
    EVENT_EXIT = 8,     /* flags = 0 thread, 1 process; arg = status */
    EVENT_VMA = 9,      /* a mapping at program start: addr, len; arg = prot; flags = MAP_* */
    EVENT_MARK = 10,    /* the program called prctl(MARK_PRCTL, number): arg = number */
    EVENT_CHILD_EXIT = 11, /* a child process ended and was waited for: result = its id or 0 */
    EVENT_COPY = 12,       /* addr, len: what the kernel copied or faulted in for a call; flags = enum copy_direction */
};

/* A prctl option that no kernel has ("NWMK"): outside a capture the call fails and does nothing. */
#define MARK_PRCTL 0x4e574d4bu

enum { WHAT_THREAD = 0, WHAT_PROCESS = 1 };
enum copy_direction { COPY_FROM_USER = 0, COPY_TO_USER = 1 };

struct event_record {
    uint64_t accesses_before; /* of this thread */
    uint32_t op;              /* enum event_op */
    uint32_t flags;
    uint64_t addr;
    uint64_t len;
    uint64_t arg;
    uint64_t result;
};

_Static_assert(sizeof(struct block_header) == 32, "block header is 32 bytes");
_Static_assert(sizeof(struct access_record) == 16, "access record is 16 bytes");
_Static_assert(sizeof(struct event_record) == 48, "event record is 48 bytes");

#endif
