/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What a text does to the match finder of xz -9 (BT4): counts for the generator `match_finder`.
 *
 *   match_trees FILE DICTIONARY START COUNT
 *
 * Goes down the trees as lzma_mf_bt4_find and bt_find_func of liblzma 5.4 do, with a dictionary of
 * 2^DICTIONARY bytes, and counts COUNT positions of FILE from START on. Every access to the hash
 * tables, the trees and the text goes to a first level of 64 pages and, if that lacks the page, to
 * a second one of 1536 (both LRU, fully associative).
 *
 * Prints the table `text` of that generator in a scenario, in thousandths (what its keys mean is in
 * the reference), and as comments what they are of and what comes out:
 *   nodes       nodes of the way down, a position
 *   none        positions without a node, of 1
 *   long        ways that end where NICE bytes agree, of 1
 *   again       first nodes as far back as that of the position before, of the positions
 *   chained     other nodes drawn anew that are on a way up the chain, as far as it is known, of 1
 *   bare        positions that meet such a node in an octave below the 14th, of those where no way up
 *               the chain has a node in that octave, of 1
 *   misses_X    pages that both levels lack, a position: X is hashes, text, trees or all
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NICE = 64, LONGEST = 273, DEPTH = 16 + NICE / 2, OCTAVES = 32 };
enum { HASHES_2 = 1 << 10, HASHES_3 = 1 << 16 };
/* The generator knows the nearest nodes of so many ways, and goes up the chain so far. */
enum { KNOWN = 1 << 16, NODES_KNOWN = 16, CHAIN = 16 };
enum array { HASHES, TEXT, TREES, ARRAYS };

static void *allocate(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (!memory) {
        perror("match_trees");
        exit(1);
    }
    return memory;
}

/* Pages in a ring by the time of their last use, the latest at the head. */
struct level {
    uint32_t *next, *previous, head, held, most;
    bool *has;
};

static struct level level(uint32_t pages, uint32_t most)
{
    struct level level = { allocate(pages, 4), allocate(pages, 4), 0, 0, most, allocate(pages, 1) };
    return level;
}

static void put_first(struct level *level, uint32_t page)
{
    if (level->held++) {
        uint32_t head = level->head, last = level->previous[head];
        level->next[page] = head, level->previous[page] = last;
        level->next[last] = level->previous[head] = page;
    } else {
        level->next[page] = level->previous[page] = page;
    }
    level->head = page, level->has[page] = true;
}

static void take_out(struct level *level, uint32_t page)
{
    uint32_t next = level->next[page], previous = level->previous[page];
    level->next[previous] = next, level->previous[next] = previous;
    if (level->head == page)
        level->head = next;
    level->has[page] = false, level->held--;
}

/* Uses a page. Whether it was there. */
static bool use(struct level *level, uint32_t page)
{
    bool had = level->has[page];
    if (had)
        take_out(level, page);
    else if (level->held == level->most)
        take_out(level, level->previous[level->head]);
    put_first(level, page);
    return had;
}

static struct level first, second;
static uint32_t base[ARRAYS];
static uint64_t misses[ARRAYS];
static bool counts;

static void refer(enum array array, uint64_t byte)
{
    uint32_t page = base[array] + (uint32_t)(byte >> 12);
    if (!use(&first, page) && !use(&second, page))
        misses[array] += counts;
}

struct way {
    uint32_t nodes, distance[DEPTH];
    /* Whether the first is as far back as the first of the position before. */
    bool again;
};

static bool holds(const struct way *way, uint32_t distance)
{
    for (uint32_t i = 0; i < way->nodes; i++)
        if (way->distance[i] == distance)
            return true;
    return false;
}

static int octave(uint32_t distance)
{
    return 31 - __builtin_clz(distance);
}

static uint64_t positions, nodes, none, agree, ends_long, firsts_again;
/* By octave; of the first index the second is for a first node that is met again. */
static uint64_t firsts[2][OCTAVES], again[2][OCTAVES], others[2][OCTAVES], kept[2][OCTAVES];
static uint64_t ended[OCTAVES], next[OCTAVES];
static uint64_t without, met_without;
static uint64_t drawn_others, has_octave[CHAIN], chained[CHAIN], passed, other_place;
static uint64_t first_at[OCTAVES], nearer[2][OCTAVES], new_at[2][OCTAVES];

/* The ways up the chain, as long as they lie within KNOWN positions, and how far back each is. */
struct chain {
    int length;
    uint32_t back[CHAIN];
    const struct way *way[CHAIN];
};

static struct chain climb(const struct way *known, uint64_t at)
{
    struct chain chain = { 0 };
    uint32_t back = known[at % KNOWN].distance[0];
    while (chain.length < CHAIN && back < KNOWN) {
        const struct way *way = &known[(at - back) % KNOWN];
        chain.back[chain.length] = back, chain.way[chain.length++] = way;
        if (!way->nodes)
            break;
        back += way->distance[0];
    }
    return chain;
}

