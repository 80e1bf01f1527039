/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A guest of one program whose accesses are known. As init it starts itself as /known, which maps
 * SMALL_PAGES 4 KiB pages and one huge page, and makes ACCESSES accesses between two markers: at
 * pages that follow from xorshift64, a load or a store as its lowest bit says; after each eighth a
 * store into the huge page. test_vm_guest.py computes the same list. With "forever" behind the
 * kernel's "--" it does so again and again.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SMALL ((char *)0x600000000000)
#define LARGE ((char *)0x610000000000)
#define SMALL_PAGES 2048ul
#define LARGE_BYTES (2ul << 20)
#define ACCESSES 60000ul

#define MARK() __asm__ volatile(".byte 0x0f,0x1f,0x84,0x00,0x31,0x4d,0x54,0x50" ::: "memory")
#define LOAD(at, value) __asm__ volatile("movq (%1),%0" : "=r"(value) : "r"(at) : "memory")
#define STORE(at, value) __asm__ volatile("movq %0,(%1)" : : "r"(value), "r"(at) : "memory")

static char *map(char *at, size_t bytes, int advice)
{
	char *found = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);

	madvise(found, bytes, advice);
	return found;
}

static void run(int forever)
{
	char *small = map(SMALL, SMALL_PAGES << 12, MADV_NOHUGEPAGE);
	char *large = map(LARGE, LARGE_BYTES, MADV_HUGEPAGE);
	register uint64_t x = 1, n, value;

	for (size_t i = 0; i < SMALL_PAGES; i++)
		STORE(small + (i << 12), i);
	STORE(large, x);
again:
	MARK();
	for (n = ACCESSES; n; n--) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		if (x & 1)
			STORE(small + ((x >> 11) % (SMALL_PAGES * 512) << 3), x);
		else
			LOAD(small + ((x >> 11) % (SMALL_PAGES * 512) << 3), value);
		if (!(n & 7))
			STORE(large + ((x >> 11) % (LARGE_BYTES / 8) << 3), x);
	}
	MARK();
	if (forever)
		goto again;
	puts("KNOWN DONE");
	fflush(stdout);
}

int main(int argc, char **argv)
{
	/* The kernel hands over options that it does not know. */
	int forever = !strcmp(argv[argc - 1], "forever");
	char *arguments[] = { "known", forever ? "forever" : NULL, NULL };

	if (getpid() != 1)
		run(forever);
	else if (!fork())
		execv("/known", arguments);
	for (;;)
		pause();
}
