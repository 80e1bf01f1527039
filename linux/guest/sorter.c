// SPDX-License-Identifier: GPL-2.0
/*
 * sorter RULE...
 *
 * Tests of sorted page tables (vm.sorted_page_tables=1), each in a process of its own, by what
 * /sys/kernel/debug/sorted_tables says of that process. Two more hold still for
 * harness/outside.py, which looks at the tables themselves:
 *
 * sorter hold MIB GO: a fresh mapping; sorter huge MIB GO: huge pages, split in random order
 *
 * sorter sparse GIBS SECONDS: touches one page in each GiB, and waits.
 *
 * sorter age MIB KIB: leaves a process behind that has touched MIB and given all up again but one
 * page of each KIB, at random, so that no larger block is free there. With 0 MIB it touches memory
 * until all but AGED_LEFT is in use.
 *
 * sorter run PROGRAM...: starts a program whose tables are to be sorted.
 *
 * sorter crowd PROCESSES TAG, with vm.sorted_page_tables=2: what it takes that so many processes have
 * regions, between marks that harness/insncount.c knows.
 */
#include "common.h"
#include "marks.h"
#include <linux/mempolicy.h>
#include <linux/prctl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>

#ifndef PR_SET_SORTED_PAGE_TABLES
#define PR_SET_SORTED_PAGE_TABLES	0x53505442
#define PR_GET_SORTED_PAGE_TABLES	0x53505443
#endif

#define DEBUGFS		"/sys/kernel/debug/sorted_tables/"
#define GIB		(1UL << 30)
#define TABLE		HUGE			/* what a table of the lowest level maps */
#define TABLES		(GIB / TABLE)
/* Bytes that "age 0" leaves free: the watermarks and the lists of each CPU have their part of it. */
#define AGED_LEFT	(2UL << 20)
/* Far from what the kernel chooses. */
#define AT		((char *)0x100000000000UL)

static const char *rule;
static int failures;

static void expect(bool holds, const char *what, long a, long b)
{
	if (holds)
		return;
	printf("# %s: %s: %ld %ld\n", rule, what, a, b);
	failures++;
}

#define EXPECT_EQ(a, b) expect((long)(a) == (long)(b), #a " == " #b, (long)(a), (long)(b))
#define EXPECT_LE(a, b) expect((long)(a) <= (long)(b), #a " <= " #b, (long)(a), (long)(b))
#define EXPECT(a)	expect(a, #a, 0, 0)

static long stat_of(const char *key)
{
	return read_counter(DEBUGFS "stats", key);
}

static void choose(int on)
{
	if (prctl(PR_SET_SORTED_PAGE_TABLES, on, 0, 0, 0))
		die("prctl");
}

/* What debugfs has of the calling process in a column; 0 if there is nothing yet. */
static long own_stat(const char *column)
{
	char line[512], *field, *rest;
	int at = -1, i;
	FILE *in = fopen(DEBUGFS "processes", "r");
	long value = 0;

	if (!in)
		die("processes");
	while (fgets(line, sizeof(line), in)) {
		line[strcspn(line, "\n")] = 0;
		for (i = 0, field = strtok_r(line, " ", &rest); field; i++, field = strtok_r(NULL, " ", &rest)) {
			if (!strcmp(field, column))
				at = i;
			if (i == at && atoi(line) == getpid())
				value = atol(field);
		}
	}
	fclose(in);
	if (at < 0)
		die(column);
	return value;
}

/* Of a node, what /proc/zoneinfo says: whether a frame is in one of its zones. */
static bool frame_is_on(unsigned long frame, int node)
{
	unsigned long spanned = 0, start;
	char line[256];
	bool found = false;
	int at = -1;
	FILE *in = fopen("/proc/zoneinfo", "r");

	if (!in)
		die("zoneinfo");
	while (fgets(line, sizeof(line), in)) {
		sscanf(line, "Node %d, zone", &at);
		sscanf(line, " spanned %lu", &spanned);
		if (sscanf(line, " start_pfn: %lu", &start) == 1)
			found |= at == node && frame >= start && frame < start + spanned;
	}
	fclose(in);
	return found;
}

struct regions {
	long regions, tables, used, idle, holes;
	/* Regions by the node of their first frame. */
	long on_node[2];
};

