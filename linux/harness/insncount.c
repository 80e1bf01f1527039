// SPDX-License-Identifier: GPL-2.0
/*
 * QEMU plugin (system mode, plugin API 1): instructions executed in the guest,
 * kernel and user, between marks that the program under test executes. A mark
 * is nopl 0x50544dNN(%rax,%rax,1), see guest/faultbench.c. For one CPU.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef uint64_t plugin_id;
struct insn;
struct block;
struct info;

void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct block *));
void qemu_plugin_register_vcpu_insn_exec_inline(struct insn *, int op, void *, uint64_t);
void qemu_plugin_register_vcpu_insn_exec_cb(struct insn *, void (*)(unsigned int, void *),
					    int flags, void *);
size_t qemu_plugin_tb_n_insns(const struct block *);
struct insn *qemu_plugin_tb_get_insn(const struct block *, size_t);
const void *qemu_plugin_insn_data(const struct insn *);
size_t qemu_plugin_insn_size(const struct insn *);

EXPORT int qemu_plugin_version = 1;

enum { TOUCH_BEGIN = 0x32, TOUCH_END, DROP_BEGIN, DROP_END, REPORT };

static uint64_t executed, begin, touch, drop;

static void mark(unsigned int cpu, void *which)
{
	(void)cpu;
	switch ((uintptr_t)which) {
	case TOUCH_BEGIN:
	case DROP_BEGIN:
		begin = executed;
		break;
	case TOUCH_END:
		touch += executed - begin;
		break;
	case DROP_END:
		drop += executed - begin;
		break;
	case REPORT:
		fprintf(stderr, "INSNS {\"touch\":%llu,\"drop\":%llu}\n",
			(unsigned long long)touch, (unsigned long long)drop);
		touch = drop = 0;
		break;
	}
}

static void translated(plugin_id id, struct block *block)
{
	size_t n = qemu_plugin_tb_n_insns(block), i;

	(void)id;
	for (i = 0; i < n; i++) {
		struct insn *insn = qemu_plugin_tb_get_insn(block, i);
		const unsigned char *b = qemu_plugin_insn_data(insn);

		qemu_plugin_register_vcpu_insn_exec_inline(insn, 0, &executed, 1);
		if (qemu_plugin_insn_size(insn) == 8 && !memcmp(b, "\x0f\x1f\x84\x00", 4) &&
		    !memcmp(b + 5, "\x4d\x54\x50", 3))
			qemu_plugin_register_vcpu_insn_exec_cb(insn, mark, 0,
							       (void *)(uintptr_t)b[4]);
	}
}

EXPORT int qemu_plugin_install(plugin_id id, const struct info *info, int argc, char **argv)
{
	(void)info;
	(void)argc;
	(void)argv;
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	return 0;
}
