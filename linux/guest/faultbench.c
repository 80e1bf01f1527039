// SPDX-License-Identifier: GPL-2.0
/*
 * faultbench THREADS MIB ROUNDS TAG own|shared
 *
 * Threads of one process touch anonymous memory page by page and drop it, ROUNDS
 * times, all between two marks. own: each has MIB MiB to itself. shared: MIB MiB
 * for each, in one region whose pages they touch in turns, so that every group of
 * eight and every page table is in use by all of them.
 */
#include "common.h"
#include "marks.h"
#include <pthread.h>

static size_t threads, pages, rounds;
static char *region;
static pthread_barrier_t barrier;

static void own(void)
{
	char *p = map_aligned(pages << PAGE_SHIFT);
	size_t i, r;

	pthread_barrier_wait(&barrier);
	for (r = 0; r < rounds; r++) {
		for (i = 0; i < pages; i++)
			p[i << PAGE_SHIFT] = 1;
		madvise(p, pages << PAGE_SHIFT, MADV_DONTNEED);
	}
}

static void shared(size_t thread)
{
	size_t i, r;

	pthread_barrier_wait(&barrier);
	for (r = 0; r < rounds; r++) {
		for (i = thread; i < threads * pages; i += threads)
			region[i << PAGE_SHIFT] = 1;
		pthread_barrier_wait(&barrier);
		if (!thread)
			madvise(region, threads * pages << PAGE_SHIFT, MADV_DONTNEED);
		pthread_barrier_wait(&barrier);
	}
}

static void *faults(void *arg)
{
	if (region)
		shared((size_t)arg);
	else
		own();
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t thread[64];
	size_t i;

	if (argc != 6) {
		fprintf(stderr, "usage: faultbench THREADS MIB ROUNDS TAG own|shared\n");
		return 2;
	}
	threads = strtoul(argv[1], NULL, 0);
	pages = strtoul(argv[2], NULL, 0) << 8;
	rounds = strtoul(argv[3], NULL, 0);
	if (!threads || threads > 64)
		die("threads");
	if (!strcmp(argv[5], "shared"))
		region = map_aligned(threads * pages << PAGE_SHIFT);
	pthread_barrier_init(&barrier, NULL, threads);
	BEGIN(0);
	for (i = 0; i < threads; i++)
		if (pthread_create(&thread[i], NULL, faults, (void *)i))
			die("pthread_create");
	for (i = 0; i < threads; i++)
		pthread_join(thread[i], NULL);
	END(0);
	REPORT();
	printf("FAULTS {\"tag\":\"%s\",\"area\":\"%s\",\"threads\":%zu,\"faults\":%zu}\n",
	       argv[4], argv[5], threads, threads * pages * rounds);
	return 0;
}
