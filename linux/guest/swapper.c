// SPDX-License-Identifier: GPL-2.0
/*
 * swapper MIB STRIDE ROUNDS TAG
 *
 * Write one page in every STRIDE of MIB MiB, ROUNDS times in ascending order, and verify what the
 * round before wrote: meant for a cgroup that swaps. Prints the pages that were swapped out and in
 * meanwhile, of the whole machine, the page faults, and how the pages lie that are resident at the
 * end.
 */
#include "common.h"
#include <sys/resource.h>

static const char * const counter[] = { "pswpout", "pswpin" };
enum { COUNTERS = sizeof(counter) / sizeof(*counter) };

static void count(long *value)
{
	size_t i;

	for (i = 0; i < COUNTERS; i++) {
		value[i] = read_counter("/proc/vmstat", counter[i]);
		if (value[i] < 0)
			die(counter[i]);
	}
}

int main(int argc, char **argv)
{
	size_t pages, stride, rounds, i, r, wrong = 0;
	long before[COUNTERS], after[COUNTERS];
	struct fragmentation f;
	struct rusage usage;
	uint64_t *frame;
	char *p;

	if (argc != 5) {
		fprintf(stderr, "usage: swapper MIB STRIDE ROUNDS TAG\n");
		return 2;
	}
	pages = strtoul(argv[1], NULL, 0) << 8;
	stride = strtoul(argv[2], NULL, 0);
	rounds = strtoul(argv[3], NULL, 0);
	p = map_aligned(pages << PAGE_SHIFT);
	count(before);
	for (r = 0; r < rounds; r++)
		for (i = 0; i < pages; i += stride) {
			size_t *word = (size_t *)(p + (i << PAGE_SHIFT));

			/* The first touch is to be a write: a read would map the zero page. */
			wrong += r && *word != i + r;
			*word = i + r + 1;
		}
	count(after);
	if (getrusage(RUSAGE_SELF, &usage))
		die("getrusage");
	frame = malloc(pages * sizeof(*frame));
	if (!frame)
		die("malloc");
	read_frames(p, pages, frame);
	fragmentation_of(frame, pages, &f);
	printf("SWAPPED {\"tag\":\"%s\",\"mib\":%zu,\"stride\":%zu,\"rounds\":%zu,\"wrong\":%zu,\"out\":%ld,\"in\":%ld,\"minor\":%ld,\"major\":%ld,\"groups\":%zu,\"mean\":%.4f}\n",
	       argv[4], pages >> 8, stride, rounds, wrong, after[0] - before[0], after[1] - before[1],
	       usage.ru_minflt, usage.ru_majflt, f.complete, fragmentation_mean(&f));
	return wrong != 0;
}
