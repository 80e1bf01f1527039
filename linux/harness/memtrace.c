// SPDX-License-Identifier: GPL-2.0
/*
 * QEMU plugin (system mode, plugin API 1): records of user-mode data accesses
 * of the guest, with guest-physical addresses.
 *
 *   gcc -O2 -shared -fPIC -o memtrace.so memtrace.c
 *   qemu-system-x86_64 ... -plugin ./memtrace.so,out=FILE,max=N,low=VA,high=VA,gate=on
 *
 * A record is two little-endian 64-bit words: virtual address, and physical
 * address with bit 0 set for a store (addresses of accesses narrower than
 * 8 bytes are rounded down to 8) and with the instructions that user mode has
 * executed since the record before in bits 52 to 63 (4095: or more). Only accesses in [low, high) are recorded,
 * so that one process's memory can be picked; with gate=on, only once the guest
 * has executed the 8-byte no-op that guest/frag.c has before its loop. No header
 * package is shipped for this QEMU, so the API is declared here.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef uint64_t plugin_id;
typedef uint32_t meminfo;
struct insn;
struct block;
struct hwaddr;
struct info;

void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct block *));
void qemu_plugin_register_vcpu_mem_cb(struct insn *, void (*)(unsigned int, meminfo, uint64_t,
				      void *), int flags, int rw, void *);
void qemu_plugin_register_atexit_cb(plugin_id, void (*)(plugin_id, void *), void *);
size_t qemu_plugin_tb_n_insns(const struct block *);
struct insn *qemu_plugin_tb_get_insn(const struct block *, size_t);
uint64_t qemu_plugin_insn_vaddr(const struct insn *);
const void *qemu_plugin_insn_data(const struct insn *);
size_t qemu_plugin_insn_size(const struct insn *);
void qemu_plugin_register_vcpu_insn_exec_inline(struct insn *, int op, void *, uint64_t);
void qemu_plugin_register_vcpu_insn_exec_cb(struct insn *, void (*)(unsigned int, void *),
					    int flags, void *);
struct hwaddr *qemu_plugin_get_hwaddr(meminfo, uint64_t);
uint64_t qemu_plugin_hwaddr_phys_addr(const struct hwaddr *);
bool qemu_plugin_mem_is_store(meminfo);

EXPORT int qemu_plugin_version = 1;

static uint64_t low, high = 1ULL << 47, max = ~0ULL, recorded;
/* Instructions of user mode, of all CPUs; approximate where two run in it at once. */
static uint64_t executed, executed_at_last;

enum { INSTRUCTIONS_SHIFT = 52, INSTRUCTIONS_MAX = 4095 };

static FILE *out;
static bool open_gate = true;

/* nopl 0x50544d31(%rax,%rax,1) */
static const unsigned char mark[8] = { 0x0f, 0x1f, 0x84, 0x00, 0x31, 0x4d, 0x54, 0x50 };

static void mark_cb(unsigned int cpu, void *unused)
{
	(void)cpu;
	(void)unused;
	open_gate = true;
}

static void access_cb(unsigned int cpu, meminfo info, uint64_t va, void *unused)
{
	uint64_t record[2], since;
	struct hwaddr *hw;

	(void)cpu;
	(void)unused;
	if (!open_gate || va < low || va >= high)
		return;
	hw = qemu_plugin_get_hwaddr(info, va);
	if (!hw)
		return;
	record[0] = va;
	record[1] = (qemu_plugin_hwaddr_phys_addr(hw) & ~7ULL) | qemu_plugin_mem_is_store(info);
	flockfile(out);
	since = executed - executed_at_last;
	executed_at_last = executed;
	record[1] |= (since < INSTRUCTIONS_MAX ? since : INSTRUCTIONS_MAX) << INSTRUCTIONS_SHIFT;
	if (recorded < max) {
		fwrite_unlocked(record, sizeof(record), 1, out);
		if (++recorded == max)
			fflush(out);
	}
	funlockfile(out);
}

static void translated(plugin_id id, struct block *block)
{
	size_t n = qemu_plugin_tb_n_insns(block), i;

	(void)id;
	for (i = 0; i < n; i++) {
		struct insn *insn = qemu_plugin_tb_get_insn(block, i);

		/* User space is the lower half. */
		if (qemu_plugin_insn_vaddr(insn) >> 63)
			continue;
		qemu_plugin_register_vcpu_insn_exec_inline(insn, 0, &executed, 1);
		qemu_plugin_register_vcpu_mem_cb(insn, access_cb, 0, 3, NULL);
		if (qemu_plugin_insn_size(insn) == sizeof(mark) &&
		    !memcmp(qemu_plugin_insn_data(insn), mark, sizeof(mark)))
			qemu_plugin_register_vcpu_insn_exec_cb(insn, mark_cb, 0, NULL);
	}
}

static void finished(plugin_id id, void *unused)
{
	(void)id;
	(void)unused;
	fclose(out);
	fprintf(stderr, "memtrace: %llu records\n", (unsigned long long)recorded);
}

EXPORT int qemu_plugin_install(plugin_id id, const struct info *info, int argc, char **argv)
{
	int i;

	(void)info;
	for (i = 0; i < argc; i++) {
		if (!strncmp(argv[i], "out=", 4))
			out = fopen(argv[i] + 4, "wb");
		else if (!strncmp(argv[i], "max=", 4))
			max = strtoull(argv[i] + 4, NULL, 0);
		else if (!strncmp(argv[i], "low=", 4))
			low = strtoull(argv[i] + 4, NULL, 0);
		else if (!strncmp(argv[i], "high=", 5))
			high = strtoull(argv[i] + 5, NULL, 0);
		else if (!strcmp(argv[i], "gate=on"))
			open_gate = false;
		else
			return fprintf(stderr, "memtrace: unknown option %s\n", argv[i]), 1;
	}
	if (!out)
		return fprintf(stderr, "memtrace: out=FILE that can be written is needed\n"), 1;
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	qemu_plugin_register_atexit_cb(id, finished, NULL);
	return 0;
}
