/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Random accesses to memory, to time and to capture: what hides page walks, and what does not.
 *
 *   random [-m MIB] [-n MILLIONS] [-r SEED] updates|chase
 *
 * updates: words at random places are changed, as GUPS does; none needs the one before, so a
 *          processor has several misses and walks under way at a time.
 * chase:   each load gives the place of the next one, a random cycle over all lines; nothing is
 *          under way beside it.
 *
 * MIB of memory (2048), MILLIONS of accesses (40 updates, 20 loads), one thread; the same seed
 * gives the same places.
 */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE_WORDS = 8 };

static uint64_t random_state;

/* xorshift64* (Vigna, 2016): a few instructions, so that the accesses are what takes the time. */
static inline uint64_t random_number(void)
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * UINT64_C(0x2545f4914f6cdd1d);
}

/* Below n, which is less than 2^32. */
static inline uint64_t random_below(uint64_t n)
{
    return (random_number() >> 32) * n >> 32;
}

static uint64_t updates(uint64_t *memory, uint64_t lines, uint64_t count)
{
    uint64_t sum = 0;

    for (uint64_t i = 0; i < count; i++)
        sum += ++memory[random_below(lines) * LINE_WORDS];
    return sum;
}

/* One cycle through all lines (Sattolo, 1986): the first word of a line is the next line. */
static void link_lines(uint64_t *memory, uint64_t lines)
{
    for (uint64_t i = 0; i < lines; i++)
        memory[i * LINE_WORDS] = i;
    for (uint64_t i = lines - 1; i > 0; i--) {
        uint64_t j = random_below(i), next = memory[i * LINE_WORDS];

        memory[i * LINE_WORDS] = memory[j * LINE_WORDS];
        memory[j * LINE_WORDS] = next;
    }
}

static uint64_t chase(const uint64_t *memory, uint64_t count)
{
    uint64_t line = 0;

    for (uint64_t i = 0; i < count; i++)
        line = memory[line * LINE_WORDS];
    return line;
}

static int usage(void)
{
    fprintf(stderr, "usage: random [-m MIB] [-n MILLIONS] [-r SEED] updates|chase\n");
    return 2;
}

int main(int argc, char **argv)
{
    uint64_t mib = 2048, millions = 0, seed = 1, result;
    int option;

    while ((option = getopt(argc, argv, "m:n:r:")) != -1) {
        uint64_t *value = option == 'm' ? &mib : option == 'n' ? &millions : option == 'r' ? &seed : NULL;
        char *end;

        if (!value)
            return usage();
        *value = strtoull(optarg, &end, 10);
        if (*end || !*value)
            return usage();
    }
    if (optind + 1 != argc || mib > UINT64_C(1) << 17)
        return usage();

    int chases = !strcmp(argv[optind], "chase");
    if (!chases && strcmp(argv[optind], "updates"))
        return usage();
    if (!millions)
        millions = chases ? 20 : 40;

    uint64_t bytes = mib << 20, lines = bytes / (LINE_WORDS * sizeof(uint64_t));
    uint64_t *memory = malloc(bytes);

    if (!memory) {
        fprintf(stderr, "random: not enough memory for %" PRIu64 " MiB\n", mib);
        return 1;
    }
    random_state = seed;
    if (chases) {
        link_lines(memory, lines);
        result = chase(memory, millions * 1000000);
    } else {
        memset(memory, 0, bytes);
        result = updates(memory, lines, millions * 1000000);
    }
    /* The memory stays until the end, so that who looks then sees in which pages it lies. */
    printf("%" PRIu64 "\n", result);
    return 0;
}