/* What the calling process has of a level between two addresses. */
static struct regions regions_of(int level, const char *from, const char *to)
{
	struct regions sum = { };
	char line[256];
	FILE *in = fopen(DEBUGFS "regions", "r");

	if (!in)
		die("regions");
	while (fgets(line, sizeof(line), in)) {
		unsigned long start, end, pfn;
		long used, idle, holes;
		int tgid, at;

		if (sscanf(line, "%d %d %lx %lx %lx %ld %ld %ld", &tgid, &at, &start, &end, &pfn,
			   &used, &idle, &holes) != 8)
			continue;
		if (tgid != getpid() || at != level || end <= (unsigned long)from ||
		    start >= (unsigned long)to)
			continue;
		sum.regions++;
		sum.tables += (end - start) / (level == 1 ? TABLE : GIB);
		sum.used += used;
		sum.idle += idle;
		sum.holes += holes;
		sum.on_node[0] += frame_is_on(pfn, 0);
		sum.on_node[1] += frame_is_on(pfn, 1);
	}
	fclose(in);
	return sum;
}

static char *map_at(char *at, size_t bytes)
{
	char *p = mmap(at, bytes, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);

	if (p != at)
		die("mmap");
	if (madvise(p, bytes, MADV_NOHUGEPAGE) && errno != EINVAL)
		die("madvise");
	return p;
}

static void touch(char *p, size_t bytes, size_t step)
{
	size_t i;

	for (i = 0; i < bytes; i += step)
		p[i] = 1 + (i / step) % 100;
}

static bool untouched_data(const char *p, size_t bytes, size_t step)
{
	size_t i;

	for (i = 0; i < bytes; i += step)
		if (p[i] != (char)(1 + (i / step) % 100))
			return false;
	return true;
}

static void dense(void)
{
	char *at = AT + 16 * GIB;
	struct regions r;

	choose(1);
	touch(map_at(AT, GIB), GIB, TABLE);
	r = regions_of(1, AT, AT + GIB);
	EXPECT_EQ(r.regions, 1);
	EXPECT_EQ(r.tables, TABLES);
	EXPECT_EQ(r.used, TABLES);
	EXPECT_EQ(r.holes, 0);
	/* One as large as the mapping, whatever that is aligned to. */
	at += 5 * TABLE;
	touch(map_at(at, 8 * TABLE), 8 * TABLE, TABLE);
	r = regions_of(1, at, at + 8 * TABLE);
	EXPECT_EQ(r.regions, 1);
	EXPECT_EQ(r.tables, 8);
	EXPECT_EQ(r.used, 8);
}

static void backwards(void)
{
	struct regions r;
	size_t i;
	char *p;

	choose(1);
	p = map_at(AT, GIB);
	for (i = TABLES; i--;)
		p[i * TABLE] = 1;
	r = regions_of(1, AT, AT + GIB);
	EXPECT_EQ(r.regions, 1);
	EXPECT_EQ(r.used, TABLES);
}

static void not_chosen(void)
{
	long held = stat_of("held");

	EXPECT_EQ(prctl(PR_GET_SORTED_PAGE_TABLES, 0, 0, 0, 0), 0);
	touch(map_at(AT, GIB), GIB, TABLE);
	EXPECT_EQ(regions_of(1, AT, AT + GIB).regions, 0);
	EXPECT_EQ(stat_of("held"), held);
	choose(1);
	EXPECT_EQ(prctl(PR_GET_SORTED_PAGE_TABLES, 0, 0, 0, 0), 1);
	choose(0);
	EXPECT_EQ(prctl(PR_GET_SORTED_PAGE_TABLES, 0, 0, 0, 0), 0);
	EXPECT_EQ(prctl(PR_SET_SORTED_PAGE_TABLES, 2, 0, 0, 0), -1);
	EXPECT_EQ(prctl(PR_GET_SORTED_PAGE_TABLES, 1, 0, 0, 0), -1);
}

/* A mapping that grows a table at a time, in either direction, has few regions, each twice as large. */
static void grows(void)
{
	char *end = AT + 16 * GIB;
	struct regions r;
	size_t i;

	choose(1);
	for (i = 0; i < 256; i++)
		touch(map_at(AT + i * TABLE, TABLE), TABLE, TABLE);
	r = regions_of(1, AT, AT + GIB);
	EXPECT_LE(r.regions, 9);
	/* The first one had no neighbour yet. */
	EXPECT_LE(255, r.used);
	EXPECT_LE(r.tables, 256 + 256);
	for (i = 1; i <= 256; i++)
		touch(map_at(end - i * TABLE, TABLE), TABLE, TABLE);
	r = regions_of(1, end - GIB, end);
	EXPECT_LE(r.regions, 9);
	EXPECT_LE(255, r.used);
	EXPECT_LE(r.tables, 256 + 256);
}

