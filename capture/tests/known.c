/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program whose accesses and memory events are known. It prints, in hexadecimal, what the test
 * cannot foresee: one "name value" a line.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "stream.h"

#define PAGES 8
#define PAGE 4096

static volatile uint64_t thread_words[1000];

static void *in_thread(void *unused)
{
    for (int i = 0; i < 1000; i++)
        thread_words[i] = i;
    return unused;
}

static char *checked(void *p)
{
    if (p == MAP_FAILED)
        exit(1);
    return p;
}

int main(int argc, char **argv)
{
    (void)argv;
    prctl(MARK_PRCTL, 42); /* fails, and is a mark */
    char *area = checked(mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    for (int i = 0; i < PAGES; i++) /* a store of 8 bytes at the start of each page, in order */
        *(volatile uint64_t *)(area + i * PAGE) = i;
    for (int i = PAGES - 1; i >= 0; i--) /* a load of 1 byte further on, in reverse */
        (void)*(volatile uint8_t *)(area + i * PAGE + 17);

    madvise(area, PAGE, MADV_DONTNEED);
    mprotect(area, PAGES * PAGE, PROT_READ);
    char *moved = checked(mremap(area, PAGES * PAGE, 4 * PAGES * PAGE, MREMAP_MAYMOVE));
    munmap(moved, 4 * PAGES * PAGE);
    munmap((void *)1, PAGE); /* fails: not an event */
    char *top = sbrk(3 * PAGE);

    printf("area %lx\nmoved %lx\nbreak %lx\nwords %lx\n", (long)area, (long)moved, (long)top,
           (long)thread_words);
    fflush(stdout);

    if (argc > 1) {
        pthread_t thread;
        pid_t child = fork();
        if (!child)
            _exit(0);
        waitpid(child, NULL, 0);
        if (system("true")) /* a clone that shares memory and yet is a process */
            return 1;
        if (pthread_create(&thread, NULL, in_thread, NULL) || pthread_join(thread, NULL))
            return 1;
    }
    return 7;
}
