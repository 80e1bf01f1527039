/* SPDX-License-Identifier: GPL-2.0 */
/* Small helpers shared by the test programs that run inside the guest. */
#ifndef NESTWALK_GUEST_COMMON_H
#define NESTWALK_GUEST_COMMON_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE_SHIFT	12
#define PAGE		(1UL << PAGE_SHIFT)
#define GROUP_PAGES	8UL
#define GROUP		(GROUP_PAGES * PAGE)
#define HUGE		(2UL << 20)

static inline void die(const char *what)
{
	perror(what);
	exit(1);
}

/*
 * fork(), where the parent goes on when the child has said stay(): 0 in the child, which gets in
 * @tell what to say that with; -1 in the parent if the child has ended before.
 */
static inline pid_t fork_and_await(int *tell)
{
	int ready[2];
	bool said;
	pid_t pid;
	char c;

	if (pipe(ready))
		die("pipe");
	pid = fork();
	if (pid < 0)
		die("fork");
	close(ready[pid != 0]);
	if (!pid) {
		*tell = ready[1];
		return 0;
	}
	said = read(ready[0], &c, 1) == 1;
	close(ready[0]);
	return said ? pid : -1;
}

/* The child has done what it was started for, and keeps what it holds until a signal ends it. */
static inline __attribute__((noreturn)) void stay(int tell)
{
	if (write(tell, "", 1) != 1)
		die("write");
	for (;;)
		pause();
}

/* xorshift64: the simulator replays the same sequence from the same seed. */
static inline uint64_t next_random(uint64_t *state)
{
	uint64_t s = *state;

	s ^= s << 13;
	s ^= s >> 7;
	s ^= s << 17;
	return *state = s;
}

/* Fisher-Yates: the numbers below count in an order that depends on the seed only. */
static inline void shuffled(uint32_t *order, size_t count, uint64_t *seed)
{
	size_t i;

	for (i = 0; i < count; i++)
		order[i] = i;
	for (i = count - 1; i; i--) {
		size_t j = next_random(seed) % (i + 1);
		uint32_t t = order[i];

		order[i] = order[j];
		order[j] = t;
	}
}

/*
 * Anonymous memory that starts on a 2 MiB boundary, of 4 KiB pages. With NESTWALK_FOLIOS in the
 * environment the kernel may use the larger folios that it is set to use.
 */
static inline char *map_aligned(size_t bytes)
{
	char *p = mmap(NULL, bytes + HUGE, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	char *a;

	if (p == MAP_FAILED)
		die("mmap");
	a = (char *)(((uintptr_t)p + HUGE - 1) & ~(HUGE - 1));
	if (a != p && munmap(p, a - p))
		die("munmap");
	if (munmap(a + bytes, p + HUGE - a))
		die("munmap");
	if (!getenv("NESTWALK_FOLIOS") && madvise(a, bytes, MADV_NOHUGEPAGE) && errno != EINVAL)
		die("madvise(MADV_NOHUGEPAGE)");
	return a;
}

/* Guest frame of each page, 0 where not present. Needs CAP_SYS_ADMIN. */
static inline void read_frames(const void *start, size_t pages, uint64_t *frame)
{
	size_t done = 0, want = pages * sizeof(*frame), i;
	off_t at = ((uintptr_t)start >> PAGE_SHIFT) * sizeof(*frame);
	int fd = open("/proc/self/pagemap", O_RDONLY);

	if (fd < 0)
		die("/proc/self/pagemap");
	while (done < want) {
		ssize_t r = pread(fd, (char *)frame + done, want - done, at + done);

		if (r <= 0)
			die("pread pagemap");
		done += r;
	}
	close(fd);
	for (i = 0; i < pages; i++) {
		uint64_t e = frame[i];

		frame[i] = e >> 63 ? e & ((1ULL << 55) - 1) : 0;
	}
}

/*
 * Host page-table fragmentation: groups[k] counts the groups of 8 neighbouring
 * present pages whose frames fall into k distinct lines of host PTEs.
 */
struct fragmentation {
	size_t groups[GROUP_PAGES + 1];
	size_t complete, incomplete;
};

static inline void fragmentation_of(const uint64_t *frame, size_t pages,
				    struct fragmentation *f)
{
	size_t g, i, j;

	memset(f, 0, sizeof(*f));
	for (g = 0; g + GROUP_PAGES <= pages; g += GROUP_PAGES) {
		uint64_t line[GROUP_PAGES];
		size_t lines = 0;

		for (i = 0; i < GROUP_PAGES && frame[g + i]; i++) {
			for (j = 0; j < lines; j++)
				if (line[j] == frame[g + i] >> 3)
					break;
			if (j == lines)
				line[lines++] = frame[g + i] >> 3;
		}
		if (i < GROUP_PAGES) {
			f->incomplete++;
			continue;
		}
		f->groups[lines]++;
		f->complete++;
	}
}

static inline double fragmentation_mean(const struct fragmentation *f)
{
	size_t k, sum = 0;

	for (k = 1; k <= GROUP_PAGES; k++)
		sum += k * f->groups[k];
	return f->complete ? (double)sum / f->complete : 0.0;
}

static inline long read_counter(const char *file, const char *key)
{
	char line[256];
	size_t len = strlen(key);
	long value = -1;
	FILE *in = fopen(file, "r");

	if (!in)
		return -1;
	while (fgets(line, sizeof(line), in))
		if (!strncmp(line, key, len) && (line[len] == ' ' || line[len] == ':')) {
			value = strtol(line + len + 1, NULL, 10);
			break;
		}
	fclose(in);
	return value;
}

static inline int write_file(const char *file, const char *fmt, ...)
{
	char text[256];
	va_list ap;
	int fd, len, ret;

	va_start(ap, fmt);
	len = vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	fd = open(file, O_WRONLY);
	if (fd < 0)
		return -1;
	ret = write(fd, text, len) == len ? 0 : -1;
	close(fd);
	return ret;
}

#endif