/*
 * Counts at each way of the chain whether it has a node of the octave of `distance`, and whether it has
 * that one, until one has. Only nodes that the position before did not meet are looked at, as the
 * generator draws one of these.
 */
static void count_chained(const struct chain *chain, const struct way *before, uint32_t distance)
{
    bool found = false;
    for (int nth = 0; nth < chain->length && !found; nth++) {
        bool has = false;
        for (uint32_t i = 0; i < chain->way[nth]->nodes && i < NODES_KNOWN; i++) {
            uint32_t other = chain->back[nth] + chain->way[nth]->distance[i];
            if (octave(other) == octave(distance) && !holds(before, other))
                has = true, found |= other == distance;
        }
        has_octave[nth] += has, chained[nth] += found;
    }
}

/* Marks the octaves in which a way of the chain has a node that the position before did not meet. */
static void mark(const struct chain *chain, const struct way *before, bool *marked)
{
    for (int nth = 0; nth < chain->length; nth++)
        for (uint32_t i = 0; i < chain->way[nth]->nodes && i < NODES_KNOWN; i++) {
            uint32_t other = chain->back[nth] + chain->way[nth]->distance[i];
            if (!holds(before, other))
                marked[octave(other)] = true;
        }
}

/* `known`: the ways of the last KNOWN positions. */
static void count(struct way *known, uint64_t at, bool is_long)
{
    struct way *way = &known[at % KNOWN], *before = &known[(at - 1) % KNOWN];
    bool was_met = way->nodes && holds(before, way->distance[0]);
    way->again = was_met && way->distance[0] == before->distance[0];
    positions++, nodes += way->nodes, none += !way->nodes, ends_long += is_long;
    firsts_again += way->again;
    if (before->nodes) {
        int was = octave(before->distance[0]);
        firsts[before->again][was]++, again[before->again][was] += way->again;
        if (!way->again && before->nodes > 1)
            ended[was]++, next[was] += was_met;
    }
    if (!way->nodes)
        return;
    for (uint32_t i = 0; i < before->nodes; i++) {
        uint32_t other = before->distance[i];
        if (other > way->distance[0])
            others[way->again][octave(other)]++, kept[way->again][octave(other)] += holds(way, other);
    }
    int nearest = octave(way->distance[0]);
    first_at[nearest] += !was_met;
    for (int n = nearest + 1; n < OCTAVES; n++)
        nearer[way->again][n]++;
    bool on_chain[OCTAVES] = { false }, meets[OCTAVES] = { false };
    struct chain chain = climb(known, at);
    mark(&chain, before, on_chain);
    for (uint32_t i = 1; i < way->nodes; i++)
        meets[octave(way->distance[i])] |= !holds(before, way->distance[i]);
    for (int n = nearest + 1; n < 14; n++)
        without += !on_chain[n], met_without += !on_chain[n] && meets[n];
    for (uint32_t i = 1; i < way->nodes; i++) {
        bool had = holds(before, way->distance[i]);
        drawn_others += !had;
        if (!had)
            count_chained(&chain, before, way->distance[i]);
        if (octave(way->distance[i]) > nearest)
            new_at[way->again][octave(way->distance[i])] += !had;
    }
}

static void comment(const char *name, double of, double all)
{
    printf("# %s %.4f\n", name, all ? of / all : 0);
}

/* A share in thousandths: an element of a list, or all of a key. */
static void share(double of, double all)
{
    printf("%.0f", all ? 1000 * of / all : 0);
}

static void key(const char *name, double of, double all)
{
    printf("%s = ", name), share(of, all), putchar('\n');
}

/* Shares of `all[i]`, or of `sum` where there is no `all`. */
static void list(const char *name, const uint64_t *of, const uint64_t *all, double sum, int count)
{
    printf("%s = [", name);
    for (int i = 0; i < count; i++)
        share(of[i], all ? all[i] : sum), printf(i + 1 < count ? ", " : "");
    puts("]");
}

