// SPDX-License-Identifier: GPL-2.0
/*
 * QEMU plugin (system mode, plugin API 1): instructions executed in the guest,
 * kernel and user, between marks that the program under test executes, see
 * guest/marks.h: 0x40 + step begins a step, 0x60 + step ends it, 0x36 prints the
 * counts of all.
 *
 *   -plugin insncount.so[,profile=FILE]
 *
 * With profile=, FILE gets a line "report step address instructions executions" for
 * each block of code and step, summed up to the report (harness/opcost.py sorts
 * them by function).
 *
 * Several CPUs: QEMU runs them in turns with -icount, and the count is that of all.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
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
uint64_t qemu_plugin_tb_vaddr(const struct block *);
struct insn *qemu_plugin_tb_get_insn(const struct block *, size_t);
const void *qemu_plugin_insn_data(const struct insn *);
size_t qemu_plugin_insn_size(const struct insn *);

EXPORT int qemu_plugin_version = 1;

enum { REPORT = 0x36, BEGIN = 0x40, END = 0x60, STEPS = 32 };

/* A translated block, for the profile. Blocks are never forgotten: QEMU may run them again. */
struct code {
	struct code *next;
	uint64_t address, instructions, executed, at_begin, in_step[STEPS];
};

static uint64_t executed, begin, total[STEPS];
static unsigned int reports;
static struct code *all;
static FILE *profile;

static void profile_begin(void)
{
	for (struct code *c = all; c; c = c->next)
		c->at_begin = c->executed;
}

static void profile_end(unsigned int step)
{
	for (struct code *c = all; c; c = c->next)
		c->in_step[step] += c->executed - c->at_begin;
}

static void profile_report(void)
{
	for (struct code *c = all; c; c = c->next)
		for (unsigned int s = 0; s < STEPS; s++)
			if (c->in_step[s]) {
				fprintf(profile, "%u %u %llx %llu %llu\n", reports, s,
					(unsigned long long)c->address,
					(unsigned long long)c->in_step[s],
					(unsigned long long)(c->in_step[s] / c->instructions));
				c->in_step[s] = 0;
			}
	fflush(profile);
}

static void report(void)
{
	fprintf(stderr, "INSNS [");
	for (unsigned int s = 0; s < STEPS; s++) {
		fprintf(stderr, "%s%llu", s ? "," : "", (unsigned long long)total[s]);
		total[s] = 0;
	}
	fprintf(stderr, "]\n");
	if (profile)
		profile_report();
	reports++;
}

static void mark(unsigned int cpu, void *which)
{
	unsigned int n = (uintptr_t)which;

	(void)cpu;
	if (n == REPORT) {
		report();
	} else if (n >= BEGIN && n < BEGIN + STEPS) {
		begin = executed;
		if (profile)
			profile_begin();
	} else if (n >= END && n < END + STEPS) {
		total[n - END] += executed - begin;
		if (profile)
			profile_end(n - END);
	}
}

static void translated(plugin_id id, struct block *block)
{
	size_t n = qemu_plugin_tb_n_insns(block), i;
	struct code *code = NULL;

	(void)id;
	if (profile) {
		code = calloc(1, sizeof(*code));
		if (!code)
			abort();
		code->address = qemu_plugin_tb_vaddr(block);
		code->instructions = n;
		code->next = all;
		all = code;
	}
	for (i = 0; i < n; i++) {
		struct insn *insn = qemu_plugin_tb_get_insn(block, i);
		const unsigned char *b = qemu_plugin_insn_data(insn);

		qemu_plugin_register_vcpu_insn_exec_inline(insn, 0, &executed, 1);
		if (profile)
			qemu_plugin_register_vcpu_insn_exec_inline(insn, 0, &code->executed, 1);
		if (qemu_plugin_insn_size(insn) == 8 && !memcmp(b, "\x0f\x1f\x84\x00", 4) &&
		    !memcmp(b + 5, "\x4d\x54\x50", 3))
			qemu_plugin_register_vcpu_insn_exec_cb(insn, mark, 0,
							       (void *)(uintptr_t)b[4]);
	}
}

EXPORT int qemu_plugin_install(plugin_id id, const struct info *info, int argc, char **argv)
{
	(void)info;
	for (int i = 0; i < argc; i++)
		if (!strncmp(argv[i], "profile=", 8)) {
			profile = fopen(argv[i] + 8, "w");
			if (!profile)
				return -1;
		}
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	return 0;
}
