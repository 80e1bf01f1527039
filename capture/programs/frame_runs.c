/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Which frames a program and its page tables get on this machine, as used as it is.
 *
 *   frame_runs MIB...          (root)
 *
 * For each MIB in turn, a process of its own maps so much anonymous memory, without huge pages,
 * writes every page once, in order, and looks at the frames: of its pages in /proc/self/pagemap;
 * of page tables in /proc/kpageflags, where those count that were none before it began. Tables
 * that other processes make meanwhile are among them: leave the machine alone.
 *
 * Prints a line for each:
 *   pages, page_runs      pages whose frame follows that of the page before are one run
 *   tables, table_runs    frames of page tables that are neighbours are one run, whatever the order
 *   shares                of 1000 pages, how many lie in runs of 1, 2 to 3, 4 to 7, ... pages
 */
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PGTABLE = 26, NOPAGE = 20, AT_ONCE = 1 << 16, POWERS = 20, HUGE_SHIFT = 21 };
static const uint64_t FRAME = (1ull << 55) - 1, PRESENT = 1ull << 63;

static void die(const char *what)
{
    perror(what);
    exit(1);
}

/* Words of a file from `first` on: how many there were. */
static size_t read_words(int file, uint64_t first, uint64_t *words, size_t count)
{
    ssize_t got = pread(file, words, count * sizeof(*words), (off_t)(first * sizeof(*words)));

    if (got < 0)
        die("frame_runs: read");
    return (size_t)got / sizeof(*words);
}

/* A byte for each frame: whether it is a page table's. */
static uint8_t *tables(uint64_t *frames)
{
    int file = open("/proc/kpageflags", O_RDONLY);
    uint64_t *words = malloc(AT_ONCE * sizeof(*words));
    uint8_t *is_table = NULL;
    size_t got;

    if (file < 0)
        die("frame_runs: /proc/kpageflags");
    for (*frames = 0; (got = read_words(file, *frames, words, AT_ONCE)) > 0; *frames += got) {
        is_table = realloc(is_table, *frames + got);
        if (!words || !is_table)
            die("frame_runs");
        for (size_t i = 0; i < got; i++)
            is_table[*frames + i] = words[i] >> PGTABLE & 1;
    }
    close(file);
    free(words);
    return is_table;
}

static void measure(size_t mib)
{
    size_t pages = mib << 8, runs = 0, length = 0, shares[POWERS] = { 0 };
    uint64_t *frame = malloc(pages * sizeof(*frame)), before_frames, after_frames;
    size_t span = (pages * PAGE) + (1ul << HUGE_SHIFT), count = 0, table_runs = 0;
    int file = open("/proc/self/pagemap", O_RDONLY);
    bool in_run = false;

    char *p = mmap(NULL, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED || !frame || file < 0)
        die("frame_runs");
    p = (char *)(((uintptr_t)p + (1ul << HUGE_SHIFT) - 1) >> HUGE_SHIFT << HUGE_SHIFT);
    madvise(p, pages * PAGE, MADV_NOHUGEPAGE);
    memset(frame, 1, pages * sizeof(*frame));
    uint8_t *before = tables(&before_frames);
    for (size_t i = 0; i < pages; i++)
        p[i * PAGE] = 1;
    uint8_t *after = tables(&after_frames);
    if (read_words(file, (uintptr_t)p / PAGE, frame, pages) != pages || !(frame[0] & FRAME)) {
        fprintf(stderr, "frame_runs: the frames are hidden: run it as root\n");
        exit(1);
    }
    for (size_t i = 0; i < pages; i++) {
        bool next = i + 1 < pages && frame[i + 1] & PRESENT && (frame[i + 1] & FRAME) == (frame[i] & FRAME) + 1;
        length++;
        if (next)
            continue;
        int power = 63 - __builtin_clzl(length);
        shares[power < POWERS ? power : POWERS - 1] += length;
        runs++;
        length = 0;
    }
    for (uint64_t i = 0; i < after_frames; i++) {
        bool new = after[i] && !(i < before_frames && before[i]);
        count += new;
        table_runs += new && !in_run;
        in_run = new;
    }
    printf("%zu MiB: pages %zu, page_runs %zu, tables %zu, table_runs %zu, shares", mib, pages, runs, count, table_runs);
    for (int i = 0; i < POWERS; i++)
        printf(" %.0f", 1000.0 * (double)shares[i] / (double)pages);
    printf("\n");
    exit(0);
}

int main(int count, char **arguments)
{
    if (count < 2) {
        fprintf(stderr, "usage: frame_runs MIB...\n");
        return 2;
    }
    for (int i = 1; i < count; i++) {
        int status;
        pid_t child = fork();

        if (child < 0)
            die("frame_runs: fork");
        if (!child)
            measure(strtoul(arguments[i], NULL, 10));
        if (waitpid(child, &status, 0) < 0 || status)
            return 1;
    }
    return 0;
}
