// SPDX-License-Identifier: GPL-2.0
/*
 * opbench MIB ROUNDS TAG [BIG]
 *
 * One thread takes MIB MiB of anonymous memory through its life, ROUNDS times:
 * first touch, mprotect, fork, copy on write in the child, mremap, DONTNEED,
 * munmap, exit of a process, the same with one page of eight touched, and at last
 * copy on write in a parent that rewrites its memory in random order. Each step
 * stands between two marks, no-ops that harness/insncount.c knows, which counts
 * the instructions of the whole machine between them. Prints how many pages each
 * step has been through. BIG is how many times MIB the big steps have (12); 0:
 * there are none.
 */
#include "common.h"
#include "marks.h"
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

enum step {
	TOUCH, MPROTECT, FORK, COW, MREMAP, DONTNEED, MUNMAP, EXIT, SPARSE_TOUCH, SPARSE_DROP,
	REWRITE, BIG_TOUCH, BIG_DROP, STEPS
};

static const char * const name[STEPS] = {
	"touch", "mprotect", "fork", "cow", "mremap", "dontneed", "munmap", "exit",
	"sparse_touch", "sparse_drop", "rewrite", "big_touch", "big_drop",
};

static size_t pages, big = 12;

static void touch_pages(char *p, size_t n, size_t every)
{
	size_t i;

	for (i = 0; i < n; i += every)
		p[i << PAGE_SHIFT] = 1;
}

static void touch(char *p, size_t every)
{
	touch_pages(p, pages, every);
}

/* The child shares all pages, then has copies of all. */
static void forked(char *p)
{
	int go[2], status;
	char byte;
	pid_t pid;

	if (pipe(go))
		die("pipe");
	BEGIN(FORK);
	pid = fork();
	if (!pid) {
		if (read(go[0], &byte, 1) != 1)
			_exit(1);
		BEGIN(COW);
		touch(p, 1);
		END(COW);
		_exit(0);
	}
	END(FORK);
	if (pid < 0)
		die("fork");
	if (write(go[1], "", 1) != 1 || waitpid(pid, &status, 0) != pid || status)
		die("child");
	close(go[0]);
	close(go[1]);
}

/* The parent has copies of all pages, as a database has whose child saves it. */
static void rewritten(size_t bytes)
{
	uint64_t seed = 88172645463325252ULL;
	uint32_t *order = malloc(pages * sizeof(*order));
	char *p = map_aligned(bytes);
	size_t i;
	pid_t pid;

	if (!order)
		die("malloc");
	shuffled(order, pages, &seed);
	touch(p, 1);
	pid = fork();
	if (!pid) {
		pause();
		_exit(0);
	}
	if (pid < 0)
		die("fork");
	/* The child runs now, not beside what is counted. */
	usleep(10000);
	BEGIN(REWRITE);
	for (i = 0; i < pages; i++)
		p[(size_t)order[i] << PAGE_SHIFT] = 2;
	END(REWRITE);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	free(order);
	munmap(p, bytes);
}

/* A process with memory of its own ends. */
static void ended(size_t bytes)
{
	pid_t pid = fork();
	int status;

	if (!pid) {
		touch(map_aligned(bytes), 1);
		BEGIN(EXIT);
		_exit(0);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
		die("child");
	END(EXIT);
}

static void life(void)
{
	size_t bytes = pages << PAGE_SHIFT;
	char *p = map_aligned(bytes), *q = map_aligned(bytes);

	BEGIN(TOUCH);
	touch(p, 1);
	END(TOUCH);
	BEGIN(MPROTECT);
	if (mprotect(p, bytes, PROT_READ) || mprotect(p, bytes, PROT_READ | PROT_WRITE))
		die("mprotect");
	END(MPROTECT);
	forked(p);
	/* The shortest step: it begins right after a tick, for one that switches to another thread is 3 % of it. */
	usleep(10000);
	BEGIN(MREMAP);
	/* Off by a page, so that no page table is moved as a whole. */
	if (mremap(p, bytes - PAGE, bytes - PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, q + PAGE) != q + PAGE)
		die("mremap");
	END(MREMAP);
	munmap(p, bytes);
	munmap(q, bytes);

	p = map_aligned(bytes);
	touch(p, 1);
	BEGIN(DONTNEED);
	madvise(p, bytes, MADV_DONTNEED);
	END(DONTNEED);
	touch(p, 1);
	BEGIN(MUNMAP);
	munmap(p, bytes);
	END(MUNMAP);
	ended(bytes);

	p = map_aligned(bytes);
	BEGIN(SPARSE_TOUCH);
	touch(p, GROUP_PAGES);
	END(SPARSE_TOUCH);
	BEGIN(SPARSE_DROP);
	munmap(p, bytes);
	END(SPARSE_DROP);

	rewritten(bytes);
	if (!big)
		return;
	/* More than the per-CPU lists of the page allocator keep. */
	p = map_aligned(big * bytes);
	BEGIN(BIG_TOUCH);
	touch_pages(p, big * pages, 1);
	END(BIG_TOUCH);
	BEGIN(BIG_DROP);
	munmap(p, big * bytes);
	END(BIG_DROP);
}

int main(int argc, char **argv)
{
	size_t rounds, i;

	/* A child that has just been made does not preempt its parent then, so that what it does first is no part of the fork. */
	if (sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){ }))
		die("sched_setscheduler");
	if (argc != 4 && argc != 5) {
		fprintf(stderr, "usage: opbench MIB ROUNDS TAG [BIG]\n");
		return 2;
	}
	pages = strtoul(argv[1], NULL, 0) << 8;
	rounds = strtoul(argv[2], NULL, 0);
	if (argc == 5)
		big = strtoul(argv[4], NULL, 0);
	for (i = 0; i < rounds; i++)
		life();
	REPORT();
	printf("STEPS {\"tag\":\"%s\",\"pages\":{", argv[3]);
	for (i = 0; i < (big ? STEPS : BIG_TOUCH); i++) {
		size_t n = pages * rounds;

		if (i == SPARSE_TOUCH || i == SPARSE_DROP)
			n /= GROUP_PAGES;
		if (i == BIG_TOUCH || i == BIG_DROP)
			n *= big;
		printf("%s\"%s\":%zu", i ? "," : "", name[i], n);
	}
	printf("}}\n");
	return 0;
}
