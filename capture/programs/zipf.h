/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What the clients here have in common: random numbers, keys with a Zipf distribution, and numbers
 * on the command line. PROGRAM is the name that messages begin with.
 */
#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- Random numbers -------------------------------------------------------------------- */

static uint64_t random_state = 1;

/* SplitMix64 (Steele, Lea, Flood, OOPSLA 2014). */
static uint64_t next_random(void)
{
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static double next_unit(void)
{
    return (next_random() >> 11) * 0x1p-53;
}

/* The approximate inverse of Gray, Sundaresan, Englert, Baclawski and Weinberger, "Quickly
 * generating billion-record synthetic databases", SIGMOD 1994, which YCSB has as well. */
struct zipf {
    uint64_t n;
    double theta, zeta_n, alpha, eta;
};

static struct zipf zipf_new(uint64_t n, double theta)
{
    struct zipf z = { .n = n, .theta = theta, .alpha = 1 / (1 - theta) };

    for (uint64_t i = 1; i <= n; i++)
        z.zeta_n += pow(i, -theta);
    z.eta = (1 - pow(2.0 / n, 1 - theta)) / (1 - (1 + pow(0.5, theta)) / z.zeta_n);
    return z;
}

static uint64_t zipf_rank(const struct zipf *z)
{
    double u = next_unit(), uz = u * z->zeta_n;
    uint64_t rank;

    if (uz < 1)
        return 0;
    if (uz < 1 + pow(0.5, z->theta))
        return 1;
    rank = z->n * pow(z->eta * u - z->eta + 1, z->alpha);
    return rank < z->n ? rank : z->n - 1;
}

/* A prime above any number of keys here: multiplying by it permutes the ranks. */
static uint64_t scatter(uint64_t rank, uint64_t keys)
{
    return rank * 2654435761u % keys;
}

/* ---- The command line ------------------------------------------------------------------ */

static uint64_t number(const char *text, uint64_t min, uint64_t max)
{
    char *end;
    unsigned long value = strtoul(text, &end, 10);

    if (*end || end == text || *text == '-' || value < min || value > max) {
        fprintf(stderr, PROGRAM ": '%s' is not a number from %" PRIu64 " to %" PRIu64 "\n", text,
                min, max);
        exit(2);
    }
    return value;
}

static double exponent(const char *text)
{
    char *end;
    double value = strtod(text, &end);

    if (*end || end == text || !(value > 0 && value < 1)) {
        fprintf(stderr, PROGRAM ": the exponent '%s' is not between 0 and 1\n", text);
        exit(2);
    }
    return value;
}
