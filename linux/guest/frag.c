// SPDX-License-Identifier: GPL-2.0
/*
 * frag MIB ORDER TAG [SEED [FILE]]
 *
 * Touch MIB MiB of anonymous memory for the first time, one write a page, in
 * the given order, and print the fragmentation of the host page table that
 * results. ORDER: "seq", "rand" (Fisher-Yates from SEED) or "strideK" (pages
 * 0, K, 2K ..., then 1, K+1 ...). With FILE it then waits until there is such a
 * file, says where the memory is, waits until something is in the file, and reads
 * the memory for ever, so that it can be looked at from outside: now a word
 * anywhere, now one in each of four pages in a row.
 */
#include "common.h"
#include <sys/stat.h>
#include <time.h>

#define RUN_PAGES	4

static void wait_for_file(const char *path, off_t size)
{
	struct stat st;

	while (stat(path, &st) || st.st_size < size)
		usleep(100000);
}

static void fill_order(uint32_t *order, size_t pages, const char *name, uint64_t seed)
{
	size_t i, r, stride, n = 0;

	for (i = 0; i < pages; i++)
		order[i] = i;
	if (!strcmp(name, "rand")) {
		shuffled(order, pages, &seed);
	} else if (!strncmp(name, "stride", 6)) {
		stride = strtoul(name + 6, NULL, 10);
		if (!stride)
			die("stride");
		for (r = 0; r < stride; r++)
			for (i = r; i < pages; i += stride)
				order[n++] = i;
	} else if (strcmp(name, "seq")) {
		fprintf(stderr, "frag: unknown order %s\n", name);
		exit(2);
	}
}

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

/* Reads of the pages for ever. */
static void read_on(volatile char *p, size_t pages, uint64_t seed)
{
	size_t k, at;

	for (;;) {
		at = next_random(&seed) % (pages << PAGE_SHIFT);
		(void)p[at];
		at = next_random(&seed) % ((pages - RUN_PAGES) << PAGE_SHIFT);
		for (k = 0; k < RUN_PAGES; k++)
			(void)p[at + (k << PAGE_SHIFT)];
	}
}

int main(int argc, char **argv)
{
	size_t pages, i, k;
	struct fragmentation f;
	uint64_t seed, *frame;
	uint32_t *order;
	double t;
	char *p;

	if (argc < 4) {
		fprintf(stderr, "usage: frag MIB seq|rand|strideK TAG [SEED [FILE]]\n");
		return 2;
	}
	pages = strtoul(argv[1], NULL, 0) << 8;
	seed = argc > 4 ? strtoull(argv[4], NULL, 0) : 88172645463325252ULL;
	p = map_aligned(pages << PAGE_SHIFT);
	order = malloc(pages * sizeof(*order));
	frame = malloc(pages * sizeof(*frame));
	if (!order || !frame)
		die("malloc");
	fill_order(order, pages, argv[2], seed);

	t = seconds();
	for (i = 0; i < pages; i++)
		p[(size_t)order[i] << PAGE_SHIFT] = 1;
	t = seconds() - t;

	read_frames(p, pages, frame);
	for (i = 0; i < pages; i++) {
		int tries;

		/* While the kernel moves a page it is absent; a touch waits for the end of that. */
		for (tries = 0; !frame[i] && tries < 100; tries++) {
			(void)*(volatile char *)(p + (i << PAGE_SHIFT));
			read_frames(p + (i << PAGE_SHIFT), 1, &frame[i]);
		}
		if (!frame[i]) {
			fprintf(stderr, "frag: frame of page %zu hidden or absent\n", i);
			return 1;
		}
	}
	fragmentation_of(frame, pages, &f);
	printf("FRAG {\"tag\":\"%s\",\"mib\":%zu,\"order\":\"%s\",\"seed\":%llu,\"groups\":%zu,\"mean\":%.4f,\"distribution\":[",
	       argv[3], pages >> 8, argv[2], (unsigned long long)seed, f.complete,
	       fragmentation_mean(&f));
	for (k = 1; k <= GROUP_PAGES; k++)
		printf("%zu%s", f.groups[k], k < GROUP_PAGES ? "," : "]");
	printf(",\"fault_ns\":%.0f}\n", t * 1e9 / pages);
	if (argc > 5) {
		fflush(stdout);
		wait_for_file(argv[5], 0);
		printf("HOLD %#lx %zu\n", (unsigned long)p, pages);
		fflush(stdout);
		/* Nobody else is to run from here on: the trace is of whoever runs. */
		wait_for_file(argv[5], 1);
		/* A no-op that harness/memtrace.c waits for. */
		__asm__ volatile(".byte 0x0f, 0x1f, 0x84, 0x00, 0x31, 0x4d, 0x54, 0x50");
		read_on(p, pages, seed);
	}
	return 0;
}
