// SPDX-License-Identifier: GPL-2.0
/*
 * superpages MEMORY-MIB NEED-MIB PERCENT FILL ADVICE SECONDS
 *
 * How many huge pages a program gets on fragmented memory. Prints one object
 * a line, "SUPERPAGES {...}": what lies free, and the counters of /proc/vmstat.
 *
 * A child fragments memory by the recipe of Zhu, Cox and Rixner (ATC 2020): it
 * writes all memory, and unmaps all but the last 64 KiB of each 2 MiB, so that
 * free 2 MiB blocks are left for only 100 - PERCENT of 100 of NEED-MIB. FILL
 * says in what it writes: "small" or "huge" pages. PERCENT "fresh": no recipe.
 * FILL "scripts": the three steps of the authors' scripts, in shares of
 * MEMORY-MIB, which is the guest's: memory under pressure (a p in NW_steps),
 * then all of it fragmented and more asked for (an a), and then what is left.
 * Then NEED-MIB are written for the first time, a store a page, in order, with
 * ADVICE "advised" after MADV_HUGEPAGE. Then it sleeps for SECONDS, and looks
 * at its memory each second.
 */
#include "common.h"
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define HUGE_PAGES	512UL
#define KEPT_PAGES	16UL
#define HUGE_ORDER	9
#define ORDERS		11
#define PROACTIVENESS	"/proc/sys/vm/compaction_proactiveness"
#define THP		"/sys/kernel/mm/transparent_hugepage/"

static const char * const counters[] = {
	"thp_fault_alloc", "thp_fault_fallback", "thp_collapse_alloc", "thp_collapse_alloc_failed",
	"thp_split_page", "thp_deferred_split_page", "thp_split",
	"compact_stall", "compact_success", "compact_fail", "compact_isolated", "compact_daemon_wake",
	"compact_migrate_scanned", "compact_free_scanned", "compact_daemon_migrate_scanned",
	"pgmigrate_success", "pgmigrate_fail", "allocstall_normal", "allocstall_movable", "pgscan_direct",
	/* Linux 4.3's own names, beside thp_split. */
	"allocstall", "pgscan_direct_dma32", "pgscan_direct_normal",
};

/* Of all zones but that of the first 16 MiB, which faults leave alone. */
static void free_blocks(unsigned long count[ORDERS])
{
	FILE *in = fopen("/proc/buddyinfo", "r");
	char zone[16];
	unsigned long n;
	int order;

	if (!in)
		die("/proc/buddyinfo");
	memset(count, 0, ORDERS * sizeof(*count));
	while (fscanf(in, "Node %*d, zone %15s", zone) == 1)
		for (order = 0; order < ORDERS; order++)
			if (fscanf(in, "%lu ", &n) == 1 && strcmp(zone, "DMA"))
				count[order] += n;
	fclose(in);
}

static unsigned long free_huge_blocks(void)
{
	unsigned long count[ORDERS], sum = 0;
	int order;

	free_blocks(count);
	for (order = HUGE_ORDER; order < ORDERS; order++)
		sum += count[order] << (order - HUGE_ORDER);
	return sum;
}

static unsigned long free_pages(void)
{
	return read_counter("/proc/meminfo", "MemFree") / 4;
}

/* Pages of the zones' watermarks of this name. */
static unsigned long watermark(const char *name)
{
	FILE *in = fopen("/proc/zoneinfo", "r");
	unsigned long n, sum = 0;
	char line[256], key[64];

	if (!in)
		die("/proc/zoneinfo");
	while (fgets(line, sizeof(line), in))
		if (sscanf(line, " %63s %lu", key, &n) == 2 && !strcmp(key, name))
			sum += n;
	fclose(in);
	return sum;
}

/* Of this process. */
static unsigned long huge_pages(void)
{
	FILE *in = fopen("/proc/self/smaps", "r");
	unsigned long kib, sum = 0;
	char line[256];

	if (!in)
		die("/proc/self/smaps");
	while (fgets(line, sizeof(line), in))
		if (sscanf(line, "AnonHugePages: %lu", &kib) == 1)
			sum += kib;
	fclose(in);
	return sum / 2048;
}

