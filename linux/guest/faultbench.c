// SPDX-License-Identifier: GPL-2.0
/*
 * faultbench THREADS MIB ROUNDS [TAG]
 *
 * Each thread touches MIB MiB of its own, page by page, and drops it, ROUNDS
 * times. Prints faults a second over all threads (drops included), and the time
 * of one touch and of dropping one page, averaged over the threads. All of it
 * stands between two marks.
 */
#include "common.h"
#include "marks.h"
#include <pthread.h>
#include <time.h>

static size_t pages, rounds;
static double touch_seconds, drop_seconds;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t barrier;

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static void *faults(void *arg)
{
	char *p = map_aligned(pages << PAGE_SHIFT);
	double a, b, touch = 0, drop = 0;
	size_t i, r;

	(void)arg;
	pthread_barrier_wait(&barrier);
	for (r = 0; r < rounds; r++) {
		a = seconds();
		for (i = 0; i < pages; i++)
			p[i << PAGE_SHIFT] = 1;
		b = seconds();
		touch += b - a;
		madvise(p, pages << PAGE_SHIFT, MADV_DONTNEED);
		drop += seconds() - b;
	}
	pthread_mutex_lock(&lock);
	touch_seconds += touch;
	drop_seconds += drop;
	pthread_mutex_unlock(&lock);
	pthread_barrier_wait(&barrier);
	return NULL;
}

int main(int argc, char **argv)
{
	size_t threads, i;
	double wall;
	pthread_t t;

	if (argc < 4) {
		fprintf(stderr, "usage: faultbench THREADS MIB ROUNDS [TAG]\n");
		return 2;
	}
	threads = strtoul(argv[1], NULL, 0);
	pages = strtoul(argv[2], NULL, 0) << 8;
	rounds = strtoul(argv[3], NULL, 0);
	pthread_barrier_init(&barrier, NULL, threads + 1);
	for (i = 0; i < threads; i++)
		if (pthread_create(&t, NULL, faults, NULL))
			die("pthread_create");
	BEGIN(0);
	pthread_barrier_wait(&barrier);
	wall = seconds();
	pthread_barrier_wait(&barrier);
	wall = seconds() - wall;
	END(0);
	REPORT();
	printf("FAULTS {\"tag\":\"%s\",\"threads\":%zu,\"faults\":%zu,\"per_second\":%.0f,\"touch_ns\":%.1f,\"drop_ns\":%.1f}\n",
	       argc > 4 ? argv[4] : "", threads, threads * pages * rounds,
	       threads * pages * rounds / wall, touch_seconds * 1e9 / (threads * pages * rounds),
	       drop_seconds * 1e9 / (threads * pages * rounds));
	return 0;
}
