// SPDX-License-Identifier: GPL-2.0
/*
 * toucher MIB STRIDE SECONDS [KEEP]
 *
 * Write one page in every STRIDE of MIB MiB, verify it all, stay for SECONDS,
 * and verify again what it still has. With STRIDE 8 each touch costs a reservation of eight pages.
 * With KEEP it stays with one 2 MiB in so many only, and so with few page tables.
 */
#include "common.h"

/* Pages that do not have what was written; of one 2 MiB in every @keep. */
static size_t count_wrong(const char *p, size_t pages, size_t stride, size_t keep)
{
	size_t i, wrong = 0;

	for (i = 0; i < pages; i += stride)
		if ((i << PAGE_SHIFT) / HUGE % keep == 0)
			wrong += *(const size_t *)(p + (i << PAGE_SHIFT)) != i + 1;
	return wrong;
}

int main(int argc, char **argv)
{
	size_t pages, stride, keep, i, wrong;
	char *p;

	if (argc < 4) {
		fprintf(stderr, "usage: toucher MIB STRIDE SECONDS [KEEP]\n");
		return 2;
	}
	pages = strtoul(argv[1], NULL, 0) << 8;
	stride = strtoul(argv[2], NULL, 0);
	p = map_aligned(pages << PAGE_SHIFT);
	for (i = 0; i < pages; i += stride)
		*(size_t *)(p + (i << PAGE_SHIFT)) = i + 1;
	wrong = count_wrong(p, pages, stride, 1);
	printf("TOUCH mib=%zu stride=%zu wrong=%zu\n", pages >> 8, stride, wrong);
	fflush(stdout);
	keep = argc > 4 ? strtoul(argv[4], NULL, 0) : 1;
	for (i = 0; i < pages << PAGE_SHIFT; i += HUGE)
		if (i / HUGE % keep && munmap(p + i, HUGE))
			die("munmap");
	sleep(strtoul(argv[3], NULL, 0));
	return wrong || count_wrong(p, pages, stride, keep);
}