int main(int argc, char **argv)
{
    if (argc != 5 || atoi(argv[2]) < 12 || atoi(argv[2]) > 30) {
        fprintf(stderr, "usage: match_trees FILE DICTIONARY START COUNT, a dictionary of 2^12 to 2^30 bytes\n");
        return 2;
    }
    uint64_t start = strtoull(argv[3], NULL, 0), end = start + strtoull(argv[4], NULL, 0);
    uint32_t dictionary = 1u << atoi(argv[2]), cyclic = dictionary + 1;
    uint8_t *text = allocate(end + LONGEST, 1);
    FILE *file = fopen(argv[1], "rb");
    if (!file || fread(text, 1, end + LONGEST, file) != end + LONGEST) {
        fprintf(stderr, "match_trees: %s: needs START + COUNT + %d bytes\n", argv[1], LONGEST);
        return 2;
    }
    /* lz_encoder_prepare: half as many slots as bytes, rounded up to 2^n; half of that from 2^25. */
    uint32_t mask = (dictionary - 1) >> 1 | 0xffff;
    mask = mask > 1u << 24 ? mask >> 1 : mask;
    uint32_t *hashes = allocate(HASHES_2 + HASHES_3 + (uint64_t)mask + 1, 4), *son = allocate(cyclic, 8);
    uint64_t window = 2ull * dictionary;
    base[TREES] = (uint32_t)(window >> 12), base[HASHES] = base[TREES] + (uint32_t)(cyclic >> 9) + 1;
    uint32_t pages = base[HASHES] + ((HASHES_2 + HASHES_3 + mask) >> 10) + 2;
    first = level(pages, 64), second = level(pages, 1536);
    uint32_t crc[256];
    for (uint32_t i = 0; i < 256; i++) {
        crc[i] = i;
        for (int bit = 0; bit < 8; bit++)
            crc[i] = crc[i] >> 1 ^ (crc[i] & 1 ? 0xedb88320 : 0);
    }
    struct way *known = allocate(KNOWN, sizeof *known);
    uint64_t passes = 0;
    for (uint64_t at = 0; at < end; at++) {
        const uint8_t *now = text + at;
        struct way *way = &known[at % KNOWN];
        uint32_t position = (uint32_t)at + cyclic, place = (uint32_t)(at % cyclic);
        counts = at >= start, way->nodes = 0;
        refer(TEXT, at % window);
        uint32_t mixed = crc[now[0]] ^ now[1], more = mixed ^ (uint32_t)now[2] << 8;
        uint32_t slot[3] = { mixed & (HASHES_2 - 1), HASHES_2 + (more & (HASHES_3 - 1)),
                             HASHES_2 + HASHES_3 + ((more ^ crc[now[3]] << 5) & mask) };
        uint32_t found[3];
        for (int i = 0; i < 3; i++) {
            found[i] = hashes[slot[i]], hashes[slot[i]] = position;
            refer(HASHES, 4ull * slot[i]);
        }
        for (int i = 0; i < 2; i++)
            if (position - found[i] < cyclic)
                refer(TEXT, (at - (position - found[i])) % window);
        uint32_t *less = son + 2ull * place, *greater = less + 1, node = found[2];
        uint32_t length_less = 0, length_greater = 0;
        bool is_long = false;
        refer(TREES, 8ull * place);
        for (;;) {
            uint32_t distance = position - node;
            if (way->nodes == DEPTH || distance >= cyclic) {
                *less = *greater = 0;
                break;
            }
            uint64_t other = place >= distance ? place - distance : place + cyclic - distance;
            uint32_t *pair = son + 2 * other, length = length_less < length_greater ? length_less : length_greater;
            const uint8_t *there = now - distance;
            way->distance[way->nodes++] = distance;
            refer(TEXT, (at - distance + length) % window);
            refer(TREES, 8 * other);
            if (there[length] == now[length]) {
                agree += counts;
                while (++length < NICE && there[length] == now[length])
                    ;
                if (length == NICE) {
                    *less = pair[0], *greater = pair[1], is_long = true;
                    break;
                }
            }
            if (there[length] < now[length])
                *less = node, less = pair + 1, node = *less, length_less = length;
            else
                *greater = node, greater = pair, node = *greater, length_greater = length;
        }
        if (counts) {
            count(known, at, is_long);
            passed += passes > 0;
            other_place += found[0] != found[1] && position - found[1] < cyclic;
        }
        if (passes) {
            passes--;
        } else if (is_long) {
            const uint8_t *match = now - way->distance[way->nodes - 1];
            uint64_t length = NICE;
            while (length < LONGEST && match[length] == now[length])
                length++;
            passes = length - 1;
        }
    }
    uint64_t drawn = 0, found = 0;
    int octaves = octave(dictionary - 1) + 1;
    for (int n = 0; n < OCTAVES; n++)
        drawn += first_at[n];
    for (int nth = 0; nth < CHAIN; nth++)
        found += chained[nth];
    comment("nodes", nodes, positions), comment("none", none, positions);
    comment("long", ends_long, positions);
    comment("again", firsts_again, positions);
    comment("chained", found, drawn_others), comment("bare", met_without, without);
    comment("misses_hashes", misses[HASHES], positions), comment("misses_text", misses[TEXT], positions);
    comment("misses_trees", misses[TREES], positions);
    comment("misses_all", misses[HASHES] + misses[TEXT] + misses[TREES], positions);
    list("again", again[0], firsts[0], 0, octaves), list("again_after", again[1], firsts[1], 0, octaves);
    list("next", next, ended, 0, octaves);
    list("kept", kept[0], others[0], 0, octaves), list("kept_again", kept[1], others[1], 0, octaves);
    list("first", first_at, NULL, drawn + none, octaves);
    list("others", new_at[0], nearer[0], 0, octaves);
    list("others_again", new_at[1], nearer[1], 0, octaves);
    list("chain", chained, has_octave, 0, CHAIN);
    key("agree", agree, nodes), key("passed", passed, positions), key("other_place", other_place, positions);
    return 0;
}
