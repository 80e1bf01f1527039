// SPDX-License-Identifier: GPL-2.0
/*
 * corun MIB SEED [READY-FILE]
 *
 * A co-runner that allocates and frees physical memory without end: a stand-in
 * for stress-ng --vm/--fork/--hdd with a documented sequence (see
 * linux/data/README.md), so that a simulator can replay it. One round is
 *
 *   anon(n/2 + random % (n/2)); file(n/4); fork { anon(n/4) }
 *
 * with n = MIB * 256 pages and one xorshift64 stream seeded from SEED.
 * Creates READY-FILE after its first round. Runs until killed.
 */
#include "common.h"
#include <sys/wait.h>

static uint64_t state;

/* Touch every page in order, then n single-page drops and n/2 refaults. */
static void anon(size_t n)
{
	char *p = map_aligned(n << PAGE_SHIFT);
	size_t i;

	for (i = 0; i < n; i++)
		p[i << PAGE_SHIFT] = 1;
	for (i = 0; i < n; i++) {
		madvise(p + (next_random(&state) % n << PAGE_SHIFT), PAGE, MADV_DONTNEED);
		if (i & 1)
			p[next_random(&state) % n << PAGE_SHIFT] = 2;
	}
	munmap(p, n << PAGE_SHIFT);
}

/* Write n pages of a tmpfs file in order, punch n/2 random holes, delete it. */
static void file(size_t n)
{
	static char block[PAGE];
	char name[64];
	size_t i;
	int fd;

	snprintf(name, sizeof(name), "/tmp/corun.%d", getpid());
	fd = open(name, O_CREAT | O_RDWR | O_TRUNC, 0600);
	if (fd < 0)
		die(name);
	memset(block, 1, PAGE);
	for (i = 0; i < n; i++)
		if (write(fd, block, PAGE) != (ssize_t)PAGE)
			break;
	for (i = 0; i < n / 2; i++)
		fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
			  (off_t)(next_random(&state) % n) << PAGE_SHIFT, PAGE);
	close(fd);
	unlink(name);
}

static void child(size_t n)
{
	pid_t pid = fork();

	if (pid < 0)
		return;
	if (!pid) {
		anon(n);
		_exit(0);
	}
	waitpid(pid, NULL, 0);
}

int main(int argc, char **argv)
{
	size_t n;
	bool ready = false;

	if (argc < 3) {
		fprintf(stderr, "usage: corun MIB SEED [READY-FILE]\n");
		return 2;
	}
	n = strtoul(argv[1], NULL, 0) << 8;
	state = strtoull(argv[2], NULL, 0) * 0x9E3779B97F4A7C15ULL + 1;
	for (;;) {
		anon(n / 2 + next_random(&state) % (n / 2));
		file(n / 4);
		child(n / 4);
		if (!ready && argc > 3) {
			close(open(argv[3], O_CREAT | O_WRONLY, 0600));
			ready = true;
		}
	}
}
