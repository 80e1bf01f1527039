// SPDX-License-Identifier: GPL-2.0
/*
 * stress SECONDS [SEED]
 *
 * Races for the reservation allocator. Every word of a shared region has a
 * value of its own, so that a page that is handed out twice, is not zeroed, or
 * survives its MADV_DONTNEED in the wrong place, is noticed; whoever looks at a
 * page looks at all of it. Threads write and verify while others drop, page
 * out, collapse, protect, bind to nodes, fork, mremap, answer page faults
 * (userfaultfd) and change what the process asks the kernel for.
 */
#include "common.h"
#include <linux/mempolicy.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#define PAGES		4096UL
#define WORDS		(PAGE / sizeof(uint64_t))
/* The pages of the region that a userfaultfd answers for are numbered from here. */
#define ANSWERED	0x100000UL
#define ANSWERED_PAGES	512UL
#define GRANDCHILDREN_S	120
#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT	21
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE	25
#endif
#define PR_SET_PTEMAGNET		0x50544d47
#define PR_SET_SORTED_PAGE_TABLES	0x53505442

enum { WRITES, DROPS, MOVES, FORKS, PROTECTS, TABLES, BINDS, ANSWERS, CHOICES, KINDS };
static const char *const kind_name[KINDS] = {
	"writes", "drops", "moves", "forks", "protects", "tables", "binds", "answers", "choices",
};

/* What children have a part in, too. */
static struct shared {
	unsigned long bad, begun, ended;
} *shared;

static char *region, *answered;
static volatile bool stop;
static unsigned long done[KINDS];
/* What this kernel cannot do. */
static bool absent[KINDS];
static int faults = -1;
static volatile bool answers_wanted = true;
static uint64_t seed = 1;

static uint64_t value(size_t page, size_t word)
{
	return page ^ (word << 40) ^ 0x5a17ab1e5a17ab1eUL;
}

static volatile uint64_t *words(char *base, size_t page)
{
	return (volatile uint64_t *)(base + (page << PAGE_SHIFT));
}

static void report(const char *who, size_t page, size_t word, uint64_t found)
{
	if (__sync_fetch_and_add(&shared->bad, 1) < 10)
		printf("# %s: page %zu word %zu is %#llx\n", who, page, word,
		       (unsigned long long)found);
}

/* Zero where nobody has written since the page appeared, its own value where somebody has. */
static void verify_as(const char *who, volatile uint64_t *w, size_t page)
{
	size_t i;

	for (i = 0; i < WORDS; i++) {
		uint64_t v = w[i];

		if (v && v != value(page, i))
			report(who, page, i, v);
	}
}

static void verify(const char *who, char *base, size_t page)
{
	verify_as(who, words(base, page), page);
}

static void *writer(void *arg)
{
	uint64_t s = seed * 77 + (uintptr_t)arg;

	while (!stop) {
		size_t page = next_random(&s) % PAGES, word = next_random(&s) % WORDS;

		verify("writer", region, page);
		words(region, page)[word] = value(page, word);
		done[WRITES]++;
	}
	return NULL;
}

static void *dropper(void *arg)
{
	static const int advice[] = {
		MADV_DONTNEED, MADV_DONTNEED, MADV_DONTNEED, MADV_FREE, MADV_PAGEOUT,
	};
	uint64_t s = seed * 99 + (uintptr_t)arg;

	while (!stop) {
		size_t page = next_random(&s) % PAGES, n = 1 + next_random(&s) % 24;

		if (page + n > PAGES)
			n = PAGES - page;
		madvise(region + (page << PAGE_SHIFT), n << PAGE_SHIFT,
			advice[next_random(&s) % 5]);
		done[DROPS]++;
	}
	return NULL;
}