static char *map(size_t bytes)
{
	char *p = mmap(NULL, bytes + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		die("mmap");
	return (char *)(((uintptr_t)p + HUGE - 1) & ~(HUGE - 1));
}

static void unmap(char *p, size_t bytes)
{
	if (munmap(p, bytes))
		die("munmap");
}

/*
 * Makes 4 KiB pages of huge pages, so that what is unmapped of them is free at once. A kernel without the file
 * (Linux 4.3) splits a huge page itself when a part of it is unmapped.
 */
static void split(char *p, size_t bytes)
{
	if (!access("/sys/kernel/debug/split_huge_pages", F_OK) &&
	    write_file("/sys/kernel/debug/split_huge_pages", "%d,0x%lx,0x%lx", getpid(), (unsigned long)p,
		       (unsigned long)p + bytes))
		die("split_huge_pages");
}

/* Free 2 MiB blocks beyond those: each gets 64 KiB. */
static void break_blocks_beyond(unsigned long wanted)
{
	unsigned long free, before;
	char *p;

	while ((free = free_huge_blocks()) > wanted) {
		before = huge_pages();
		p = map(HUGE);
		if (madvise(p, HUGE, MADV_HUGEPAGE))
			die("madvise(MADV_HUGEPAGE)");
		*p = 1;
		/* The kernel does not give the others out either. */
		if (huge_pages() == before)
			break;
		split(p, HUGE);
		unmap(p, HUGE - KEPT_PAGES * PAGE);
	}
}

static void fragment(unsigned long wanted, bool small)
{
	unsigned long blocks = read_counter("/proc/meminfo", "MemTotal") / 2048, high = watermark("high");
	unsigned long written = 0, b, i;
	char *p = map(blocks * HUGE);

	if (madvise(p, blocks * HUGE, small ? MADV_NOHUGEPAGE : MADV_HUGEPAGE))
		die("madvise");
	for (written = 0; written < blocks && free_pages() > high + 2 * HUGE_PAGES; written++)
		for (i = 0; i < HUGE_PAGES; i++)
			p[written * HUGE + i * PAGE] = 1;
	unmap(p + written * HUGE, (blocks - written) * HUGE);
	for (b = 0; b < written; b++) {
		bool whole = free_huge_blocks() < wanted;

		unmap(p + b * HUGE, whole ? HUGE : HUGE - KEPT_PAGES * PAGE);
	}
	if (small)
		break_blocks_beyond(wanted);
}

static void write_blocks(char *p, unsigned long blocks)
{
	unsigned long i;

	for (i = 0; i < blocks * HUGE_PAGES; i++)
		p[i * PAGE] = 1;
}

static void write_a_page_of_each(char *p, unsigned long blocks)
{
	unsigned long b;

	for (b = 0; b < blocks; b++)
		p[b * HUGE] = 1;
}

/* Keeps the last pages of each of these blocks. */
static void thin_out(char *p, unsigned long blocks, unsigned long kept)
{
	unsigned long b;

	for (b = 0; b < blocks; b++)
		unmap(p + b * HUGE, HUGE - kept * PAGE);
}

/* Runs a step as a process of its own, so that its memory is free after it. */
static void run_alone(void (*step)(unsigned long), unsigned long argument)
{
	int status;
	pid_t child = fork();

	if (!child) {
		step(argument);
		_exit(0);
	}
	if (child < 0 || waitpid(child, &status, 0) != child || status) {
		fprintf(stderr, "superpages: a step has failed\n");
		exit(1);
	}
}

/* Writes nearly all memory, gives some of it back in pieces, and asks for more. SHARE: blocks of 1/32 of memory. */
static void press(unsigned long share)
{
	char *first = map(30 * share * HUGE), *second = map(3 * share * HUGE);

	write_blocks(first, 30 * share);
	thin_out(first, share, 1);
	write_a_page_of_each(second, 3 * share);
}

/* Leaves so many free blocks, or the least that the kernel lets it leave. */
static void fragment_by_scripts(unsigned long share, unsigned long wanted)
{
	unsigned long blocks = 29 * share - wanted, more = 30 * share, free, b;
	char *first = map(blocks * HUGE), *second = map(more * HUGE);

	write_blocks(first, blocks);
	thin_out(first, blocks, KEPT_PAGES);
	for (b = 0; b < more && (free = free_huge_blocks()) > wanted; b++) {
		write_blocks(second + b * HUGE, 1);
		thin_out(second + b * HUGE, 1, KEPT_PAGES);
	}
}

static void ask_for_blocks(unsigned long blocks)
{
	write_a_page_of_each(map(blocks * HUGE), blocks);
	sleep(15);
}

/* Fragments all of it, and asks for a quarter of memory in huge pages. */
static void provoke(unsigned long share)
{
	fragment_by_scripts(share, 0);
	sleep(1);
	run_alone(ask_for_blocks, 8 * share);
}

/* The child that has fragmented memory, and keeps what it holds until its parent ends. */
static void start_holder(unsigned long memory, unsigned long wanted, const char *fill)
{
	unsigned long share = memory / 2 / 32;
	int tell;
	pid_t pid = fork_and_await(&tell);

	if (pid < 0)
		die("the holder has ended");
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (!strcmp(fill, "scripts")) {
			const char *steps = getenv("NW_steps");

			if (strchr(steps, 'p'))
				run_alone(press, share);
			if (strchr(steps, 'a'))
				run_alone(provoke, share);
			fragment_by_scripts(share, wanted);
		} else {
			fragment(wanted, !strcmp(fill, "small"));
		}
		stay(tell);
	}
}

