// SPDX-License-Identifier: GPL-2.0
/*
 * folios MIB TAG
 *
 * What MIB MiB of anonymous memory cost, and how they lie. Prints a line for each of
 *
 *   sparse     one page in eight is touched, in order
 *   dense      every page is touched, in order
 *   in_order   dense; then, beside a forked child, the parent rewrites every page in order
 *   eighth     dense; the parent rewrites one page in eight beside a child, which then ends
 *   rewritten  dense; the parent rewrites every page in random order beside a child (as a database
 *              does whose child saves it)
 *   thinned    dense; then seven pages of each eight are given back with MADV_DONTNEED
 *
 * with its page faults, what is resident, what there is less of free memory, and the same once the
 * kernel has been asked to give back what it can (drop_caches: all shrinkers run).
 */
#include "common.h"
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define SOME_KB	64

static size_t pages;
static const char *tag;

/* MemFree, and what lies on the per-CPU lists of the page allocator, which can be megabytes. */
static long free_kb(void)
{
	long kb = read_counter("/proc/meminfo", "MemFree"), count;
	FILE *in = fopen("/proc/zoneinfo", "r");
	char line[256];

	if (!in)
		die("/proc/zoneinfo");
	while (fgets(line, sizeof(line), in))
		if (sscanf(line, " count: %ld", &count) == 1)
			kb += count << (PAGE_SHIFT - 10);
	fclose(in);
	return kb;
}

static long rss_kb(void)
{
	return read_counter("/proc/self/status", "VmRSS");
}

/* Have the kernel give back what it can, as often as that frees anything to speak of. */
static long reclaimed_free_kb(void)
{
	long before, after = free_kb();

	do {
		before = after;
		if (write_file("/proc/sys/vm/drop_caches", "2\n"))
			die("drop_caches");
		/* Some is freed after an RCU grace period. */
		usleep(50000);
		after = free_kb();
	} while (after > before + SOME_KB);
	return after;
}

static long faults(void)
{
	struct rusage usage;

	if (getrusage(RUSAGE_SELF, &usage))
		die("getrusage");
	return usage.ru_minflt + usage.ru_majflt;
}

/* How much there was before the memory was mapped. */
static long rss_before, free_before, faults_before;

static void begin(void)
{
	rss_before = rss_kb();
	free_before = free_kb();
	faults_before = faults();
}

static void report(const char *what, const char *p)
{
	long taken = faults() - faults_before;
	long rss = rss_kb() - rss_before, used = free_before - free_kb(), kept;
	uint64_t *frame = malloc(pages * sizeof(*frame));
	struct fragmentation f;

	if (!frame)
		die("malloc");
	read_frames(p, pages, frame);
	fragmentation_of(frame, pages, &f);
	free(frame);
	kept = free_before - reclaimed_free_kb();
	printf("FOLIOS {\"tag\":\"%s\",\"what\":\"%s\",\"mib\":%zu,\"faults\":%ld,\"rss_kb\":%ld,\"used_kb\":%ld,\"kept_kb\":%ld,\"groups\":%zu,\"mean\":%.4f}\n",
	       tag, what, pages >> 8, taken, rss, used, kept, f.complete, fragmentation_mean(&f));
}

static char *touched(size_t every)
{
	char *p;
	size_t i;

	begin();
	p = map_aligned(pages << PAGE_SHIFT);
	for (i = 0; i < pages; i += every)
		p[i << PAGE_SHIFT] = 1;
	return p;
}

/* A child that shares all memory, and does nothing. */
static pid_t sharing_child(void)
{
	pid_t pid = fork();

	if (!pid) {
		pause();
		_exit(0);
	}
	if (pid < 0)
		die("fork");
	return pid;
}

static void end(pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static void rewrite_ascending(char *p)
{
	size_t i;
	pid_t pid;

	begin();
	pid = sharing_child();
	for (i = 0; i < pages; i++)
		p[i << PAGE_SHIFT] = 2;
	report("in_order", p);
	end(pid);
}

static void rewrite_an_eighth(char *p)
{
	size_t i;
	pid_t pid;

	begin();
	pid = sharing_child();
	for (i = 0; i < pages; i += GROUP_PAGES)
		p[i << PAGE_SHIFT] = 2;
	end(pid);
	report("eighth", p);
}

static void rewrite_random(char *p)
{
	uint64_t seed = 88172645463325252ULL;
	uint32_t *order = malloc(pages * sizeof(*order));
	size_t i;
	pid_t pid;

	if (!order)
		die("malloc");
	shuffled(order, pages, &seed);
	begin();
	pid = sharing_child();
	for (i = 0; i < pages; i++)
		p[(size_t)order[i] << PAGE_SHIFT] = 2;
	report("rewritten", p);
	end(pid);
	free(order);
}

int main(int argc, char **argv)
{
	size_t i;
	char *p;

	if (argc != 3) {
		fprintf(stderr, "usage: folios MIB TAG\n");
		return 2;
	}
	pages = strtoul(argv[1], NULL, 0) << 8;
	tag = argv[2];

	p = touched(GROUP_PAGES);
	report("sparse", p);
	munmap(p, pages << PAGE_SHIFT);

	p = touched(1);
	report("dense", p);
	rewrite_ascending(p);
	munmap(p, pages << PAGE_SHIFT);

	p = touched(1);
	rewrite_an_eighth(p);
	munmap(p, pages << PAGE_SHIFT);

	/* Last of these, since it leaves free memory in single pages. */
	p = touched(1);
	rewrite_random(p);
	munmap(p, pages << PAGE_SHIFT);

	p = touched(1);
	for (i = 0; i < pages; i += GROUP_PAGES)
		if (madvise(p + ((i + 1) << PAGE_SHIFT), (GROUP_PAGES - 1) << PAGE_SHIFT, MADV_DONTNEED))
			die("madvise(MADV_DONTNEED)");
	report("thinned", p);
	return 0;
}