static void unmapped(void)
{
	struct regions r;
	char *p;

	choose(1);
	p = map_at(AT, GIB);
	touch(p, GIB, TABLE);
	if (munmap(p + 128 * TABLE, 128 * TABLE))
		die("munmap");
	r = regions_of(1, AT, AT + GIB);
	EXPECT_EQ(r.regions, 2);
	EXPECT_EQ(r.used, TABLES - 128);
	EXPECT_EQ(r.idle + r.holes, 0);
	/* What is mapped there next is in order again. */
	touch(map_at(p + 128 * TABLE, 128 * TABLE), 128 * TABLE, TABLE);
	r = regions_of(1, AT, AT + GIB);
	EXPECT_EQ(r.regions, 3);
	EXPECT_EQ(r.used, TABLES);
	/* Not what lies in between tables. */
	if (munmap(p + PAGE, 3 * TABLE / 2))
		die("munmap");
	EXPECT_EQ(regions_of(1, AT, AT + GIB).tables, TABLES);
	if (munmap(p, GIB))
		die("munmap");
	EXPECT_EQ(regions_of(1, AT, AT + GIB).regions, 0);
}

static void dropped(void)
{
	struct regions r;
	char *p;

	choose(1);
	p = map_at(AT, GIB);
	touch(p, GIB, TABLE);
	if (madvise(p, GIB, MADV_DONTNEED))
		die("madvise");
	touch(p, GIB, TABLE);
	r = regions_of(1, AT, AT + GIB);
	EXPECT_EQ(r.regions, 1);
	EXPECT_EQ(r.used, TABLES);
}

