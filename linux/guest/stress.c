// SPDX-License-Identifier: GPL-2.0
/*
 * stress SECONDS [SEED]
 *
 * Races for the reservation allocator. Every page of a shared region carries
 * its own tag, so that a page that is handed out twice, is not zeroed, or
 * survives its MADV_DONTNEED in the wrong place, is noticed. Threads write and
 * verify while others drop, page out, collapse, protect, fork and mremap.
 */
#include "common.h"
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#define PAGES		4096UL
#define TAG(page)	((page) ^ 0x5a17ab1e5a17ab1eUL)
#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT	21
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE	25
#endif

static char *region;
static volatile bool stop;
static unsigned long bad, done[8];
static uint64_t seed = 1;

static volatile uint64_t *words(char *base, size_t page)
{
	return (volatile uint64_t *)(base + (page << PAGE_SHIFT));
}

static void report(const char *who, size_t page, size_t word, uint64_t value)
{
	if (__sync_fetch_and_add(&bad, 1) < 10)
		printf("# %s: page %zu word %zu is %#llx\n", who, page, word,
		       (unsigned long long)value);
}

/* Zero where nobody has written since the page appeared, the tag where somebody has. */
static void verify(const char *who, char *base, size_t page)
{
	volatile uint64_t *w = words(base, page);
	size_t i;

	for (i = 0; i < 512; i += 73) {
		uint64_t v = w[i];

		if (v && v != TAG(page))
			report(who, page, i, v);
	}
}

static void *writer(void *arg)
{
	uint64_t s = seed * 77 + (uintptr_t)arg;

	while (!stop) {
		size_t page = next_random(&s) % PAGES;

		verify("writer", region, page);
		words(region, page)[next_random(&s) % 7 * 73] = TAG(page);
		done[0]++;
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
		done[1]++;
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
			*words(p, i) = TAG(i);
		q = mremap(p, n << PAGE_SHIFT, (n + 5) << PAGE_SHIFT, MREMAP_MAYMOVE);
		if (q == MAP_FAILED) {
			munmap(p, n << PAGE_SHIFT);
			continue;
		}
		for (i = 0; i < n + 5; i++) {
			verify("mover", q, i);
			*words(q, i) = TAG(i);
		}
		munmap(q + PAGE, PAGE);
		for (i = 2; i < n + 5; i++)
			if (*words(q, i) != TAG(i))
				report("mover", i, 0, *words(q, i));
		munmap(q, (n + 5) << PAGE_SHIFT);
		done[2]++;
	}
	return NULL;
}

/* One page, at its tag, in each table of a mapping: tables come and go, a hole is unmapped and mapped anew. */
static void *spreader(void *arg)
{
	uint64_t s = seed * 17 + (uintptr_t)arg;

	while (!stop) {
		size_t n = 2 + next_random(&s) % 30, from = next_random(&s) % n, holes = 1 + next_random(&s) % 4, i;
		char *p = map_aligned(n * HUGE);

		if (from + holes > n)
			holes = n - from;
		for (i = 0; i < n; i++)
			*words(p, i * 512 + i) = TAG(i);
		munmap(p + from * HUGE, holes * HUGE);
		for (i = 0; i < n; i++)
			if ((i < from || i >= from + holes) && *words(p, i * 512 + i) != TAG(i))
				report("spreader", i, 0, *words(p, i * 512 + i));
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
		done[5] += n;
	}
	return NULL;
}

static int child(void)
{
	uint64_t s = getpid();
	int i;

	for (i = 0; i < 1500; i++) {
		size_t page = next_random(&s) % PAGES;

		verify("child", region, page);
		words(region, page)[73] = TAG(page);
		if (words(region, page)[73] != TAG(page))
			report("child", page, 73, words(region, page)[73]);
	}
	return bad != 0;
}

static void *forker(void *arg)
{
	uint64_t s = seed * 31 + (uintptr_t)arg;

	while (!stop) {
		unsigned long before = bad;
		int status;
		pid_t pid = fork();

		if (pid < 0)
			continue;
		if (!pid)
			_exit(child() && !before);
		if (next_random(&s) % 4 == 0)
			kill(pid, SIGKILL);
		waitpid(pid, &status, 0);
		if (WIFEXITED(status) && WEXITSTATUS(status))
			__sync_fetch_and_add(&bad, 1);
		done[3]++;
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
		done[4]++;
		usleep(200);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	static void *(*const role[])(void *) = {
		writer, writer, dropper, mover, forker, protector, spreader,
	};
	pthread_t thread[sizeof(role) / sizeof(*role)];
	size_t i, n = sizeof(role) / sizeof(*role);
	unsigned int seconds;

	if (argc < 2) {
		fprintf(stderr, "usage: stress SECONDS [SEED]\n");
		return 2;
	}
	seconds = strtoul(argv[1], NULL, 0);
	if (argc > 2)
		seed = strtoull(argv[2], NULL, 0);
	region = map_aligned(PAGES << PAGE_SHIFT);
	for (i = 0; i < n; i++)
		if (pthread_create(&thread[i], NULL, role[i], (void *)(i + 1)))
			die("pthread_create");
	sleep(seconds);
	stop = true;
	for (i = 0; i < n; i++)
		pthread_join(thread[i], NULL);
	printf("STRESS writes=%lu drops=%lu moves=%lu forks=%lu protects=%lu tables=%lu bad=%lu\n",
	       done[0], done[1], done[2], done[3], done[4], done[5], bad);
	return bad || !done[0] || !done[1] || !done[2] || !done[3] || !done[4] || !done[5];
}
