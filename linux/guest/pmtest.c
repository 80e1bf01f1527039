// SPDX-License-Identifier: GPL-2.0
/*
 * pmtest [TEST...]: what PTEMagnet promises, seen from userspace.
 *
 * Each test runs in a process of its own that has asked for reservations, and
 * starts from a machine that holds none. Output is TAP-like. Runs as root with
 * vm.ptemagnet=1; some tests need swap (/dev/ram0 on), two NUMA nodes, or a
 * cgroup2 mount on /cg, and say so where they are skipped.
 */
#include "common.h"
#include <linux/mempolicy.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define PR_SET_PTEMAGNET	0x50544d47
#define PR_GET_PTEMAGNET	0x50544d48
enum { DEFAULT, ALWAYS, NEVER };

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

#define SKIP 77

/* Whether the tests to run were named. */
static bool named;

/* A check that did not hold ends the test, with the line that says what. */
#define EXPECT(condition)						\
	do {								\
		if (!(condition)) {					\
			printf("# line %d: %s\n", __LINE__, #condition);	\
			fflush(stdout);					\
			_exit(1);					\
		}							\
	} while (0)

#define EXPECT_EQ(a, b)							\
	do {								\
		long _a = (a), _b = (b);				\
		if (_a != _b) {						\
			printf("# line %d: %s is %ld, not %ld\n", __LINE__, #a, _a, _b);	\
			fflush(stdout);					\
			_exit(1);					\
		}							\
	} while (0)

static void go_to_cpu(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		die("sched_setaffinity");
}

static bool on_one_cpu;

/* For a test that means to stay there. */
static void run_on_cpu(int cpu)
{
	go_to_cpu(cpu);
	on_one_cpu = true;
}

/*
 * With nw.hop=SEED a test goes to one of two processors at random each time that it touches a page or
 * looks at something: its outcome must not depend on where the scheduler has it run.
 */
static void hop(void)
{
	static uint64_t state;
	const char *seed = getenv("NW_hop");

	if (!seed || on_one_cpu)
		return;
	if (!state)
		state = strtoull(seed, NULL, 0) * 0x9E3779B97F4A7C15ULL + 1;
	go_to_cpu(next_random(&state) >> 20 & 1);
}

static void end(pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static long counter(const char *key)
{
	FILE *f;

	hop();
	f = fopen("/proc/sys/vm/stat_refresh", "w");
	if (f) {
		fputs("1\n", f);
		fclose(f);
	}
	return read_counter("/proc/vmstat", key);
}

static long reserved(void)
{
	return counter("nr_anon_reserved");
}

/* Pages that go back on exit do so shortly after the parent has been told. */
static long reserved_settles_at(long wanted)
{
	int i;

	for (i = 0; i < 100 && reserved() != wanted; i++)
		usleep(20000);
	return reserved();
}

static uint64_t frame_of(const void *p)
{
	uint64_t frame;

	hop();
	read_frames((void *)((uintptr_t)p & ~(PAGE - 1)), 1, &frame);
	return frame;
}

/* @pages contiguous frames from an aligned block of eight, from page @first on. */
static bool in_place(const char *group, unsigned int first, unsigned int pages)
{
	uint64_t frame[GROUP_PAGES];
	unsigned int k;

	read_frames(group, GROUP_PAGES, frame);
	for (k = first; k < first + pages; k++)
		if (!frame[k] || frame[k] % GROUP_PAGES != k ||
		    frame[k] / GROUP_PAGES != frame[first] / GROUP_PAGES)
			return false;
	return true;
}

static double mean_of(const char *p, size_t pages)
{
	uint64_t *frame = malloc(pages * sizeof(*frame));
	struct fragmentation f;

	read_frames(p, pages, frame);
	fragmentation_of(frame, pages, &f);
	free(frame);
	return f.complete == pages / GROUP_PAGES ? fragmentation_mean(&f) : 0.0;
}

static char *page(char *base, size_t n)
{
	hop();
	return base + (n << PAGE_SHIFT);
}

static bool zeroed(const char *p)
{
	size_t i;

	for (i = 0; i < PAGE; i++)
		if (p[i])
			return false;
	return true;
}

/* Run @fn in a forked child; it reports through its exit code. */
static int in_child(int (*fn)(char *), char *arg)
{
	int status;
	pid_t pid;

	hop();
	pid = fork();
	if (pid < 0)
		die("fork");
	if (!pid)
		_exit(fn(arg));
	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void sequential(void)
{
	char *p = map_aligned(4 << 20);
	size_t i;

	for (i = 0; i < 1024; i++)
		*page(p, i) = 1;
	EXPECT(mean_of(p, 1024) == 1.0);
	for (i = 0; i < 1024; i += 8)
		EXPECT(in_place(page(p, i), 0, 8));
	EXPECT_EQ(reserved(), 0);
}

static void random_order(void)
{
	char *p = map_aligned(4 << 20);
	uint64_t seed = 3;
	size_t i, n = 0;

	while (n < 1024) {
		i = next_random(&seed) % 1024;
		n += !*page(p, i);
		*page(p, i) = 1;
	}
	EXPECT(mean_of(p, 1024) == 1.0);
}

static void read_before_write(void)
{
	volatile char *p = map_aligned(1 << 20);
	size_t i;

	for (i = 0; i < 256; i++)
		EXPECT(p[i << PAGE_SHIFT] == 0);
	for (i = 0; i < 256; i++)
		p[i << PAGE_SHIFT] = 1;
	EXPECT(mean_of((char *)p, 256) == 1.0);
}

static void pages_are_zeroed(void)
{
	char *p = map_aligned(4 << 20);
	size_t i, round;

	for (round = 0; round < 4; round++) {
		for (i = 0; i < 1024; i++) {
			EXPECT(zeroed(page(p, i)));
			memset(page(p, i), 0xa5, PAGE);
		}
		madvise(p, 4 << 20, MADV_DONTNEED);
	}
}

static void counted(void)
{
	long made = counter("ptemagnet_reserved"), taken = counter("ptemagnet_taken");
	long back = counter("ptemagnet_unmapped");
	char *p = map_aligned(4 << 20);
	size_t i;

	for (i = 0; i < 100; i++)
		*page(p, i * 8) = 1;
	EXPECT_EQ(reserved(), 700);
	EXPECT_EQ(counter("ptemagnet_reserved") - made, 100);
	for (i = 0; i < 100; i++)
		*page(p, i * 8 + 1) = 1;
	EXPECT_EQ(counter("ptemagnet_taken") - taken, 100);
	EXPECT_EQ(reserved(), 600);
	munmap(p, 4 << 20);
	EXPECT_EQ(reserved(), 0);
	EXPECT_EQ(counter("ptemagnet_unmapped") - back, 600);
}

static void dontneed(void)
{
	char *p = map_aligned(HUGE);

	*page(p, 0) = 1;
	*page(p, 5) = 1;
	EXPECT_EQ(reserved(), 6);
	madvise(page(p, 0), PAGE, MADV_DONTNEED);
	EXPECT_EQ(reserved(), 6);
	*page(p, 6) = 1;
	EXPECT(in_place(p, 5, 2));
	madvise(page(p, 1), PAGE, MADV_DONTNEED);
	EXPECT_EQ(reserved(), 5);
	/* The last mapped pages go, and the rest of the block with them. */
	madvise(page(p, 4), 4 * PAGE, MADV_DONTNEED);
	EXPECT_EQ(reserved(), 0);
	*page(p, 3) = 1;
	*page(p, 2) = 1;
	EXPECT(in_place(p, 2, 2));
}

/* Whether as many new groups are all of those that were just given up, on this CPU. */
static bool taken_again(char *p, char *q, size_t groups)
{
	static uint64_t before[256], frame;
	size_t i, k, found = 0;

	for (i = 0; i < groups * GROUP_PAGES; i++)
		*page(p, i) = 1;
	for (i = 0; i < groups; i++)
		before[i] = frame_of(page(p, i * GROUP_PAGES));
	madvise(p, groups * GROUP, MADV_DONTNEED);
	for (i = 0; i < groups; i++) {
		*page(q, i * GROUP_PAGES) = 1;
		frame = frame_of(page(q, i * GROUP_PAGES));
		for (k = 0; k < groups && before[k] != frame; k++)
			;
		found += k < groups;
	}
	if (found != groups)
		printf("# %zu of %zu groups taken again\n", found, groups);
	return found == groups;
}

/* Groups that are given up go to the CPU's list of blocks, however many there are. */
static void groups_go_in_one_piece(void)
{
	char *p = map_aligned(3 * HUGE), *q = map_aligned(3 * HUGE);

	run_on_cpu(0);
	/* Room on the lists, and nothing else on them that a table could come from. */
	EXPECT(!write_file("/proc/sys/vm/percpu_pagelist_high_fraction", "8\n"));
	*page(q, 0) = *page(q, 512) = *page(q, 1024) = 1;
	madvise(q, 3 * HUGE, MADV_DONTNEED);
	EXPECT(taken_again(p, q, 1));
	madvise(q, 3 * HUGE, MADV_DONTNEED);
	/* More than two batches of pages that are unmapped (MAX_GATHER_BATCH). */
	EXPECT(taken_again(p, q, 160));
	EXPECT(!write_file("/proc/sys/vm/percpu_pagelist_high_fraction", "0\n"));
}

/* A page given up here may live on in a child: it must not be handed out again. */
static void dontneed_with_child(void)
{
	char *p = map_aligned(HUGE);
	uint64_t before;
	int status, go[2];
	pid_t pid;
	char c;

	*page(p, 0) = 7;
	*page(p, 1) = 1;
	before = frame_of(p);
	EXPECT(!pipe(go));
	pid = fork();
	if (!pid) {
		/* It has the page until the parent is through, however long that takes. */
		close(go[1]);
		_exit(read(go[0], &c, 1) || *p != 7);
	}
	madvise(p, PAGE, MADV_DONTNEED);
	EXPECT(zeroed(p));
	*p = 9;
	EXPECT(frame_of(p) != before);
	close(go[1]);
	waitpid(pid, &status, 0);
	EXPECT_EQ(status, 0);
	EXPECT_EQ(*p, 9);
}

static int takes_from_parent(char *p)
{
	uint64_t parents = frame_of(p);

	if (!zeroed(page(p, 3)))
		return 1;
	*page(p, 3) = 3;
	if (frame_of(page(p, 3)) != parents + 3)
		return 2;
	/* A group that the parent never touched is the child's own. */
	*page(p, 8) = 1;
	*page(p, 9) = 1;
	return in_place(page(p, 8), 0, 2) ? 0 : 3;
}

static void fork_shares_what_is_reserved(void)
{
	long taken = counter("ptemagnet_taken_parent");
	char *p = map_aligned(HUGE);
	uint64_t first;
	int tell;
	pid_t pid;

	*page(p, 0) = 1;
	first = frame_of(p);
	pid = fork_and_await(&tell);
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		EXPECT_EQ(takes_from_parent(p), 0);
		stay(tell);
	}
	EXPECT(pid > 0);
	EXPECT_EQ(counter("ptemagnet_taken_parent") - taken, 1);
	/* The child has page 3; the others are still ours, and six of a group are its own. */
	EXPECT_EQ(reserved(), 12);
	EXPECT(zeroed(page(p, 3)));
	*page(p, 3) = 1;
	*page(p, 4) = 1;
	/* Were the child gone, its frame could be had again, by chance here too. */
	EXPECT(frame_of(page(p, 3)) != first + 3);
	EXPECT(frame_of(page(p, 4)) == first + 4);
	end(pid);
	EXPECT_EQ(reserved_settles_at(5), 5);
}

static int outlives_parent(char *p)
{
	while (getppid() != 1 && reserved())
		usleep(1000);
	*page(p, 1) = 1;
	return !zeroed(page(p, 2));
}

static int forks_and_exits(char *p)
{
	*page(p, 0) = 1;
	if (!fork())
		_exit(outlives_parent(p));
	return 0;
}

static void parent_exits_first(void)
{
	char *p = map_aligned(HUGE);

	EXPECT_EQ(in_child(forks_and_exits, p), 0);
	EXPECT_EQ(reserved_settles_at(0), 0);
}

static int copies(char *p)
{
	uint64_t before = frame_of(p);

	*p = 2;
	return frame_of(p) == before;
}

static void cow_reuses_the_last_reference(void)
{
	char *p = map_aligned(HUGE);
	uint64_t before;
	size_t i;

	/* Until a processor drains its batch of new pages, the batch holds a reference to each. */
	run_on_cpu(0);
	for (i = 0; i < 8; i++)
		*page(p, i) = 1;
	before = frame_of(p);
	EXPECT_EQ(in_child(copies, p), 0);
	/* The child is gone: our next write must not copy. */
	*p = 3;
	EXPECT(frame_of(p) == before);
	EXPECT(in_place(p, 0, 8));
}

static void moved(void)
{
	char *p = map_aligned(HUGE), *q;
	size_t i;

	for (i = 0; i < 64; i++)
		*page(p, i * 8 + 2) = i + 1;
	EXPECT_EQ(reserved(), 448);
	q = mremap(p, HUGE, HUGE, MREMAP_MAYMOVE | MREMAP_FIXED, p + 64 * HUGE);
	EXPECT(q == p + 64 * HUGE);
	EXPECT_EQ(reserved(), 0);
	for (i = 0; i < 64; i++)
		EXPECT_EQ(*page(q, i * 8 + 2), i + 1);
	for (i = 0; i < 512; i++)
		EXPECT(*page(q, i) == 0 || i % 8 == 2);
	munmap(q, HUGE);
	EXPECT_EQ(reserved(), 0);
}

static void moved_in_part(void)
{
	char *p = map_aligned(HUGE), *q;
	size_t i;

	for (i = 0; i < 16; i++)
		*page(p, i) = i + 1;
	for (i = 16; i < 64; i += 8)
		*page(p, i) = 1;
	/* Neither end on a group's border. */
	q = mremap(page(p, 5), 30 * PAGE, 60 * PAGE, MREMAP_MAYMOVE);
	EXPECT(q != MAP_FAILED);
	for (i = 0; i < 5; i++)
		EXPECT_EQ(*page(p, i), i + 1);
	for (i = 5; i < 16; i++)
		EXPECT_EQ(*page(q, i - 5), i + 1);
	for (i = 30; i < 60; i++) {
		EXPECT(zeroed(page(q, i)));
		*page(q, i) = 1;
	}
	munmap(q, 60 * PAGE);
	munmap(p, HUGE);
	EXPECT_EQ(reserved(), 0);
}

static void partly_unmapped(void)
{
	char *p = map_aligned(HUGE);

	*page(p, 0) = 1;
	*page(p, 4) = 5;
	munmap(p, 4 * PAGE);
	EXPECT_EQ(*page(p, 4), 5);
	*page(p, 5) = 6;
	EXPECT_EQ(*page(p, 4), 5);
	/* Something else may come to lie where the first half was. */
	EXPECT(mmap(p, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
		    -1, 0) == p);
	EXPECT(zeroed(p));
	*p = 1;
	munmap(p, HUGE);
	EXPECT_EQ(reserved(), 0);
}

static void protection_splits(void)
{
	char *p = map_aligned(HUGE);
	size_t i;

	*page(p, 0) = 1;
	EXPECT(!mprotect(page(p, 3), 2 * PAGE, PROT_READ));
	*page(p, 1) = 2;
	EXPECT(*page(p, 3) == 0);
	EXPECT(!mprotect(page(p, 3), 2 * PAGE, PROT_READ | PROT_WRITE));
	for (i = 2; i < 8; i++) {
		EXPECT(zeroed(page(p, i)));
		*page(p, i) = i + 1;
	}
	for (i = 0; i < 8; i++)
		EXPECT_EQ(*page(p, i), i + 1);
	munmap(p, HUGE);
	EXPECT_EQ(reserved(), 0);
}

static void no_group_across_vmas(void)
{
	char *p = map_aligned(HUGE);

	munmap(page(p, 6), PAGE);
	*page(p, 0) = 1;
	*page(p, 7) = 1;
	EXPECT_EQ(reserved(), 0);
	*page(p, 8) = 1;
	EXPECT_EQ(reserved(), 7);
}

static void *answer_fault(void *arg)
{
	int fd = *(int *)arg;
	struct pollfd poll_fd = { .fd = fd, .events = POLLIN };
	static char content[PAGE] __attribute__((aligned(4096)));
	struct uffd_msg msg;
	struct uffdio_copy copy;

	memset(content, 0x5a, PAGE);
	poll(&poll_fd, 1, 5000);
	if (read(fd, &msg, sizeof(msg)) != sizeof(msg))
		return NULL;
	copy = (struct uffdio_copy) {
		.dst = msg.arg.pagefault.address & ~(PAGE - 1),
		.src = (uintptr_t)content, .len = PAGE,
	};
	ioctl(fd, UFFDIO_COPY, &copy);
	return NULL;
}

static void userfaultfd(void)
{
	int fd = syscall(__NR_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg;
	char *p = map_aligned(HUGE);
	pthread_t thread;
	long before;

	if (fd < 0)
		_exit(SKIP);
	*page(p, 0) = 1;
	*page(p, 8) = 1;
	EXPECT_EQ(reserved(), 14);
	EXPECT(!ioctl(fd, UFFDIO_API, &api));
	reg = (struct uffdio_register) {
		.range = { .start = (uintptr_t)p, .len = HUGE },
		.mode = UFFDIO_REGISTER_MODE_MISSING,
	};
	EXPECT(!ioctl(fd, UFFDIO_REGISTER, &reg));
	EXPECT_EQ(reserved(), 0);
	pthread_create(&thread, NULL, answer_fault, &fd);
	usleep(50000);
	before = reserved();		/* for the stack of the thread */
	EXPECT_EQ(*(volatile char *)page(p, 3), 0x5a);
	EXPECT_EQ(*page(p, 0), 1);
	EXPECT_EQ(reserved(), before);
	pthread_join(thread, NULL);
}

static void collapsed(void)
{
	char *p = map_aligned(HUGE);
	size_t i;

	madvise(p, HUGE, MADV_HUGEPAGE);
	prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
	for (i = 0; i < 512; i += 8)
		*page(p, i) = i / 8 + 1;
	EXPECT_EQ(reserved(), 448);
	prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
	if (madvise(p, HUGE, MADV_COLLAPSE)) {
		EXPECT(errno == EINVAL || errno == ENOMEM);
		_exit(SKIP);
	}
	EXPECT_EQ(reserved(), 0);
	for (i = 0; i < 512; i++)
		EXPECT_EQ(*page(p, i), i % 8 ? 0 : (char)(i / 8 + 1));
	EXPECT(in_place(p, 0, 8));
}

/* The daemon, which unlike MADV_COLLAPSE chooses its own time. */
static void khugepaged(void)
{
	static const char knobs[] = "/sys/kernel/mm/transparent_hugepage/khugepaged";
	char *p = map_aligned(HUGE), path[128];
	size_t i;

	snprintf(path, sizeof(path), "%s/scan_sleep_millisecs", knobs);
	if (write_file(path, "20\n"))
		_exit(SKIP);
	for (i = 0; i < 512; i += 8)
		*page(p, i) = i / 8 + 1;
	EXPECT_EQ(reserved(), 448);
	madvise(p, HUGE, MADV_HUGEPAGE);
	for (i = 0; i < 1000 && frame_of(page(p, 511)) != frame_of(p) + 511; i++)
		usleep(20000);
	write_file(path, "10000\n");
	EXPECT_EQ(frame_of(page(p, 511)), frame_of(p) + 511);
	EXPECT_EQ(reserved(), 0);
	for (i = 0; i < 512; i++)
		EXPECT_EQ(*page(p, i), i % 8 ? 0 : (char)(i / 8 + 1));
}

static void swapped_out(void)
{
	char *p = map_aligned(HUGE);
	long swapped = counter("pswpout");
	size_t i;

	/* madvise() drains the batch of new pages of its own processor only; those in another one stay. */
	run_on_cpu(0);
	if (read_counter("/proc/meminfo", "SwapTotal") <= 0)
		_exit(SKIP);
	for (i = 0; i < 64; i++)
		memset(page(p, i * 8), i + 1, PAGE);
	EXPECT_EQ(reserved(), 448);
	EXPECT(!madvise(p, HUGE, MADV_PAGEOUT));
	EXPECT(counter("pswpout") > swapped);
	EXPECT_EQ(reserved(), 0);
	for (i = 0; i < 64; i++)
		EXPECT_EQ(page(p, i * 8)[PAGE - 1], (char)(i + 1));
}

static void lazily_freed(void)
{
	char *p = map_aligned(HUGE);
	size_t i;

	for (i = 0; i < 512; i += 4)
		*page(p, i) = 1;
	madvise(p, HUGE, MADV_FREE);
	for (i = 0; i < 512; i += 8)
		*page(p, i) = 2;
	for (i = 0; i < 512; i++)
		EXPECT(*page(p, i) == (i % 8 ? i % 4 ? 0 : 1 : 2) || (i % 8 && !*page(p, i)));
	munmap(p, HUGE);
	EXPECT_EQ(reserved(), 0);
}

static long set_policy(void *p, size_t len, int mode, unsigned long nodes)
{
	return syscall(__NR_mbind, p, len, mode, &nodes, 8 * sizeof(nodes), 0);
}

static int node_of(void *p)
{
	int node = -1;

	syscall(__NR_get_mempolicy, &node, NULL, 0, p, 3 /* MPOL_F_NODE | MPOL_F_ADDR */);
	return node;
}

static void numa_policy(void)
{
	char *p = map_aligned(4 * HUGE);
	size_t i, n;

	if (access("/sys/devices/system/node/node1", F_OK))
		_exit(SKIP);
	/* Bound: on that node, and eight together. */
	for (n = 0; n < 2; n++) {
		char *q = p + n * HUGE;

		EXPECT(!set_policy(q, HUGE, MPOL_BIND, 1UL << n));
		for (i = 0; i < 512; i++)
			*page(q, i) = 1;
		EXPECT(mean_of(q, 512) == 1.0);
		for (i = 0; i < 512; i += 7)
			EXPECT_EQ(node_of(page(q, i)), n);
	}
	/* Interleaved: page by page, as without reservations. */
	EXPECT(!set_policy(p + 2 * HUGE, HUGE, MPOL_INTERLEAVE, 3));
	for (i = 0; i < 512; i++)
		*page(p + 2 * HUGE, i) = 1;
	for (i = 1; i < 512; i++)
		EXPECT(node_of(page(p + 2 * HUGE, i)) != node_of(page(p + 2 * HUGE, i - 1)));
	EXPECT_EQ(reserved(), 0);
	/* Reserved under one policy, touched under another. */
	EXPECT(!set_policy(p + 3 * HUGE, HUGE, MPOL_BIND, 1));
	*page(p + 3 * HUGE, 0) = 1;
	EXPECT_EQ(reserved(), 7);
	EXPECT(!set_policy(p + 3 * HUGE, HUGE, MPOL_BIND, 2));
	EXPECT_EQ(reserved(), 0);
	*page(p + 3 * HUGE, 1) = 1;
	EXPECT_EQ(node_of(page(p + 3 * HUGE, 1)), 1);
}

static size_t free_pages_of(int node)
{
	char path[64], line[128];
	size_t kb = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/meminfo", node);
	f = fopen(path, "r");
	if (!f)
		die(path);
	while (!kb && fgets(line, sizeof(line), f))
		sscanf(line, "Node %*d MemFree: %zu", &kb);
	fclose(f);
	return kb / 4;
}

/*
 * A process without reservations that has @pages of @node, one in @every of which it keeps.
 * Returns once it has. It lives until it is killed; -1: it did not get that far.
 */
static pid_t occupy(int node, size_t pages, size_t every)
{
	int tell;
	pid_t pid = fork_and_await(&tell);
	size_t i;
	char *p;

	if (pid)
		return pid;
	prctl(PR_SET_PTEMAGNET, NEVER, 0, 0, 0);
	p = map_aligned(pages << PAGE_SHIFT);
	if (set_policy(p, pages << PAGE_SHIFT, MPOL_BIND, 1UL << node))
		_exit(1);
	for (i = 0; i < pages; i++)
		*page(p, i) = 1;
	for (i = 0; i < pages; i++)
		if (i % every)
			madvise(page(p, i), PAGE, MADV_DONTNEED);
	stay(tell);
}

/* No free block of eight on the own node, but many single pages: the other node has no part in it. */
static void numa_no_remote_groups(void)
{
	size_t groups = 4096, remote = 0, i;
	char *p = map_aligned(groups * GROUP);
	pid_t pid;
	int node;

	if (access("/sys/devices/system/node/node1", F_OK))
		_exit(SKIP);
	run_on_cpu(0);
	*p = 1;
	node = node_of(p);
	pid = occupy(node, free_pages_of(node) - (48 << 8), 2);
	EXPECT(pid > 0);
	for (i = 1; i < groups; i++) {
		*page(p, i * 8) = 1;
		remote += node_of(page(p, i * 8)) != node;
	}
	printf("# %zu of %zu groups remote, %ld pages reserved, %zu pages free on the own node\n",
	       remote, groups, reserved(), free_pages_of(node));
	EXPECT(free_pages_of(node) > 10 << 8);
	EXPECT_EQ(remote, 0);
	end(pid);
}

/* Reservations on another node than the one where the table is: pressure there finds them. */
static void numa_pressure(void)
{
	size_t pages = 160 << 8, i;
	char *p = map_aligned(pages << PAGE_SHIFT);
	long back, swapped;
	pid_t pid;
	int node;

	if (access("/sys/devices/system/node/node1", F_OK))
		_exit(SKIP);
	if (read_counter("/proc/meminfo", "SwapTotal") <= 0)
		_exit(SKIP);
	run_on_cpu(0);
	*p = 1;
	node = !node_of(p);
	madvise(p, PAGE, MADV_DONTNEED);
	EXPECT(!set_policy(p, pages << PAGE_SHIFT, MPOL_BIND, 1UL << node));
	for (i = 0; i < pages; i += 8)
		*page(p, i) = 1;
	EXPECT_EQ(reserved(), pages / 8 * 7);
	EXPECT_EQ(node_of(p), node);
	back = counter("ptemagnet_reclaimed");
	swapped = counter("pswpout");
	pid = occupy(node, free_pages_of(node) + (60 << 8), 1);
	EXPECT(pid > 0);
	back = counter("ptemagnet_reclaimed") - back;
	swapped = counter("pswpout") - swapped;
	printf("# %ld reserved pages reclaimed, %ld pages swapped out\n", back, swapped);
	EXPECT(back > 60 << 8);
	EXPECT(swapped < back / 8);
	end(pid);
	for (i = 0; i < pages; i += 8)
		EXPECT_EQ(*page(p, i), 1);
}

static long leaves(void)
{
	FILE *f = fopen("/sys/kernel/debug/ptemagnet/tables", "r");
	long found = 0, tgid, n;
	char line[128];

	if (!f)
		die("debugfs");
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "%ld %ld", &tgid, &n) == 2 && tgid == getpid())
			found += n;
	fclose(f);
	return found;
}

static long slab_kb(void)
{
	return read_counter("/proc/meminfo", "Slab");
}

/* Memory that was mapped once, a group at every 2 MiB, has no part of the kernel's afterwards. */
static void nothing_is_left_of_what_was_unmapped(void)
{
	/* KASAN is slow, and keeps what is freed for a while. */
	bool quarantine = getenv("NW_quarantine");
	size_t rounds = quarantine ? 2000 : 20000, i, k;
	char *p = mmap(NULL, (rounds + 1) * HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	long before = slab_kb(), most = before;

	EXPECT(p != MAP_FAILED);
	munmap(p, (rounds + 1) * HUGE);
	p = (char *)(((uintptr_t)p + HUGE - 1) & ~(HUGE - 1));
	for (i = 0; i < rounds; i++, p += HUGE) {
		EXPECT(mmap(p, GROUP, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE,
			    -1, 0) == p);
		for (k = 0; k < 8; k++)
			*page(p, k) = 1;
		munmap(p, GROUP);
		if (!(i % 1000) && slab_kb() > most)
			most = slab_kb();
	}
	usleep(300000);
	printf("# slab %ld kB, at most %ld, afterwards %ld\n", before, most, slab_kb());
	EXPECT(leaves() <= 2);
	if (quarantine)
		return;
	EXPECT(slab_kb() - before < 1024);
	EXPECT(most - before < 8192);
}

/* Groups touched whole need no table, but for each other's sake: memory pressure takes it back. */
static void idle_leaves_can_be_had(void)
{
	char *p = map_aligned(1000 * HUGE);
	size_t i, k;

	for (i = 0; i < 1000; i++)
		for (k = 0; k < 8; k++)
			*page(p + i * HUGE, k) = 1;
	EXPECT_EQ(reserved(), 0);
	EXPECT(leaves() >= 1000);
	for (i = 0; i < 20 && leaves() > 2; i++)
		EXPECT(!write_file("/proc/sys/vm/drop_caches", "2\n"));
	EXPECT(leaves() <= 2);
	for (i = 0; i < 1000; i++)
		EXPECT(in_place(p + i * HUGE, 0, 8));
}

static int sparse_until_killed(char *p)
{
	size_t i;

	for (i = 0; i < 8192; i += 8)
		*page(p, i) = 1;
	raise(SIGKILL);
	return 0;
}

static void killed(void)
{
	char *p = map_aligned(32 << 20);

	EXPECT_EQ(in_child(sparse_until_killed, p), 128 + SIGKILL);
	EXPECT_EQ(reserved_settles_at(0), 0);
}

static void dropped_on_demand(void)
{
	char *p = map_aligned(4 << 20);
	long back = counter("ptemagnet_reclaimed");
	size_t i;

	for (i = 0; i < 1024; i += 8)
		*page(p, i) = 1;
	EXPECT_EQ(reserved(), 896);
	for (i = 0; i < 20 && reserved(); i++)
		EXPECT(!write_file("/proc/sys/vm/drop_caches", "2\n"));
	EXPECT_EQ(reserved(), 0);
	EXPECT_EQ(counter("ptemagnet_reclaimed") - back, 896);
	for (i = 0; i < 1024; i++) {
		EXPECT_EQ(*page(p, i), i % 8 == 0);
		*page(p, i) = 1;
	}
}

static void compaction_gets_the_block(void)
{
	size_t pages = 500 << 8, i;
	char *p = map_aligned(pages << PAGE_SHIFT);
	long before;

	/* Half of memory, so that the scanner that looks for pages to move comes by. */
	for (i = 0; i < pages; i += 8)
		*page(p, i) = 1;
	before = reserved();
	EXPECT(before > (long)pages / 2);
	EXPECT(!write_file("/proc/sys/vm/compact_memory", "1\n"));
	EXPECT(reserved() < before * 3 / 4);
	for (i = 0; i < pages; i += 8)
		EXPECT_EQ(*page(p, i), 1);
}

static double system_seconds(void)
{
	struct rusage r;

	getrusage(RUSAGE_SELF, &r);
	return r.ru_stime.tv_sec + r.ru_stime.tv_usec / 1e6;
}

/* Seconds of CPU time that compaction takes with @groups reservations, one in every @apart bytes. */
static double compaction_with(size_t groups, size_t apart)
{
	char *p = map_aligned(groups * apart);
	long back = counter("ptemagnet_reclaimed");
	double seconds;
	size_t i;

	/* Compaction is to move none of the pages that are mapped: how many it moves is chance. */
	EXPECT(!mlock2(p, groups * apart, MLOCK_ONFAULT));
	for (i = 0; i < groups; i++)
		*(p + i * apart) = 1;
	seconds = -system_seconds();
	EXPECT(!write_file("/proc/sys/vm/compact_memory", "1\n"));
	seconds += system_seconds();
	back = counter("ptemagnet_reclaimed") - back;
	printf("# %zu groups %zu kB apart: %.3f s of CPU time to compact, %ld of %zu pages given back\n",
	       groups, apart >> 10, seconds, back, groups * 7);
	EXPECT(back > (long)groups * 6);
	munmap(p, groups * apart);
	return seconds;
}

/*
 * What is given back costs the same however many parts of tables there are, here 250 and 16000. CPU time of a guest has in it what its
 * host does meanwhile, so this is for a guest whose clock counts instructions (-icount), and runs only where it is named.
 */
static void compaction_is_linear(void)
{
	double few, many;

	if (!named)
		_exit(SKIP);
	EXPECT(!write_file("/proc/sys/vm/compact_unevictable_allowed", "0\n"));
	few = compaction_with(16000, GROUP);
	many = compaction_with(16000, HUGE);
	EXPECT(!write_file("/proc/sys/vm/compact_unevictable_allowed", "1\n"));
	EXPECT(many < 2 * few);
}

static void threshold(void)
{
	char *p = map_aligned(4 << 20);
	long made;
	size_t i;

	for (i = 0; i < 512; i += 8)
		*page(p, i) = 1;
	EXPECT_EQ(reserved(), 448);
	/* Everything is above 0 per cent: the daemon takes it all back. */
	EXPECT(!write_file("/proc/sys/vm/ptemagnet_threshold", "0\n"));
	EXPECT_EQ(reserved_settles_at(0), 0);
	/* And nothing new is set aside meanwhile. */
	made = counter("ptemagnet_reserved");
	for (; i < 1024; i += 8)
		*page(p, i) = 1;
	EXPECT_EQ(counter("ptemagnet_reserved"), made);
	EXPECT(write_file("/proc/sys/vm/ptemagnet_threshold", "101\n"));
	EXPECT(!write_file("/proc/sys/vm/ptemagnet_threshold", "90\n"));
	*page(p, 8) = 1;
	madvise(p, 4 << 20, MADV_DONTNEED);
	*page(p, 8) = 1;
	EXPECT_EQ(reserved(), 7);
}

static int touches_one(char *p)
{
	*page(p, 0) = 1;
	return reserved() ? 0 : 1;
}

static void chosen_by_prctl(void)
{
	char *p = map_aligned(HUGE);

	EXPECT_EQ(prctl(PR_GET_PTEMAGNET, 0, 0, 0, 0), ALWAYS);
	EXPECT_EQ(prctl(PR_SET_PTEMAGNET, 3, 0, 0, 0), -1);
	EXPECT_EQ(prctl(PR_SET_PTEMAGNET, ALWAYS, 1, 0, 0), -1);
	EXPECT_EQ(in_child(touches_one, p), 0);
	*page(p, 16) = 1;
	EXPECT_EQ(reserved(), 7);
	/* Opting out gives back what there is. */
	EXPECT(!prctl(PR_SET_PTEMAGNET, NEVER, 0, 0, 0));
	EXPECT_EQ(reserved(), 0);
	EXPECT_EQ(in_child(touches_one, p), 1);
	EXPECT(!prctl(PR_SET_PTEMAGNET, DEFAULT, 0, 0, 0));
	EXPECT_EQ(in_child(touches_one, p), 1);
	/* Everyone, but for those who do not want to. */
	EXPECT(!write_file("/proc/sys/vm/ptemagnet", "2\n"));
	EXPECT_EQ(in_child(touches_one, p), 0);
	prctl(PR_SET_PTEMAGNET, NEVER, 0, 0, 0);
	EXPECT_EQ(in_child(touches_one, p), 1);
	prctl(PR_SET_PTEMAGNET, ALWAYS, 0, 0, 0);
	EXPECT(!write_file("/proc/sys/vm/ptemagnet", "0\n"));
	EXPECT_EQ(in_child(touches_one, p), 1);
	EXPECT(!write_file("/proc/sys/vm/ptemagnet", "1\n"));
	EXPECT_EQ(in_child(touches_one, p), 0);
}

static int execs(char *unused)
{
	(void)unused;
	execl("/proc/self/exe", "pmtest", "--mode", NULL);
	return 99;
}

static void kept_by_exec(void)
{
	EXPECT_EQ(in_child(execs, NULL), ALWAYS);
	prctl(PR_SET_PTEMAGNET, NEVER, 0, 0, 0);
	EXPECT_EQ(in_child(execs, NULL), NEVER);
}

static void switched_off(void)
{
	char *p = map_aligned(HUGE);
	size_t i;

	for (i = 0; i < 512; i += 8)
		*page(p, i) = 1;
	EXPECT(!write_file("/proc/sys/vm/ptemagnet", "0\n"));
	EXPECT_EQ(reserved(), 0);
	for (i = 0; i < 512; i++)
		*page(p, i) = 1;
	EXPECT_EQ(reserved(), 0);
	EXPECT(!write_file("/proc/sys/vm/ptemagnet", "1\n"));
}

static void memcg_enter(const char *max)
{
	mkdir("/cg/t", 0755);
	if (write_file("/cg/t/memory.max", "%s\n", max) ||
	    write_file("/cg/t/cgroup.procs", "%d\n", getpid()))
		_exit(SKIP);
}

static long memcg_read(const char *file)
{
	char path[64], text[32] = "";
	FILE *f;

	snprintf(path, sizeof(path), "/cg/t/%s", file);
	f = fopen(path, "r");
	if (!f || !fgets(text, sizeof(text), f))
		die(path);
	fclose(f);
	return strtol(text, NULL, 10);
}

static void memcg_is_charged(void)
{
	char *p = map_aligned(32 << 20);
	long before, after;
	size_t i;

	memcg_enter("64M");
	before = memcg_read("memory.current");
	for (i = 0; i < 8192; i += 8)
		*page(p, i) = 1;
	after = memcg_read("memory.current");
	EXPECT_EQ(reserved(), 7168);
	/* Every page of the 1024 blocks, up to what the charge caches hold back. */
	EXPECT(after - before >= (8192 - 256) * (long)PAGE);
	munmap(p, 32 << 20);
	EXPECT(memcg_read("memory.current") - before <= 1024 * (long)PAGE);
}

/* Eight times what fits is asked for, an eighth is touched: nobody is killed. */
static void memcg_limit(void)
{
	char *p = map_aligned(128 << 20);
	size_t i;

	memcg_enter("24M");
	for (i = 0; i < 32768; i += 8) {
		*page(p, i) = 1;
		EXPECT(i % 4096 || memcg_read("memory.current") <= 24 << 20);
	}
	EXPECT_EQ(read_counter("/cg/t/memory.events", "oom_kill"), 0);
	for (i = 0; i < 32768; i += 8)
		EXPECT_EQ(*page(p, i), 1);
}

/* Reserved pages of the group are what its own pressure takes first. */
static void memcg_pressure(void)
{
	char *p = map_aligned(16 << 20), *q = map_aligned(20 << 20);
	long back = counter("ptemagnet_reclaimed");
	size_t i;

	memcg_enter("24M");
	for (i = 0; i < 2048; i += 8)
		*page(p, i) = 1;
	EXPECT_EQ(reserved(), 1792);
	for (i = 0; i < 5120; i++)
		*page(q, i) = 1;
	EXPECT_EQ(read_counter("/cg/t/memory.events", "oom_kill"), 0);
	EXPECT(counter("ptemagnet_reclaimed") > back);
}

/* However little is reserved in a cgroup: its own pressure gets all of it. Nothing else of it can be reclaimed here. */
static void memcg_single_leaf(void)
{
	char *p = map_aligned(HUGE);
	size_t i;

	memcg_enter("24M");
	EXPECT(!mlock2(p, HUGE, MLOCK_ONFAULT));
	for (i = 0; i < 512; i += 8)
		*page(p, i) = 1;
	EXPECT_EQ(reserved(), 448);
	/* Fails, as reclaim for a cgroup does not count what shrinkers free. */
	for (i = 0; i < 5 && reserved(); i++)
		write_file("/cg/t/memory.reclaim", "1M\n");
	EXPECT_EQ(reserved(), 0);
}

/*
 * Pages reserved in a cgroup and below, of its memory.stat: to the page, but only once the kernel has
 * put the counts of the CPUs together, which it does every two seconds.
 */
static long anon_reserved_settles_at(const char *group, long wanted)
{
	char path[64];
	long bytes = -1;
	int i;

	snprintf(path, sizeof(path), "%s/memory.stat", group);
	for (i = 0; i < 500; i++) {
		bytes = read_counter(path, "anon_reserved");
		if (bytes == wanted * (long)PAGE)
			break;
		usleep(20000);
	}
	return bytes < 0 ? bytes : bytes / (long)PAGE;
}

static void touch_every(char *p, size_t pages, size_t first, size_t stride)
{
	size_t i;

	for (i = first; i < pages; i += stride)
		*page(p, i) = 1;
}

/* memory.stat has what is reserved, whoever it was reserved by, wherever that is now, and once the cgroup is gone. */
static void memcg_statistic(void)
{
	char *p = map_aligned(2 * HUGE), *q = map_aligned(HUGE);
	int i;

	if (mkdir("/cg/s", 0755) || write_file("/cg/s/cgroup.subtree_control", "+memory\n"))
		_exit(SKIP);
	EXPECT(!mkdir("/cg/s/a", 0755) && !mkdir("/cg/s/b", 0755));
	EXPECT(!write_file("/cg/s/a/cgroup.procs", "%d\n", getpid()));
	touch_every(p, 1024, 0, 8);
	EXPECT_EQ(anon_reserved_settles_at("/cg/s/a", 896), 896);
	EXPECT_EQ(anon_reserved_settles_at("/cg/s", 896), 896);
	EXPECT_EQ(anon_reserved_settles_at("/cg", 896), 896);
	EXPECT_EQ(anon_reserved_settles_at("/cg/s/b", 0), 0);
	/* Handed out. */
	touch_every(p, 1024, 1, 8);
	EXPECT_EQ(anon_reserved_settles_at("/cg/s/a", 768), 768);
	/* What was reserved in a cgroup stays its, and what is new is the new one's. */
	EXPECT(!write_file("/cg/s/b/cgroup.procs", "%d\n", getpid()));
	touch_every(p, 512, 2, 8);
	touch_every(q, 512, 0, 8);
	EXPECT_EQ(anon_reserved_settles_at("/cg/s/a", 704), 704);
	EXPECT_EQ(anon_reserved_settles_at("/cg/s/b", 448), 448);
	EXPECT_EQ(anon_reserved_settles_at("/cg/s", 1152), 1152);
	/* Given up. */
	EXPECT(!madvise(q, HUGE / 2, MADV_DONTNEED));
	EXPECT_EQ(anon_reserved_settles_at("/cg/s/b", 224), 224);
	/* A cgroup that is gone leaves what it has to its parent. */
	EXPECT(!rmdir("/cg/s/a"));
	EXPECT_EQ(anon_reserved_settles_at("/cg/s", 928), 928);
	munmap(p, 2 * HUGE);
	EXPECT_EQ(anon_reserved_settles_at("/cg/s", 224), 224);
	/* Reclaimed. */
	for (i = 0; i < 20 && reserved(); i++)
		EXPECT(!write_file("/proc/sys/vm/drop_caches", "2\n"));
	EXPECT_EQ(anon_reserved_settles_at("/cg/s/b", 0), 0);
	EXPECT_EQ(anon_reserved_settles_at("/cg/s", 0), 0);
	EXPECT_EQ(anon_reserved_settles_at("/cg", 0), 0);
	EXPECT(!write_file("/cg/cgroup.procs", "%d\n", getpid()));
	EXPECT(!rmdir("/cg/s/b") && !rmdir("/cg/s"));
}

static void chosen_by_memcg(void)
{
	char *p = map_aligned(HUGE);

	prctl(PR_SET_PTEMAGNET, DEFAULT, 0, 0, 0);
	memcg_enter("32M");
	EXPECT_EQ(in_child(touches_one, p), 1);
	EXPECT(!write_file("/proc/sys/vm/ptemagnet_memcg_min_mb", "16\n"));
	EXPECT_EQ(in_child(touches_one, p), 0);
	EXPECT(!write_file("/cg/t/memory.max", "8M\n"));
	EXPECT_EQ(in_child(touches_one, p), 1);
	EXPECT(!write_file("/cg/t/memory.max", "max\n"));
	EXPECT_EQ(in_child(touches_one, p), 1);
	EXPECT(!write_file("/proc/sys/vm/ptemagnet_memcg_min_mb", "0\n"));
}

static void locked_and_populated(void)
{
	char *p = mmap(NULL, 4 * HUGE, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE | MAP_LOCKED, -1, 0);
	char *a = (char *)(((uintptr_t)p + HUGE - 1) & ~(HUGE - 1));

	EXPECT(p != MAP_FAILED);
	EXPECT(mean_of(a, 512) == 1.0);
	munmap(p, 4 * HUGE);
	EXPECT_EQ(reserved(), 0);
}

#define FOLIOS	"/sys/kernel/mm/transparent_hugepage/hugepages-%dkB/enabled"

static int enable_folios(int kb, const char *when)
{
	char file[sizeof(FOLIOS) + 8];

	snprintf(file, sizeof(file), FOLIOS, kb);
	return write_file(file, "%s\n", when);
}

#define NONE_MAX	"/sys/kernel/mm/transparent_hugepage/khugepaged/max_ptes_none"

/* Where folios of 32 KiB are enabled nothing new is reserved; what is reserved is still used. */
static void folios_come_first(void)
{
	char *p;

	if (enable_folios(32, "madvise"))
		_exit(SKIP);
	/* khugepaged would collapse what is advised, sooner or later, and end its reservations. */
	EXPECT(!write_file(NONE_MAX, "0\n"));
	setenv("NESTWALK_FOLIOS", "1", 1);
	p = map_aligned(HUGE);
	*page(p, 0) = 1;
	EXPECT_EQ(reserved(), 7);
	EXPECT(!madvise(p, HUGE, MADV_HUGEPAGE));
	*page(p, 1) = 1;
	EXPECT_EQ(reserved(), 6);
	EXPECT(in_place(p, 0, 2));
	/* All eight pages of a folio are mapped by one touch. */
	*page(p, 11) = 1;
	EXPECT_EQ(reserved(), 6);
	EXPECT(in_place(page(p, 8), 0, 8));
	/* Sizes below come after reservations. */
	EXPECT(!enable_folios(32, "never") && !enable_folios(16, "madvise"));
	*page(p, 17) = 1;
	EXPECT_EQ(reserved(), 13);
	EXPECT(!frame_of(page(p, 16)));
	EXPECT(!enable_folios(16, "never") && !write_file(NONE_MAX, "511\n"));
}

static int unmaps_all(char *p)
{
	*p = 1;
	/* With the code that this returns to. */
	munmap(NULL, 0x7ffffffff000UL);
	return 0;
}

/* A process without any mapping left has a table all the same when it ends. */
static void all_unmapped(void)
{
	char *p = map_aligned(HUGE), line[64];
	int status, tables = 0;
	FILE *in;
	pid_t pid = fork();

	if (!pid)
		_exit(unmaps_all(p));
	EXPECT(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
	in = fopen("/sys/kernel/debug/ptemagnet/tables", "r");
	EXPECT(in);
	while (fgets(line, sizeof(line), in))
		tables += atoi(line) == pid;
	fclose(in);
	EXPECT_EQ(tables, 0);
}

#ifndef MADV_SOFT_OFFLINE
#define MADV_SOFT_OFFLINE 101
#endif

#define SOFT_OFFLINE	"/sys/devices/system/memory/soft_offline_page"

/* A page that is taken out of use is another frame from then on; its neighbours are where they were. */
static void taken_out_of_use(void)
{
	char *p = map_aligned(HUGE);
	uint64_t frame;
	size_t i;

	for (i = 0; i < 8; i++)
		*page(p, i) = 1 + i;
	*page(p, 8) = 9;
	frame = frame_of(page(p, 8));
	EXPECT_EQ(reserved(), 7);
	if (madvise(page(p, 3), PAGE, MADV_SOFT_OFFLINE))
		_exit(SKIP);
	EXPECT(!madvise(page(p, 8), PAGE, MADV_SOFT_OFFLINE));
	EXPECT_EQ(*page(p, 3), 4);
	EXPECT_EQ(*page(p, 8), 9);
	EXPECT(frame_of(page(p, 8)) != frame);
	EXPECT(in_place(p, 0, 3) && in_place(p, 4, 4) && !in_place(p, 0, 8));
	/* A page that is reserved is left alone. */
	EXPECT(!access(SOFT_OFFLINE, W_OK));
	EXPECT(write_file(SOFT_OFFLINE, "%#lx", (frame + 1) << PAGE_SHIFT));
	EXPECT_EQ(reserved(), 7);
	for (i = 9; i < 16; i++)
		*page(p, i) = 1 + i;
	EXPECT_EQ(reserved(), 0);
	EXPECT(in_place(page(p, 8), 1, 7));
	for (i = 0; i < 16; i++)
		EXPECT_EQ(*page(p, i), 1 + (long)i);
}

#ifndef MADV_HWPOISON
#define MADV_HWPOISON 100
#endif

/* Of the kernel's injector of memory errors, by frame. */
#define CORRUPT		"/sys/kernel/debug/hwpoison/corrupt-pfn"
#define UNPOISON	"/sys/kernel/debug/hwpoison/unpoison-pfn"
#define KPF_HWPOISON	19

static bool has_error(uint64_t frame)
{
	uint64_t flags = 0;
	int fd = open("/proc/kpageflags", O_RDONLY);

	EXPECT(fd >= 0 && pread(fd, &flags, sizeof(flags), frame * sizeof(flags)) == sizeof(flags));
	close(fd);
	return flags >> KPF_HWPOISON & 1;
}

/* kB. */
static long corrupted(void)
{
	return read_counter("/proc/meminfo", "HardwareCorrupted");
}

static int reads(char *p)
{
	signal(SIGBUS, SIG_DFL);
	return *(volatile char *)p;
}

/* The memory of pages that are mapped fails: who reads these is killed, and the rest goes on. */
static void survived(int signal)
{
	(void)signal;
}

static void poisoned(void)
{
	static const size_t bad[] = { 3, 9 };
	long back = counter("ptemagnet_unmapped");
	uint64_t frame[2];
	char *p = map_aligned(HUGE);
	long before = corrupted();
	size_t i;

	/* One group is mapped whole, the other in part. */
	for (i = 0; i < 12; i++)
		*page(p, i) = 1 + i;
	EXPECT_EQ(reserved(), 4);
	for (i = 0; i < 2; i++) {
		frame[i] = frame_of(page(p, bad[i]));
		/* Linux 6.12, not 6.1, tells who asks for the error as it tells who meets one (MF_ACTION_REQUIRED). */
		signal(SIGBUS, survived);
		if (madvise(page(p, bad[i]), PAGE, MADV_HWPOISON))
			_exit(SKIP);
		signal(SIGBUS, SIG_DFL);
		EXPECT(has_error(frame[i]));
		EXPECT_EQ(in_child(reads, page(p, bad[i])), 128 + SIGBUS);
	}
	EXPECT_EQ(corrupted() - before, 8);
	/* What was reserved beside the page has gone back, all of it. */
	EXPECT_EQ(reserved(), 0);
	EXPECT_EQ(counter("ptemagnet_unmapped") - back, 4);
	EXPECT(in_place(p, 0, 3) && in_place(p, 4, 4));
	EXPECT(in_place(page(p, 8), 0, 1) && in_place(page(p, 8), 2, 2));
	for (i = 12; i < 24; i++)
		*page(p, i) = 1 + i;
	EXPECT(in_place(page(p, 16), 0, 8));
	for (i = 0; i < 24; i++)
		EXPECT(i == bad[0] || i == bad[1] || *page(p, i) == 1 + (long)i);
	/* Given up and touched again: another frame. */
	for (i = 0; i < 2; i++) {
		EXPECT(!madvise(page(p, bad[i]), PAGE, MADV_DONTNEED));
		EXPECT(zeroed(page(p, bad[i])));
		*page(p, bad[i]) = 1;
		EXPECT(frame_of(page(p, bad[i])) != frame[i]);
		EXPECT(has_error(frame[i]));
	}
	munmap(p, HUGE);
	EXPECT_EQ(reserved(), 0);
	EXPECT_EQ(counter("ptemagnet_unmapped") - back, 4);
	for (i = 0; i < 2; i++)
		EXPECT(!write_file(UNPOISON, "%#lx", frame[i]));
	EXPECT_EQ(corrupted(), before);
}

/*
 * The memory of a page fails that is reserved, and so has no content: it is not handed
 * out, and does not go to the buddy allocator with the others. Whether it is there is
 * asked by an error in it, which the kernel mends where a page is free (it takes the
 * page out of the buddy allocator), and not where it cannot tell what a page is for.
 */
static void poisoned_while_reserved(void)
{
	long wanted = counter("ptemagnet_reclaimed"), back = counter("ptemagnet_unmapped");
	long before = corrupted();
	char *p = map_aligned(HUGE);
	uint64_t bad[2];
	size_t i;

	if (access(CORRUPT, W_OK))
		_exit(SKIP);
	*page(p, 0) = 1;
	*page(p, 8) = 9;
	/* In the middle of what go back as runs of four. */
	bad[0] = frame_of(p) + 5;
	bad[1] = frame_of(page(p, 8)) + 6;
	for (i = 0; i < 2; i++) {
		EXPECT(write_file(CORRUPT, "%#lx", bad[i]));
		EXPECT(has_error(bad[i]));
	}
	EXPECT_EQ(corrupted() - before, 8);
	EXPECT_EQ(reserved(), 14);
	for (i = 1; i < 8; i++)
		*page(p, i) = 1 + i;
	EXPECT(in_place(p, 0, 5) && in_place(p, 6, 2));
	EXPECT(frame_of(page(p, 5)) && frame_of(page(p, 5)) != bad[0]);
	for (i = 0; i < 8; i++)
		EXPECT_EQ(*page(p, i), 1 + (long)i);
	EXPECT_EQ(reserved(), 8);
	/* One group goes because its last page does, the other because memory is wanted. */
	munmap(page(p, 8), 8 * PAGE);
	EXPECT_EQ(reserved(), 1);
	EXPECT_EQ(counter("ptemagnet_unmapped") - back, 6);
	EXPECT(!write_file("/proc/sys/vm/drop_caches", "2\n"));
	EXPECT_EQ(reserved(), 0);
	EXPECT_EQ(counter("ptemagnet_reclaimed") - wanted, 0);
	for (i = 0; i < 2; i++) {
		EXPECT(has_error(bad[i]));
		EXPECT(!write_file(UNPOISON, "%#lx", bad[i]));
		EXPECT(!has_error(bad[i]));
		EXPECT(write_file(CORRUPT, "%#lx", bad[i]));
	}
	for (i = 0; i < 2; i++)
		EXPECT(!write_file(UNPOISON, "%#lx", bad[i]));
	EXPECT_EQ(corrupted(), before);
}

static const struct {
	const char *name;
	void (*fn)(void);
} tests[] = {
#define T(name) { #name, name }
	T(sequential), T(random_order), T(read_before_write), T(pages_are_zeroed), T(counted),
	T(dontneed), T(groups_go_in_one_piece), T(dontneed_with_child),
	T(fork_shares_what_is_reserved), T(parent_exits_first), T(cow_reuses_the_last_reference), T(moved), T(moved_in_part),
	T(partly_unmapped), T(protection_splits), T(no_group_across_vmas), T(userfaultfd),
	T(collapsed), T(khugepaged), T(swapped_out), T(lazily_freed), T(numa_policy),
	T(numa_no_remote_groups), T(numa_pressure), T(nothing_is_left_of_what_was_unmapped),
	T(idle_leaves_can_be_had), T(killed),
	T(dropped_on_demand), T(compaction_gets_the_block), T(compaction_is_linear), T(threshold), T(chosen_by_prctl),
	T(kept_by_exec), T(switched_off), T(memcg_is_charged), T(memcg_limit),
	T(memcg_pressure), T(memcg_single_leaf), T(memcg_statistic), T(chosen_by_memcg), T(locked_and_populated),
	T(all_unmapped), T(folios_come_first), T(taken_out_of_use),
	T(poisoned), T(poisoned_while_reserved),
};

static int run_one(size_t i)
{
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (!pid) {
		/* A test is to count the pages it means to, not those of heap and stack. */
		free(malloc(100000));
		if (mlockall(MCL_CURRENT) || munlockall())
			die("mlockall");
		if (prctl(PR_SET_PTEMAGNET, ALWAYS, 0, 0, 0))
			die("PR_SET_PTEMAGNET");
		tests[i].fn();
		fflush(stdout);
		_exit(0);
	}
	waitpid(pid, &status, 0);
	if (WIFEXITED(status) && WEXITSTATUS(status) == SKIP) {
		printf("skip - pmtest %s\n", tests[i].name);
		return 0;
	}
	if (status || reserved_settles_at(0)) {
		printf("not ok - pmtest %s (status %#x, %ld pages still reserved)\n",
		       tests[i].name, status, reserved());
		return 1;
	}
	printf("ok - pmtest %s\n", tests[i].name);
	return 0;
}

int main(int argc, char **argv)
{
	int failed = 0, j;
	size_t i;

	if (argc == 2 && !strcmp(argv[1], "--mode"))
		return prctl(PR_GET_PTEMAGNET, 0, 0, 0, 0);
	prctl(PR_SET_PTEMAGNET, NEVER, 0, 0, 0);
	named = argc > 1;
	for (i = 0; i < sizeof(tests) / sizeof(*tests); i++) {
		bool wanted = argc == 1;

		for (j = 1; j < argc; j++)
			wanted |= !strcmp(argv[j], tests[i].name);
		if (wanted)
			failed += run_one(i);
	}
	return failed != 0;
}
