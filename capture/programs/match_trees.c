/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What a text does to the match finder of xz -9 (BT4): counts for the generator `match_finder`.
 *
 *   match_trees FILE DICTIONARY START COUNT
 *
 * Goes down the trees as lzma_mf_bt4_find and bt_find_func of liblzma 5.4 do, with a dictionary of
 * 2^DICTIONARY bytes, and counts COUNT positions of FILE from START on. Every access to the hash
 * tables, the trees and the text goes to a first level of 64 pages and, if that lacks the page, to
 * a second one of 1536 (both LRU, fully associative). Prints a count a line, name and value:
 *   nodes       nodes of the way down, a position
 *   none        positions without a node, of 1
 *   agree       nodes at which the text agrees where it is compared first, of 1
 *   long        ways that end where NICE bytes agree, of 1
 *   again       first nodes as far back as that of the position before, of the positions
 *   again_after the same, of positions whose position before was so; again_else: of the others
 *   kept        other nodes as far back as one of the position before, if the first is drawn anew;
 *   kept_again  if it is not
 *   first_N     first nodes that are drawn anew 2^N to 2^(N+1) bytes back, of 1
 *   new_N       positions' other nodes that are drawn anew at this distance, of the positions whose
 *               first node is nearer than 2^N and drawn anew; new_again_N: and is not
 *   on_its_way  other nodes drawn anew that the first node met when it was the position, of 1
 *   passed      positions within a match of NICE bytes or more, of 1 (lzma_mf_skip)
 *   other_place positions where the hash of three bytes finds another place than that of two
 *   misses_X    pages that both levels lack, a position: X is hashes, text, trees or all
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NICE = 64, LONGEST = 273, DEPTH = 16 + NICE / 2, OCTAVES = 32 };
enum { HASHES_2 = 1 << 10, HASHES_3 = 1 << 16, KNOWN = 1 << 20 };
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
    /* Whether the first is as far back as that of the position before. */
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

static uint64_t positions, nodes, none, agree, ends_long, again[2][2], others[2], kept[2];
static uint64_t drawn_others, on_its_way, passed, other_place;
static uint64_t first_at[OCTAVES], nearer[2][OCTAVES], new_at[2][OCTAVES];

/* `known`: the ways of the last KNOWN positions. */
static void count(struct way *known, uint64_t at, bool is_long)
{
    struct way *way = &known[at % KNOWN], *before = &known[(at - 1) % KNOWN];
    way->again = way->nodes && holds(before, way->distance[0]);
    positions++, nodes += way->nodes, none += !way->nodes, ends_long += is_long;
    again[before->again][way->again]++;
    if (!way->nodes)
        return;
    const struct way *met = way->distance[0] < KNOWN ? &known[(at - way->distance[0]) % KNOWN] : NULL;
    int nearest = octave(way->distance[0]);
    first_at[nearest] += !way->again;
    for (int n = nearest + 1; n < OCTAVES; n++)
        nearer[way->again][n]++;
    for (uint32_t i = 1; i < way->nodes; i++) {
        bool had = holds(before, way->distance[i]);
        others[way->again]++, kept[way->again] += had;
        drawn_others += !had, on_its_way += !had && met && holds(met, way->distance[i] - way->distance[0]);
        if (octave(way->distance[i]) > nearest)
            new_at[way->again][octave(way->distance[i])] += !had;
    }
}

static void print(const char *name, double of, double all)
{
    printf("%s %.4f\n", name, all ? of / all : 0);
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
    print("nodes", nodes, positions), print("none", none, positions);
    print("agree", agree, nodes), print("long", ends_long, positions);
    print("again", again[0][1] + again[1][1], positions);
    print("again_after", again[1][1], again[1][0] + again[1][1]);
    print("again_else", again[0][1], again[0][0] + again[0][1]);
    print("kept", kept[0], others[0]), print("kept_again", kept[1], others[1]);
    print("on_its_way", on_its_way, drawn_others);
    print("passed", passed, positions), print("other_place", other_place, positions);
    uint64_t drawn = 0;
    for (int n = 0; n < OCTAVES; n++)
        drawn += first_at[n];
    char name[32];
    for (int n = 0; n < OCTAVES; n++) {
        snprintf(name, sizeof name, "first_%d", n), print(name, first_at[n], drawn);
        snprintf(name, sizeof name, "new_%d", n), print(name, new_at[0][n], nearer[0][n]);
        snprintf(name, sizeof name, "new_again_%d", n), print(name, new_at[1][n], nearer[1][n]);
    }
    print("misses_hashes", misses[HASHES], positions), print("misses_text", misses[TEXT], positions);
    print("misses_trees", misses[TREES], positions);
    print("misses_all", misses[HASHES] + misses[TEXT] + misses[TREES], positions);
    return 0;
}