/* Private memory that grows, moves, loses a page in the middle, and goes. */
static void *mover(void *arg)
{
	uint64_t s = seed * 5 + (uintptr_t)arg;

	while (!stop) {
		size_t n = 3 + next_random(&s) % 600, i;
		char *p = mmap(NULL, n << PAGE_SHIFT, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *q;

		if (p == MAP_FAILED)
			continue;
		for (i = 0; i < n; i += 1 + next_random(&s) % 3)
			words(p, i)[i % WORDS] = value(i, i % WORDS);
		q = mremap(p, n << PAGE_SHIFT, (n + 5) << PAGE_SHIFT, MREMAP_MAYMOVE);
		if (q == MAP_FAILED) {
			munmap(p, n << PAGE_SHIFT);
			continue;
		}
		for (i = 0; i < n + 5; i++) {
			verify("mover", q, i);
			words(q, i)[0] = value(i, 0);
		}
		munmap(q + PAGE, PAGE);
		for (i = 2; i < n + 5; i++)
			if (words(q, i)[0] != value(i, 0))
				report("mover", i, 0, words(q, i)[0]);
		munmap(q, (n + 5) << PAGE_SHIFT);
		done[MOVES]++;
	}
	return NULL;
}

/* One page in each table of a mapping: tables come and go, a hole is unmapped and mapped anew. */
static void *spreader(void *arg)
{
	uint64_t s = seed * 17 + (uintptr_t)arg;

	while (!stop) {
		size_t n = 2 + next_random(&s) % 30, from = next_random(&s) % n, holes = 1 + next_random(&s) % 4, i;
		char *p = map_aligned(n * HUGE);

		if (from + holes > n)
			holes = n - from;
		for (i = 0; i < n; i++)
			*words(p, i * 512 + i) = value(i, 0);
		munmap(p + from * HUGE, holes * HUGE);
		for (i = 0; i < n; i++) {
			if (i >= from && i < from + holes)
				continue;
			verify_as("spreader", words(p, i * 512 + i), i);
			if (*words(p, i * 512 + i) != value(i, 0))
				report("spreader", i, 0, *words(p, i * 512 + i));
		}
		/* Another thread may have been given the place. */
		if (mmap(p + from * HUGE, holes * HUGE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0) == p + from * HUGE) {
			for (i = from; i < from + holes; i++)
				if (*words(p, i * 512 + i))
					report("spreader, mapped anew", i, 0, *words(p, i * 512 + i));
			munmap(p, n * HUGE);
		} else {
			munmap(p, from * HUGE);
			munmap(p + (from + holes) * HUGE, (n - from - holes) * HUGE);
		}
		done[TABLES] += n;
	}
	return NULL;
}

static void write_and_verify(const char *who, int count)
{
	uint64_t s = getpid();
	int i;

	for (i = 0; i < count; i++) {
		size_t page = next_random(&s) % PAGES, word = next_random(&s) % WORDS;

		verify(who, region, page);
		words(region, page)[word] = value(page, word);
		if (words(region, page)[word] != value(page, word))
			report(who, page, word, words(region, page)[word]);
	}
}

/* Every other child has a child, which outlives it. */
static void child(void)
{
	write_and_verify("child", 200);
	if (getpid() & 1 && !fork()) {
		__sync_fetch_and_add(&shared->begun, 1);
		while (getppid() != 1 && !stop)
			write_and_verify("grandchild", 20);
		write_and_verify("orphan", 200);
		__sync_fetch_and_add(&shared->ended, 1);
		_exit(0);
	}
	write_and_verify("child", 200);
	_exit(0);
}

static void *forker(void *arg)
{
	uint64_t s = seed * 31 + (uintptr_t)arg;

	while (!stop) {
		bool killed = next_random(&s) % 4 == 0;
		int status;
		pid_t pid = fork();

		if (pid < 0)
			continue;
		if (!pid)
			child();
		if (killed)
			kill(pid, SIGKILL);
		waitpid(pid, &status, 0);
		if (WIFSIGNALED(status) && !killed) {
			printf("# a child ended by signal %d\n", WTERMSIG(status));
			__sync_fetch_and_add(&shared->bad, 1);
		}
		done[FORKS]++;
	}
	return NULL;
}

/* Splits and merges VMAs; never takes a right away that others need. */
static void *protector(void *arg)
{
	uint64_t s = seed * 13 + (uintptr_t)arg;

	while (!stop) {
		size_t page = next_random(&s) % (PAGES - 16), n = 1 + next_random(&s) % 16;
		char *p = region + (page << PAGE_SHIFT);

		madvise(p, n << PAGE_SHIFT, next_random(&s) & 1 ? MADV_DONTDUMP : MADV_DODUMP);
		mprotect(p, n << PAGE_SHIFT, PROT_READ | PROT_WRITE |
			 (next_random(&s) & 1 ? PROT_EXEC : 0));
		if (next_random(&s) % 512 == 0)
			madvise(region + (page & ~511UL) * PAGE, HUGE, MADV_COLLAPSE);
		done[PROTECTS]++;
		usleep(200);
	}
	return NULL;
}

/* Moves pages to a node, and splits VMAs by policy. With one node: the latter. */
static void *binder(void *arg)
{
	static const int policy[] = { MPOL_DEFAULT, MPOL_BIND, MPOL_PREFERRED, MPOL_INTERLEAVE };
	uint64_t s = seed * 41 + (uintptr_t)arg;
	bool two = !access("/sys/devices/system/node/node1", F_OK);

	while (!stop) {
		size_t page = next_random(&s) % (PAGES - 64), n = 1 + next_random(&s) % 64, kind = next_random(&s) % 4;
		unsigned long nodes = two ? 1 + next_random(&s) % 3 : 1;

		if (!syscall(__NR_mbind, region + (page << PAGE_SHIFT), n << PAGE_SHIFT, policy[kind],
			     kind ? &nodes : NULL, kind ? 3UL : 0UL, MPOL_MF_MOVE))
			done[BINDS]++;
		else if (errno == ENOSYS && (absent[BINDS] = true))
			break;
		usleep(500);
	}
	return NULL;
}

/* What the process wants of the kernel changes all the time; mostly it wants reservations, and its tables sorted. */
static void *chooser(void *arg)
{
	uint64_t s = seed * 43 + (uintptr_t)arg;

	while (!stop) {
		uint64_t wanted = next_random(&s) % 8;

		/* 0: as the system has it, 1: always, 2: never */
		if (prctl(PR_SET_PTEMAGNET, wanted > 2 ? 1 : wanted, 0, 0, 0) && (absent[CHOICES] = true))
			break;
		/* Refused where the kernel, or the system's administrator, has none. */
		prctl(PR_SET_SORTED_PAGE_TABLES, next_random(&s) % 4 > 0, 0, 0, 0);
		done[CHOICES]++;
		usleep(1000 + next_random(&s) % 4000);
	}
	return NULL;
}

/* Touches pages that a userfaultfd answers for, and gives them up again. */
static void *asker(void *arg)
{
	uint64_t s = seed * 47 + (uintptr_t)arg;

	while (!stop && !absent[ANSWERS]) {
		size_t page = next_random(&s) % ANSWERED_PAGES, word = next_random(&s) % WORDS, n = 1 + next_random(&s) % 24;

		verify_as("asker", words(answered, page), ANSWERED + page);
		words(answered, page)[word] = value(ANSWERED + page, word);
		if (next_random(&s) % 8)
			continue;
		if (page + n > ANSWERED_PAGES)
			n = ANSWERED_PAGES - page;
		madvise(answered + (page << PAGE_SHIFT), n << PAGE_SHIFT, MADV_DONTNEED);
	}
	return NULL;
}

/* Answers with a page that is full or with one of zeros, until nobody asks any more. */
static void *answerer(void *arg)
{
	static uint64_t full[WORDS] __attribute__((aligned(4096)));
	uint64_t s = seed * 53 + (uintptr_t)arg;
	struct pollfd p = { .fd = faults, .events = POLLIN };

	while (answers_wanted && !absent[ANSWERS]) {
		struct uffd_msg msg;
		unsigned long at;
		size_t page, i;
		int r;

		if (poll(&p, 1, 100) <= 0 || read(faults, &msg, sizeof(msg)) != sizeof(msg) ||
		    msg.event != UFFD_EVENT_PAGEFAULT)
			continue;
		at = msg.arg.pagefault.address & ~(PAGE - 1);
		page = (at - (uintptr_t)answered) >> PAGE_SHIFT;
		for (i = 0; i < WORDS; i++)
			full[i] = value(ANSWERED + page, i);
		do {
			struct uffdio_copy copy = { .dst = at, .src = (uintptr_t)full, .len = PAGE };
			struct uffdio_zeropage zero = { .range = { .start = at, .len = PAGE } };

			r = next_random(&s) & 1 ? ioctl(faults, UFFDIO_COPY, &copy) : ioctl(faults, UFFDIO_ZEROPAGE, &zero);
		} while (r && errno == EAGAIN);
		if (r && errno != EEXIST) {
			printf("# answerer: %s\n", strerror(errno));
			__sync_fetch_and_add(&shared->bad, 1);
		}
		done[ANSWERS]++;
	}
	return NULL;
}

static void register_faults(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg;

	answered = map_aligned(ANSWERED_PAGES << PAGE_SHIFT);
	faults = syscall(__NR_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	if (faults < 0 && errno == ENOSYS) {
		absent[ANSWERS] = true;
		return;
	}
	reg = (struct uffdio_register) {
		.range = { .start = (uintptr_t)answered, .len = ANSWERED_PAGES << PAGE_SHIFT },
		.mode = UFFDIO_REGISTER_MODE_MISSING,
	};
	if (faults < 0 || ioctl(faults, UFFDIO_API, &api) || ioctl(faults, UFFDIO_REGISTER, &reg))
		die("userfaultfd");
}

int main(int argc, char **argv)
{
	/* The last one ends when the others have. */
	static void *(*const role[])(void *) = {
		writer, writer, dropper, mover, forker, protector, spreader, binder, chooser, asker, answerer,
	};
	enum { ROLES = sizeof(role) / sizeof(*role) };
	pthread_t thread[ROLES];
	bool idle = false;
	unsigned int seconds;
	size_t i;

	if (argc < 2) {
		fprintf(stderr, "usage: stress SECONDS [SEED]\n");
		return 2;
	}
	seconds = strtoul(argv[1], NULL, 0);
	if (argc > 2)
		seed = strtoull(argv[2], NULL, 0);
	shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		die("mmap");
	region = map_aligned(PAGES << PAGE_SHIFT);
	register_faults();
	for (i = 0; i < ROLES; i++)
		if (pthread_create(&thread[i], NULL, role[i], (void *)(i + 1)))
			die("pthread_create");
	sleep(seconds);
	stop = true;
	for (i = 0; i < ROLES; i++) {
		answers_wanted = i < ROLES - 1;
		pthread_join(thread[i], NULL);
	}
	for (i = 0; i < GRANDCHILDREN_S * 10 && shared->ended < shared->begun; i++)
		usleep(100000);
	printf("STRESS");
	for (i = 0; i < KINDS; i++) {
		printf(absent[i] ? " %s=-" : " %s=%lu", kind_name[i], done[i]);
		idle |= !absent[i] && !done[i];
	}
	printf(" grandchildren=%lu of %lu bad=%lu\n", shared->ended, shared->begun, shared->bad);
	return shared->bad || idle || !shared->begun || shared->ended != shared->begun;
}