static void report(const char *when, unsigned int second, unsigned long huge)
{
	unsigned long count[ORDERS];
	size_t i;

	free_blocks(count);
	printf("SUPERPAGES {\"when\":\"%s\",\"second\":%u,\"huge\":%lu,\"free_pages\":%lu,\"free_blocks\":[", when, second, huge,
	       free_pages());
	for (i = 0; i < ORDERS; i++)
		printf("%lu%s", count[i], i < ORDERS - 1 ? "," : "]");
	for (i = 0; i < sizeof(counters) / sizeof(*counters); i++) {
		long value = read_counter("/proc/vmstat", counters[i]);

		/* Releases differ in what they count. */
		if (value >= 0)
			printf(",\"%s\":%ld", counters[i], value);
	}
	printf("}\n");
	fflush(stdout);
}

static void set(const char *file, const char *name)
{
	const char *value = getenv(name);

	if (!value || write_file(file, "%s", value))
		die(name);
}

int main(int argc, char **argv)
{
	unsigned long need, pages, i;
	unsigned int second;
	char *p;

	if (argc != 7) {
		fprintf(stderr, "usage: superpages MEMORY-MIB NEED-MIB PERCENT|fresh small|huge|scripts plain|advised SECONDS\n");
		return 2;
	}
	need = strtoul(argv[2], NULL, 10) / 2;
	pages = need * HUGE_PAGES;
	if (strcmp(argv[3], "fresh"))
		start_holder(strtoul(argv[1], NULL, 10), need * (100 - strtoul(argv[3], NULL, 10)) / 100, argv[4]);
	report("fragmented", 0, 0);
	/* Until here neither khugepaged nor kcompactd has run, and no fault has compacted. */
	if (!access(PROACTIVENESS, F_OK))
		set(PROACTIVENESS, "NW_proactiveness");
	sleep(strtoul(getenv("NW_wait"), NULL, 10));
	set(THP "defrag", "NW_defrag");
	p = map(need * HUGE);
	if (!strcmp(argv[5], "advised") && madvise(p, need * HUGE, MADV_HUGEPAGE))
		die("madvise(MADV_HUGEPAGE)");
	report("before", 0, 0);
	for (i = 0; i < pages; i++)
		p[i * PAGE] = 1;
	report("faulted", 0, huge_pages());
	set(THP "khugepaged/alloc_sleep_millisecs", "NW_alloc_sleep");
	/* Wakes it. */
	set(THP "khugepaged/scan_sleep_millisecs", "NW_scan_sleep");
	for (second = 1; second <= strtoul(argv[6], NULL, 10); second++) {
		sleep(1);
		report("later", second, huge_pages());
	}
	return 0;
}
