// SPDX-License-Identifier: GPL-2.0
/*
 * provoke contig|kthread: comes to two places that need help from the kernel
 * under test (mm/mistake.c of harness/mistakes.patch) to be come to.
 *
 * contig: a block of memory is wanted in one piece while groups of it are on a
 * per-CPU list, from where a fault may take and reserve them. kthread: a kernel
 * thread is the first to touch a part of a process's memory.
 */
#include "common.h"
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>

#ifndef PR_SET_PTEMAGNET
#define PR_SET_PTEMAGNET	0x50544d47
#endif
#define HELP		"/sys/kernel/debug/mistake/"
/* Pages that a write to contig takes: CONTIG_PAGES there. */
#define BLOCK_PAGES	1024UL
#define PAGES		(96UL << 20 >> PAGE_SHIFT)
/* Neighbouring groups that are to be on the per-CPU list: fewer than it gives back at a time. */
#define LISTED		4UL
#define RUN_PAGES	(LISTED * GROUP_PAGES)

/* 0, or the error. */
static int tell(const char *file, unsigned long value)
{
	char text[24];
	int fd = open(file, O_WRONLY), n = snprintf(text, sizeof(text), "%lu", value), err;

	if (fd < 0)
		die(file);
	err = write(fd, text, n) == n ? 0 : errno;
	close(fd);
	return err;
}

static bool told(const char *file)
{
	char c = 0;
	int fd = open(file, O_RDONLY);

	if (fd < 0 || read(fd, &c, 1) != 1)
		die(file);
	close(fd);
	return c == '1';
}

static void stay_on(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		die("sched_setaffinity");
}

static bool in_block(uint64_t frame, uint64_t block)
{
	return frame / BLOCK_PAGES == block;
}

/* A block of memory all of whose pages are ours. */
static uint64_t own_block(const uint64_t *frame)
{
	static uint16_t ours[1UL << 20];
	size_t i;

	for (i = 0; i < PAGES; i++)
		if (++ours[frame[i] / BLOCK_PAGES] == BLOCK_PAGES)
			return frame[i] / BLOCK_PAGES;
	fprintf(stderr, "no block of memory is all ours\n");
	exit(1);
}

/* Where a run of so many neighbouring pages, from the begin of a group on, lies in the block. */
static size_t run_in_block(const uint64_t *frame, uint64_t block)
{
	size_t i, k;

	for (i = 0; i + RUN_PAGES <= PAGES; i += GROUP_PAGES) {
		for (k = 0; k < RUN_PAGES && in_block(frame[i + k], block); k++)
			;
		if (k == RUN_PAGES)
			return i;
	}
	fprintf(stderr, "the groups of a block are nowhere neighbours\n");
	exit(1);
}

/* Asks for a block of memory once it is told for which, from the other processor; returns the error. */
static void *asker(void *pipe)
{
	uint64_t block;

	stay_on(0);
	if (read(*(int *)pipe, &block, sizeof(block)) != sizeof(block))
		die("read");
	return (void *)(intptr_t)tell(HELP "contig", block * BLOCK_PAGES);
}

/* A thread asks, as after a fork() who writes first takes groups from the list. */
static int contig(void)
{
	static uint64_t frame[PAGES], again[LISTED];
	size_t i, at, anew = 0;
	char *p, *q;
	pthread_t thread;
	uint64_t block;
	int ask[2];
	void *err;

	stay_on(1);
	if (pipe(ask) || pthread_create(&thread, NULL, asker, ask))
		die("pthread_create");
	p = map_aligned(PAGES * PAGE);
	q = map_aligned(LISTED * GROUP);
	for (i = 0; i < PAGES; i++)
		p[i * PAGE] = 1;
	/* Its page table is not to come from what is freed below. */
	*q = 1;
	if (madvise(q, PAGE, MADV_DONTNEED))
		die("madvise");
	read_frames(p, PAGES, frame);
	block = own_block(frame);
	at = run_in_block(frame, block);
	if (madvise(p + at * PAGE, RUN_PAGES * PAGE, MADV_DONTNEED))
		die("madvise");
	if (write(ask[1], &block, sizeof(block)) != sizeof(block))
		die("write");
	while (!told(HELP "go") && pthread_tryjoin_np(thread, &err))
		usleep(1000);
	if (!told(HELP "go")) {
		printf("not ok - a block of memory cannot be had from the start: %s\n",
		       strerror((intptr_t)err));
		return 1;
	}
	for (i = 0; i < LISTED; i++) {
		q[i * GROUP] = 1;
		read_frames(q + i * GROUP, 1, &again[i]);
		anew += in_block(again[i], block);
	}
	tell(HELP "go", 1);
	pthread_join(thread, &err);
	printf("# contig: %lu new groups, %zu of them in the block, then: %s\n", LISTED, anew,
	       err ? strerror((intptr_t)err) : "had");
	printf("%s - nothing of a block is reserved anew once it is being taken in one piece\n",
	       anew || err ? "not ok" : "ok");
	return 0;
}

/* Pages that are reserved: nobody else has any here. A table is named by who was first to need it. */
static long reserved(void)
{
	long tgid, leaves, groups, pages, found = 0;
	FILE *in = fopen("/sys/kernel/debug/ptemagnet/tables", "r");
	char line[128];

	if (!in)
		die("ptemagnet/tables");
	while (fgets(line, sizeof(line), in))
		if (sscanf(line, "%ld %ld %ld %ld", &tgid, &leaves, &groups, &pages) == 4)
			found += pages;
	fclose(in);
	return found;
}

static int kthread(void)
{
	char *p = map_aligned(2 * HUGE);
	long before = reserved(), kernels, ours;
	int err = tell(HELP "kthread", (uintptr_t)p);

	kernels = reserved() - before;
	p[HUGE] = 1;
	ours = reserved() - before - kernels;
	printf("# kthread: a kernel thread reserved %ld pages, the process %ld; %s\n", kernels, ours,
	       err ? strerror(err) : *p == 1 ? "written" : "not written");
	printf("%s - a kernel thread that writes to the memory of a process reserves nothing\n",
	       !err && *p == 1 && !kernels && ours == GROUP_PAGES - 1 ? "ok" : "not ok");
	return 0;
}

int main(int argc, char **argv)
{
	setbuf(stdout, NULL);
	if (prctl(PR_SET_PTEMAGNET, 1, 0, 0, 0))
		die("prctl");
	if (argc == 2 && !strcmp(argv[1], "contig"))
		return contig();
	if (argc == 2 && !strcmp(argv[1], "kthread"))
		return kthread();
	fprintf(stderr, "usage: provoke contig|kthread\n");
	return 2;
}
