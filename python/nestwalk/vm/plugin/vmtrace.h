/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What the plugin shares with Nestwalk: the stream of accesses, and the control block. Little-endian.
 *
 * The stream is struct stream_header, then blocks: struct block_header and its records. A record is
 * two words (RECORD_*). docs/whole-vms.md describes it; crates/workload reads it.
 */
#ifndef NESTWALK_VMTRACE_H
#define NESTWALK_VMTRACE_H

#include <stdint.h>

#define STREAM_MAGIC "NWSM0003"
#define BLOCK_MAGIC 0x4256574eu /* "NWVB" */

struct stream_header {
    char magic[8];
    uint64_t reserved;
};

struct block_header {
    uint32_t magic;
    uint32_t vcpu;
    uint32_t n; /* records that follow */
    uint32_t levels; /* of its page tables: 4 or 5 */
    uint64_t instructions[2]; /* that the process executed here since the block before: user, kernel */
};

struct record {
    uint64_t where; /* gva (57 bits) and the RECORD_* below */
    uint64_t what;  /* frame | site << 28 | instructions of this mode since the last record << 52 */
};

#define RECORD_GVA_MASK ((1ull << 57) - 1) /* the address is canonical: bit 56 is its sign */
#define RECORD_KERNEL (1ull << 57)         /* made by kernel code, whatever the address */
#define RECORD_STORE_SHIFT 58
#define RECORD_SIZE_SHIFT 59 /* log2, 3 bits */
#define RECORD_IO (1ull << 62)
#define FRAME_UNKNOWN ((1ull << 28) - 1)
#define SITE_SHIFT 28
#define SITE_MAX ((1u << 24) - 1)
#define SINCE_SHIFT 52
#define SINCE_MAX 4095u

enum command { COMMAND_IDLE = 0, COMMAND_RECORD = 1, COMMAND_END = 2 };
enum state { STATE_LOADED = 0, STATE_RUNNING = 1, STATE_RECORDING = 2, STATE_FULL = 3, STATE_FAILED = 4 };

/* An address space that has been seen: what ran in it, in instructions. */
struct space {
    uint64_t cr3; /* 0: no entry; flags and PCID are masked out */
    uint64_t instructions[2];
};

#define SPACES 4096 /* a power of two */

/* The control block: a file that both sides map. nestwalk/vm/control.py has the same offsets. */
struct control {
    char magic[8];        /* "NWVMCTL1" */
    uint64_t command;     /* Nestwalk writes: enum command */
    uint64_t target;      /* ... the CR3 to record */
    uint64_t target_mask; /* ... its bits that count: with page-table isolation a process has two */
    uint64_t max;         /* ... accesses after which to stop */
    uint64_t state;       /* the plugin writes: enum state */
    uint64_t accesses;    /* ... written so far */
    uint64_t kernel;      /* ... of them by kernel code */
    uint64_t failure;     /* ... errno of the stream */
    uint64_t marks;       /* ... how often a marker was executed in user mode */
    uint64_t marked;      /* ... in which address space, the first time */
    uint64_t source;      /* ... where CR3 is read: 1 plugin API, 2 QEMU's functions */
    uint64_t reserved[4];
    struct space spaces[SPACES];
};

#endif
