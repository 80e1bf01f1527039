// SPDX-License-Identifier: GPL-2.0
/*
 * grower STRIDE TAG
 *
 * A child touches one page in every STRIDE, ascending, until the OOM killer ends
 * it, of the machine or of its cgroup. Prints how many pages it had by then: as
 * much as could be allocated.
 */
#include "common.h"
#include <signal.h>
#include <sys/wait.h>

#define BYTES	(1UL << 40)

static void grow(volatile size_t *touched, size_t stride)
{
	char *p = map_aligned(BYTES);
	size_t i;

	if (write_file("/proc/self/oom_score_adj", "1000\n"))
		die("oom_score_adj");
	for (i = 0; i < BYTES >> PAGE_SHIFT; i += stride) {
		p[i << PAGE_SHIFT] = 1;
		++*touched;
	}
	_exit(0);
}

int main(int argc, char **argv)
{
	size_t *touched, stride;
	int status;
	pid_t pid;

	if (argc != 3) {
		fprintf(stderr, "usage: grower STRIDE TAG\n");
		return 2;
	}
	stride = strtoul(argv[1], NULL, 0);
	touched = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (touched == MAP_FAILED)
		die("mmap");
	pid = fork();
	if (!pid)
		grow(touched, stride);
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		die("child");
	printf("GROWN {\"tag\":\"%s\",\"pages\":%zu,\"killed\":%d}\n", argv[2], *touched,
	       WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	return 0;
}