static void moved(void)
{
	size_t bytes = 64 * TABLE;
	char *to = AT + 16 * GIB;
	struct regions r;
	char *p;

	choose(1);
	p = map_at(AT, bytes);
	touch(p, bytes, TABLE);
	if (mremap(p, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to)
		die("mremap");
	EXPECT(untouched_data(to, bytes, TABLE));
	EXPECT_EQ(regions_of(1, AT, AT + GIB).regions, 0);
	r = regions_of(1, to, to + bytes);
	EXPECT_EQ(r.regions, 1);
	EXPECT_EQ(r.used, 64);
	/* From the middle of a table to that of another, where a kernel may move the table whole: 6.12 does. */
	bytes = 8 * TABLE;
	to += 16 * GIB + TABLE / 2;
	p = map_at(AT + TABLE / 2, bytes);
	touch(p, bytes, TABLE / 2);
	if (mremap(p, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to)
		die("mremap");
	EXPECT(untouched_data(to, bytes, TABLE / 2));
	r = regions_of(1, to, to + bytes);
	EXPECT_EQ(r.regions, 1);
	EXPECT_EQ(r.used, 9);
}

static void forked(void)
{
	char *p;
	int status;
	pid_t pid;

	choose(1);
	p = map_at(AT, GIB);
	touch(p, GIB, TABLE);
	pid = fork();
	if (pid < 0)
		die("fork");
	if (!pid) {
		struct regions r = regions_of(1, AT, AT + GIB);

		EXPECT_EQ(r.regions, 1);
		EXPECT_EQ(r.used, TABLES);
		EXPECT(untouched_data(p, GIB, TABLE));
		_exit(failures);
	}
	waitpid(pid, &status, 0);
	EXPECT_EQ(status, 0);
	EXPECT_EQ(regions_of(1, AT, AT + GIB).used, TABLES);
}

static void upper_level(void)
{
	struct regions r;

	choose(1);
	touch(map_at(AT, 64 * GIB), 64 * GIB, GIB);
	r = regions_of(2, AT, AT + 64 * GIB);
	EXPECT_EQ(r.regions, 1);
	EXPECT_EQ(r.used, 64);
	EXPECT_EQ(r.holes, 0);
}

/* A mapping within a GiB has one PMD table, and a region for it, which gives way when it grows. */
static void one_gib(void)
{
	struct regions r;

	choose(1);
	touch(map_at(AT, GIB / 2), GIB / 2, TABLE);
	r = regions_of(2, AT, AT + GIB);
	EXPECT_EQ(r.regions, 1);
	EXPECT_EQ(r.tables, 1);
	EXPECT_EQ(r.used, 1);
	map_at(AT + GIB / 2, 4 * GIB - GIB / 2);
	touch(AT + GIB, 3 * GIB, GIB);
	r = regions_of(2, AT, AT + 4 * GIB);
	EXPECT_EQ(r.regions, 1);
	EXPECT_EQ(r.tables, 4);
	EXPECT_EQ(r.used, 3);
}

/* What a new program has for its stack: nothing for what lies between, when execve() moves it. */
static int stack_of_a_program(void)
{
	char here;
	struct regions pte = regions_of(1, &here, &here + 1), pmd = regions_of(2, &here, &here + 1);
	long idle = regions_of(2, NULL, (char *)(1UL << 47)).idle;

	printf("# sorted: stack: %ld PTE tables in regions, %ld PMD tables; %ld idle PMD tables\n",
	       pte.tables, pmd.used, idle);
	/* It has its PMD table, and the one of where it was is gone. */
	return pte.tables > 8 || pmd.regions != 1 || pmd.used != 1 || idle;
}

static void stack(void)
{
	int status, i;
	pid_t pid;

	choose(1);
	/* It is moved by up to 16 GiB, at random. */
	for (i = 0; i < 4; i++) {
		fflush(stdout);
		pid = fork();
		if (pid < 0)
			die("fork");
		if (!pid) {
			execl("/proc/self/exe", "sorter", "stack_of_a_program", (char *)NULL);
			_exit(2);
		}
		waitpid(pid, &status, 0);
		EXPECT_EQ(status, 0);
	}
}

/* A process can see what it has, and why it has no more. */
static void reasons(void)
{
	long narrow, taken;

	choose(1);
	taken = own_stat("taken");
	touch(map_at(AT, 8 * TABLE), 8 * TABLE, TABLE);
	EXPECT_LE(taken + 8, own_stat("taken"));
	narrow = own_stat("narrow");
	/* A mapping of one table. */
	touch(map_at(AT + GIB, TABLE), TABLE, TABLE);
	EXPECT_LE(narrow + 1, own_stat("narrow"));
	EXPECT_LE(narrow + 1, stat_of("narrow"));
	EXPECT_EQ(own_stat("over_bound"), 0);
}

static void file_mapping(void)
{
	size_t bytes = 128 * TABLE;
	struct regions r;
	int fd = memfd_create("sorter", 0);
	char *p;

	choose(1);
	if (fd < 0 || ftruncate(fd, bytes))
		die("memfd");
	p = mmap(AT, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0);
	if (p != AT)
		die("mmap");
	touch(p, bytes, TABLE);
	r = regions_of(1, AT, AT + bytes);
	EXPECT_EQ(r.regions, 1);
	EXPECT_EQ(r.used, 128);
}

/* Deposited tables are at their places, and those of huge pages that end are idle. */
static void huge(void)
{
	size_t bytes = 16 * TABLE;
	struct regions r;
	char *p;

	choose(1);
	p = map_at(AT, bytes);
	if (madvise(p, bytes, MADV_HUGEPAGE))
		die("madvise");
	touch(p, bytes, TABLE);
	r = regions_of(1, AT, AT + bytes);
	EXPECT_EQ(r.used, 16);
	/* As many huge pages again, or split ones. */
	if (madvise(p, bytes / 2, MADV_DONTNEED) || mprotect(p + bytes / 2, PAGE, PROT_READ))
		die("madvise");
	r = regions_of(1, AT, AT + bytes);
	EXPECT_EQ(r.used + r.idle, 16);
	touch(p, bytes / 2, TABLE);
	EXPECT(untouched_data(p, bytes / 2, TABLE));
	EXPECT_EQ(regions_of(1, AT, AT + bytes).holes, 0);
}

static char *shared;
static size_t shared_bytes;

static void *touch_all(void *unused)
{
	(void)unused;
	touch(shared, shared_bytes, TABLE);
	return NULL;
}

/* Threads that touch the same tables at once: each table there is once. */
static void threads(void)
{
	pthread_t thread[4];
	struct regions r;
	int round, i;
	long in_use;

	choose(1);
	shared_bytes = GIB;
	for (round = 0; round < 8; round++) {
		shared = map_at(AT, GIB);
		in_use = own_stat("in_use");
		for (i = 0; i < 4; i++)
			if (pthread_create(&thread[i], NULL, touch_all, NULL))
				die("pthread_create");
		for (i = 0; i < 4; i++)
			pthread_join(thread[i], NULL);
		EXPECT(untouched_data(shared, GIB, TABLE));
		r = regions_of(1, AT, AT + GIB);
		EXPECT_EQ(r.regions, 1);
		EXPECT_EQ(r.holes, 0);
		/*
		 * Who comes second finds the place in use and may win with a table from
		 * elsewhere. How often that is, is for the scheduler to decide.
		 */
		EXPECT_LE(r.used, TABLES);
		EXPECT_LE(TABLES, r.used + own_stat("in_use") - in_use);
		EXPECT_LE(TABLES / 2, r.used);
		if (munmap(shared, GIB))
			die("munmap");
	}
	EXPECT_EQ(regions_of(1, AT, AT + GIB).regions, 0);
}

/* Beyond 47 bits, where page tables have five levels. */
static void high(void)
{
	char *at = (char *)(1UL << 55);
	struct regions r;

	choose(1);
	touch(map_at(at, 4 * GIB), GIB, TABLE);
	r = regions_of(1, at, at + 4 * GIB);
	EXPECT_EQ(r.regions, 1);
	EXPECT_EQ(r.used, TABLES);
	r = regions_of(2, at, at + 4 * GIB);
	EXPECT_EQ(r.regions, 1);
	EXPECT_EQ(r.tables, 4);
	EXPECT_EQ(r.used, 1);
	if (munmap(at, 4 * GIB))
		die("munmap");
	EXPECT_EQ(regions_of(1, at, at + 4 * GIB).regions, 0);
	EXPECT_EQ(regions_of(2, at, at + 4 * GIB).regions, 0);
}

/* From here on with two nodes: t-sorted-numa.sh. */
static void policy(int mode, unsigned long nodes)
{
	if (syscall(__NR_set_mempolicy, mode, nodes ? &nodes : NULL, nodes ? 8 * sizeof(nodes) : 0))
		die("set_mempolicy");
}

/* A line of a node's meminfo, in pages. */
static long node_has(int node, const char *key)
{
	char path[64], line[128], name[32];
	long kb, found = -1;
	FILE *in;

	snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/meminfo", node);
	in = fopen(path, "r");
	if (!in)
		die(path);
	while (fgets(line, sizeof(line), in))
		if (sscanf(line, "Node %*d %31[^:]: %ld", name, &kb) == 2 && !strcmp(name, key))
			found = kb / 4;
	fclose(in);
	if (found < 0)
		die(key);
	return found;
}

/* Both levels come from the node that a task is bound to. */
static void numa_bound(void)
{
	int node;

	choose(1);
	for (node = 0; node < 2; node++) {
		char *at = AT + node * 16 * GIB;
		struct regions pte, pmd;

		policy(MPOL_BIND, 1UL << node);
		touch(map_at(at, 4 * GIB), GIB, TABLE);
		pte = regions_of(1, at, at + 4 * GIB);
		pmd = regions_of(2, at, at + 4 * GIB);
		EXPECT_EQ(pte.regions, 1);
		EXPECT_EQ(pte.used, TABLES);
		EXPECT_EQ(pte.on_node[node], 1);
		EXPECT_EQ(pte.on_node[!node], 0);
		EXPECT_EQ(pmd.regions, 1);
		EXPECT_EQ(pmd.on_node[node], 1);
		EXPECT_EQ(pmd.on_node[!node], 0);
	}
}

/* Without a policy: from the node of the CPU. */
static void numa_local(void)
{
	unsigned int cpu, node;
	struct regions r;
	cpu_set_t set;
	char *at = AT;

	choose(1);
	for (cpu = 0; cpu < 2; cpu++, at += 16 * GIB) {
		CPU_ZERO(&set);
		CPU_SET(cpu, &set);
		if (sched_setaffinity(0, sizeof(set), &set) || syscall(__NR_getcpu, NULL, &node, NULL))
			die("getcpu");
		touch(map_at(at, GIB), GIB, TABLE);
		r = regions_of(1, at, at + GIB);
		printf("# sorted: CPU %u is of node %u\n", cpu, node);
		EXPECT_EQ(r.on_node[node], 1);
		EXPECT_EQ(r.regions, 1);
	}
}

/* A region is whole on one node; with interleaving, regions are on either. */
static void numa_interleaved(void)
{
	long regions = 0, on_node[2] = { };
	struct regions r;
	int i;

	choose(1);
	policy(MPOL_INTERLEAVE, 3);
	for (i = 0; i < 64; i++) {
		char *at = AT + i * 16 * GIB;

		/* One page more each time, so that what takes turns does not do so in step. */
		touch(map_at(at, 16 * TABLE), 16 * TABLE, TABLE);
		touch(map_at(AT + i * 16 * GIB + 8 * GIB, (i + 1) * PAGE), (i + 1) * PAGE, PAGE);
		r = regions_of(1, at, at + 16 * TABLE);
		EXPECT_EQ(r.used, 16);
		regions += r.regions;
		on_node[0] += r.on_node[0];
		on_node[1] += r.on_node[1];
	}
	printf("# sorted: interleaved: %ld regions, %ld and %ld on the nodes\n", regions, on_node[0], on_node[1]);
	EXPECT_EQ(on_node[0] + on_node[1], regions);
	EXPECT_LE(1, on_node[0]);
	EXPECT_LE(1, on_node[1]);
}

/* What the documentation says of a policy that is set later: the region stays where it is, and is used. */
static void numa_later(void)
{
	long before;
	struct regions r;

	choose(1);
	policy(MPOL_BIND, 1);
	map_at(AT, GIB);
	touch(AT, GIB / 2, TABLE);
	policy(MPOL_BIND, 2);
	before = node_has(1, "PageTables");
	touch(AT + GIB / 2, GIB / 2, TABLE);
	r = regions_of(1, AT, AT + GIB);
	EXPECT_EQ(r.regions, 1);
	EXPECT_EQ(r.on_node[0], 1);
	EXPECT_EQ(r.used, TABLES);
	EXPECT_LE(node_has(1, "PageTables"), before + TABLES / 4);
}

/* A process that has the memory of a node but for @left pages, every second page of which it keeps. */
static pid_t occupy(int node, long left)
{
	size_t pages = node_has(node, "MemFree") - left, i;
	int tell;
	pid_t pid = fork_and_await(&tell);
	char *p;

	if (pid)
		return pid;
	policy(MPOL_BIND, 1UL << node);
	p = map_at(AT, pages * PAGE);
	touch(p, pages * PAGE, PAGE);
	for (i = 0; i < pages; i += 2)
		if (madvise(p + i * PAGE, PAGE, MADV_DONTNEED))
			die("madvise");
	stay(tell);
}

/*
 * The node has single pages and hardly a block, the other one has blocks: tables are local all the
 * same. vm.sorted_page_tables=2, so that nothing is compacted; then for who asks, and it may be.
 */
static void numa_no_remote_region(void)
{
	long remote, small;
	struct regions r;
	pid_t other;
	int asks, i;

	/* A region is as large as the other node has them. */
	policy(MPOL_BIND, 2);
	touch(map_at(AT, GIB), GIB, TABLE);
	EXPECT_EQ(regions_of(1, AT, AT + GIB).on_node[1], 1);
	if (munmap(AT, GIB))
		die("munmap");
	/* With less left the kernel ends it at times: page tables and lists of the CPUs come from the rest. */
	other = occupy(0, 1L << 11);
	EXPECT_LE(1, other);
	policy(MPOL_PREFERRED, 1);
	for (asks = 0; asks < 2; asks++) {
		choose(asks);
		remote = node_has(1, "PageTables");
		small = stat_of("smaller");
		memset(&r, 0, sizeof(r));
		/* Until the node has no block of 2 MiB any more: else this would say nothing. */
		for (i = 0; i < 16 && stat_of("smaller") == small; i++) {
			char *at = AT + (16 * asks + i) * 16 * GIB;
			struct regions of;

			touch(map_at(at, GIB), GIB, TABLE);
			of = regions_of(1, at, at + GIB);
			r.regions += of.regions;
			r.used += of.used;
			r.on_node[0] += of.on_node[0];
			r.on_node[1] += of.on_node[1];
			/* With compaction it may have more of these than this has use for. */
			if (asks)
				break;
		}
		remote = node_has(1, "PageTables") - remote;
		small = stat_of("smaller") - small;
		printf("# sorted: %s, %ld regions with %ld tables, %ld smaller; %ld regions remote; %ld pages free on the node\n",
		       asks ? "asked" : "everyone", r.regions, r.used, small, r.on_node[1], node_has(0, "MemFree"));
		EXPECT(asks || small);
		EXPECT_EQ(r.on_node[1], 0);
		EXPECT_EQ(r.on_node[0], r.regions);
		/* Counted for each CPU first, up to 125 pages. */
		EXPECT_LE(remote, 250);
		EXPECT_LE(1000, node_has(0, "MemFree"));
	}
	kill(other, SIGKILL);
	waitpid(other, NULL, 0);
}

static const struct {
	const char *name;
	void (*run)(void);
} RULES[] = {
	{ "dense", dense },
	{ "backwards", backwards },
	{ "not_chosen", not_chosen },
	{ "grows", grows },
	{ "unmapped", unmapped },
	{ "dropped", dropped },
	{ "moved", moved },
	{ "forked", forked },
	{ "upper_level", upper_level },
	{ "one_gib", one_gib },
	{ "stack", stack },
	{ "reasons", reasons },
	{ "file_mapping", file_mapping },
	{ "huge", huge },
	{ "threads", threads },
	{ "high", high },
	{ "numa_bound", numa_bound },
	{ "numa_local", numa_local },
	{ "numa_interleaved", numa_interleaved },
	{ "numa_later", numa_later },
	{ "numa_no_remote_region", numa_no_remote_region },
};

static int run_rule(const char *name)
{
	int status = 1;
	size_t i;
	pid_t pid;

	for (i = 0; i < sizeof(RULES) / sizeof(*RULES); i++)
		if (!strcmp(name, RULES[i].name))
			break;
	if (i == sizeof(RULES) / sizeof(*RULES)) {
		fprintf(stderr, "sorter: no rule %s\n", name);
		return 2;
	}
	fflush(stdout);
	pid = fork();
	if (pid < 0)
		die("fork");
	if (!pid) {
		rule = name;
		RULES[i].run();
		fflush(stdout);
		_exit(failures != 0);
	}
	waitpid(pid, &status, 0);
	printf("%sok - sorted %s\n", status ? "not " : "", name);
	return 0;
}

static void wait_for(const char *file)
{
	while (access(file, F_OK))
		usleep(20000);
}

/* In the order of a seed, so that nothing is in order by chance. */
static void shuffled_tables(char *p, size_t tables, void (*each)(char *))
{
	uint32_t *order = malloc(tables * sizeof(*order));
	uint64_t seed = 88172645463325252ULL;
	size_t i;

	if (!order)
		die("malloc");
	shuffled(order, tables, &seed);
	for (i = 0; i < tables; i++)
		each(p + order[i] * TABLE);
	free(order);
}

static void touch_table(char *p)
{
	touch(p, TABLE, PAGE);
}

static void split_table(char *p)
{
	if (mprotect(p, PAGE, PROT_READ))
		die("mprotect");
}

static int hold(bool of_huge_pages, size_t mib, const char *go)
{
	size_t bytes = mib << 20;
	volatile char *p;

	choose(1);
	p = map_at(AT, bytes);
	if (of_huge_pages && madvise((char *)p, bytes, MADV_HUGEPAGE))
		die("madvise");
	shuffled_tables((char *)p, bytes / TABLE, touch_table);
	if (of_huge_pages)
		shuffled_tables((char *)p, bytes / TABLE, split_table);
	printf("FRAG {}\n");
	fflush(stdout);
	wait_for(go);
	printf("HOLD %#lx %zu\n", (unsigned long)p, bytes >> PAGE_SHIFT);
	fflush(stdout);
	while (*p)
		;
	return 0;
}

static int sparse(size_t gibs, unsigned int seconds)
{
	size_t i;
	char *p;

	choose(1);
	p = map_at(AT, gibs * GIB);
	for (i = 0; i < gibs; i++)
		p[i * GIB] = 1;
	printf("SPARSE %d held %ld fresh %ld\n", getpid(), stat_of("held"), stat_of("fresh"));
	fflush(stdout);
	sleep(seconds);
	return 0;
}

static int age(size_t mib, size_t kib)
{
	size_t bytes = mib << 20, block = kib << 10, at, keep;
	struct sysinfo info;
	uint64_t seed = 88172645463325252ULL;
	int tell;
	pid_t pid = fork_and_await(&tell);
	char *p;

	if (pid)
		return pid < 0;
	if (mib) {
		p = map_at(AT, bytes);
		touch(p, bytes, PAGE);
	} else {
		p = map_at(AT, 64 * GIB);
		do {
			p[bytes] = 1;
			bytes += PAGE;
			if (bytes % (64 * PAGE) == 0 && sysinfo(&info))
				die("sysinfo");
		} while (bytes % (64 * PAGE) || info.freeram * info.mem_unit > AGED_LEFT);
		bytes -= bytes % block;
	}
	for (at = 0; at < bytes; at += block) {
		keep = next_random(&seed) % (block / PAGE) * PAGE;
		if (madvise(p + at, keep, MADV_DONTNEED) ||
		    madvise(p + at + keep + PAGE, block - keep - PAGE, MADV_DONTNEED))
			die("madvise");
	}
	stay(tell);
}

/* Starts a process that touches a page of each step, and lives for as long as the caller does. */
static void start_toucher(char *at, size_t bytes, size_t step)
{
	int tell;
	pid_t pid = fork_and_await(&tell);

	if (pid < 0)
		die("toucher");
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		touch(map_at(at, bytes), bytes, step);
		stay(tell);
	}
}

enum { ASKED, COUNTED };

/*
 * When the bound is reached: a region for who asks (ASKED), which looks at all processes that have
 * any; and the shrinker (COUNTED), which looks at all their pages. All of either, not the part only
 * that holds the mutex. The bound is reached by one process with a page in each of many GiB.
 */
static int crowd(size_t processes, const char *tag)
{
	FILE *drop = fopen("/proc/sys/vm/drop_caches", "w");
	long given_up, given_back;
	size_t i;

	if (!drop)
		die("drop_caches");
	for (i = 0; i < processes; i++)
		start_toucher(AT, 16 * TABLE, TABLE);
	start_toucher(AT, 64 * GIB, GIB);
	given_up = stat_of("given_up");
	map_at(AT, GIB);
	BEGIN(ASKED);
	*AT = 1;
	END(ASKED);
	given_up = stat_of("given_up") - given_up;
	given_back = stat_of("given_back");
	BEGIN(COUNTED);
	fputs("2", drop);
	fflush(drop);
	END(COUNTED);
	given_back = stat_of("given_back") - given_back;
	REPORT();
	printf("# sorted: %zu processes: %ld pages given up, %ld given back\n", processes, given_up, given_back);
	printf("STEPS {\"tag\":\"%s\",\"pages\":{\"asked\":1,\"counted\":1}}\n", tag);
	return !given_up || !given_back;
}

int main(int argc, char **argv)
{
	int i, status = 0;

	if (argc == 4 && !strcmp(argv[1], "crowd"))
		return crowd(strtoul(argv[2], NULL, 0), argv[3]);

	if (argc == 4 && (!strcmp(argv[1], "hold") || !strcmp(argv[1], "huge")))
		return hold(argv[1][1] == 'u', strtoul(argv[2], NULL, 0), argv[3]);
	if (argc == 4 && !strcmp(argv[1], "sparse"))
		return sparse(strtoul(argv[2], NULL, 0), strtoul(argv[3], NULL, 0));
	if (argc == 4 && !strcmp(argv[1], "age"))
		return age(strtoul(argv[2], NULL, 0), strtoul(argv[3], NULL, 0));
	if (argc == 2 && !strcmp(argv[1], "stack_of_a_program"))
		return stack_of_a_program();
	if (argc > 2 && !strcmp(argv[1], "run")) {
		choose(1);
		execvp(argv[2], argv + 2);
		die(argv[2]);
	}
	if (argc < 2) {
		fprintf(stderr, "usage: sorter RULE... | hold|huge MIB GO | sparse GIBS SECONDS | age MIB KIB | crowd PROCESSES TAG | run PROGRAM...\n");
		return 2;
	}
	for (i = 1; i < argc; i++)
		status |= run_rule(argv[i]);
	return status;
}
