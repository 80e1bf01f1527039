/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Breadth-first search over a Kronecker (R-MAT) graph: a graph-analytics program to capture.
 *
 *   bfs [-s SCALE] [-d DEGREE] [-t TRIALS] [-r SEED]
 *
 * The graph has 2^SCALE vertices and 2^SCALE * DEGREE undirected edges, drawn with the Graph500
 * probabilities (a = 0.57, b = c = 0.19) and with shuffled vertex names. It is built as a CSR with
 * sorted adjacency lists and no duplicates, then searched from TRIALS random vertices with the
 * direction-optimising algorithm (Beamer, Asanovic, Patterson, SC 2012). Each search checks
 * itself. One thread; the same seed gives the same graph, sources and output.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef uint32_t vertex;
#define NOBODY UINT32_MAX

/* ---- Helpers --------------------------------------------------------------------------- */

/* Memory that nothing has touched yet: its pages are faulted in as the algorithm reaches them. */
static void *allocate(uint64_t n, size_t size)
{
    void *p = malloc(n * size);

    if (!p) {
        fprintf(stderr, "bfs: not enough memory for %" PRIu64 " MiB\n", n * size >> 20);
        exit(1);
    }
    return p;
}

static uint64_t random_state;

/* SplitMix64 (Steele, Lea, Flood, OOPSLA 2014). */
static uint64_t next_random(void)
{
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static vertex random_below(vertex n)
{
    return (next_random() >> 32) * n >> 32;
}

/* ---- The graph ------------------------------------------------------------------------- */

struct edge {
    vertex from, to;
};

struct graph {
    vertex vertices;
    uint64_t *first;    /* of each vertex, and one past the last: where its neighbours begin */
    vertex *neighbours;
};

static uint64_t degree(const struct graph *g, vertex v)
{
    return g->first[v + 1] - g->first[v];
}

/* Each level of the recursion picks a quarter of the adjacency matrix. */
static struct edge random_edge(int scale)
{
    const uint16_t a = 0.57 * 65536, ab = 0.76 * 65536, abc = 0.95 * 65536;
    struct edge e = { 0, 0 };
    uint64_t bits = 0;

    for (int level = 0; level < scale; level++) {
        if (level % 4 == 0)
            bits = next_random();
        uint16_t draw = bits;
        bits >>= 16;
        e.from = e.from << 1 | (draw >= ab);
        e.to = e.to << 1 | ((draw >= a && draw < ab) || draw >= abc);
    }
    return e;
}

/* Renames the vertices, so that a high degree says nothing about the place in memory. */
static void shuffle_names(struct edge *edges, uint64_t n, vertex vertices)
{
    vertex *name = allocate(vertices, sizeof *name);

    for (vertex v = 0; v < vertices; v++)
        name[v] = v;
    for (vertex v = vertices - 1; v > 0; v--) {
        vertex other = random_below(v + 1), swap = name[v];
        name[v] = name[other];
        name[other] = swap;
    }
    for (uint64_t i = 0; i < n; i++)
        edges[i] = (struct edge){ name[edges[i].from], name[edges[i].to] };
    free(name);
}

/* Turns counts per vertex, in first[v + 1], into where each vertex's neighbours begin. */
static void counts_to_offsets(uint64_t *first, vertex vertices)
{
    first[0] = 0;
    for (vertex v = 0; v < vertices; v++)
        first[v + 1] += first[v];
}

/* Both directions of each edge, without loops, in the order of the edges. */
static struct graph scatter_edges(const struct edge *edges, uint64_t n, vertex vertices)
{
    struct graph g = { vertices, calloc((uint64_t)vertices + 1, sizeof(uint64_t)), NULL };
    uint64_t *fill = allocate(vertices, sizeof *fill);

    if (!g.first)
        exit(1);
    for (uint64_t i = 0; i < n; i++)
        if (edges[i].from != edges[i].to) {
            g.first[edges[i].from + 1]++;
            g.first[edges[i].to + 1]++;
        }
    counts_to_offsets(g.first, vertices);
    g.neighbours = allocate(g.first[vertices], sizeof *g.neighbours);
    memcpy(fill, g.first, vertices * sizeof *fill);
    for (uint64_t i = 0; i < n; i++)
        if (edges[i].from != edges[i].to) {
            g.neighbours[fill[edges[i].from]++] = edges[i].to;
            g.neighbours[fill[edges[i].to]++] = edges[i].from;
        }
    free(fill);
    return g;
}

/* The graph is symmetric, so writing each v, in order, into the lists of its neighbours gives
 * the same graph with sorted lists; a repeated neighbour is then the one written last. */
static struct graph sort_and_deduplicate(const struct graph *g)
{
    struct graph sorted = { g->vertices, allocate((uint64_t)g->vertices + 1, sizeof(uint64_t)),
                            allocate(g->first[g->vertices], sizeof(vertex)) };
    uint64_t *fill = allocate(g->vertices, sizeof *fill), end = 0;

    memcpy(fill, g->first, g->vertices * sizeof *fill);
    for (vertex v = 0; v < g->vertices; v++)
        for (uint64_t i = g->first[v]; i < g->first[v + 1]; i++) {
            vertex u = g->neighbours[i];
            if (fill[u] == g->first[u] || sorted.neighbours[fill[u] - 1] != v)
                sorted.neighbours[fill[u]++] = v;
        }
    for (vertex v = 0; v < g->vertices; v++) { /* close the gaps the duplicates left */
        uint64_t n = fill[v] - g->first[v];
        memmove(sorted.neighbours + end, sorted.neighbours + g->first[v], n * sizeof(vertex));
        sorted.first[v] = end;
        end += n;
    }
    sorted.first[g->vertices] = end;
    free(fill);
    return sorted;
}

static struct graph make_graph(int scale, int average_degree)
{
    vertex vertices = (vertex)1 << scale;
    uint64_t n = (uint64_t)vertices * average_degree;
    struct edge *edges = allocate(n, sizeof *edges);

    for (uint64_t i = 0; i < n; i++)
        edges[i] = random_edge(scale);
    shuffle_names(edges, n, vertices);
    struct graph unsorted = scatter_edges(edges, n, vertices);
    free(edges);
    struct graph g = sort_and_deduplicate(&unsorted);
    free(unsorted.first);
    free(unsorted.neighbours);
    return g;
}

/* ---- The search ------------------------------------------------------------------------ */

/* The paper's switch-over points. */
enum { ALPHA = 15, BETA = 18 };

struct search {
    const struct graph *graph;
    vertex *parent;              /* of each vertex reached, or NOBODY */
    vertex *queue;               /* vertices in the order they were reached */
    uint64_t *frontier, *reached_now; /* bitmaps, for the bottom-up steps */
};

static bool has(const uint64_t *bitmap, vertex v) { return bitmap[v / 64] >> v % 64 & 1; }
static void add(uint64_t *bitmap, vertex v) { bitmap[v / 64] |= (uint64_t)1 << v % 64; }
static size_t bitmap_bytes(vertex vertices) { return ((size_t)vertices + 63) / 64 * 8; }

/* Each vertex of the frontier, queue[from..to), looks for neighbours nobody has reached. Returns
 * the new end of the queue and the edges out of what was reached. */
static vertex step_down(struct search *s, vertex from, vertex to, uint64_t *edges)
{
    const struct graph *g = s->graph;
    vertex end = to;

    *edges = 0;
    for (vertex q = from; q < to; q++) {
        vertex v = s->queue[q];
        for (uint64_t i = g->first[v]; i < g->first[v + 1]; i++) {
            vertex u = g->neighbours[i];
            if (s->parent[u] == NOBODY) {
                s->parent[u] = v;
                s->queue[end++] = u;
                *edges += degree(g, u);
            }
        }
    }
    return end;
}

/* Each vertex that is not reached yet looks for a neighbour in the frontier. */
static vertex step_up(struct search *s)
{
    const struct graph *g = s->graph;
    vertex reached = 0;

    memset(s->reached_now, 0, bitmap_bytes(g->vertices));
    for (vertex v = 0; v < g->vertices; v++) {
        if (s->parent[v] != NOBODY)
            continue;
        for (uint64_t i = g->first[v]; i < g->first[v + 1]; i++)
            if (has(s->frontier, g->neighbours[i])) {
                s->parent[v] = g->neighbours[i];
                add(s->reached_now, v);
                reached++;
                break;
            }
    }
    uint64_t *swap = s->frontier;
    s->frontier = s->reached_now;
    s->reached_now = swap;
    return reached;
}

/* Bottom-up steps from the frontier queue[from..to) until it is small again. Returns the end of
 * the queue, whose new frontier starts at `to`. */
static vertex steps_up(struct search *s, vertex from, vertex to)
{
    vertex before, now = to - from, end = to;

    memset(s->frontier, 0, bitmap_bytes(s->graph->vertices));
    for (vertex q = from; q < to; q++)
        add(s->frontier, s->queue[q]);
    do {
        before = now;
        now = step_up(s);
    } while (now && (now >= before || now > s->graph->vertices / BETA));
    for (vertex v = 0; v < s->graph->vertices; v++)
        if (has(s->frontier, v))
            s->queue[end++] = v;
    return end;
}

static void search_from(struct search *s, vertex source)
{
    const struct graph *g = s->graph;
    uint64_t edges_left = g->first[g->vertices], edges = degree(g, source);
    vertex from = 0, to = 1;

    for (vertex v = 0; v < g->vertices; v++)
        s->parent[v] = NOBODY;
    s->parent[source] = source;
    s->queue[0] = source;
    while (from < to) {
        vertex end;
        if (edges > edges_left / ALPHA) {
            end = steps_up(s, from, to);
            edges = 1;
        } else {
            edges_left -= edges;
            end = step_down(s, from, to, &edges);
        }
        from = to;
        to = end;
    }
}

/* Every parent is a neighbour, and no neighbour of a reached vertex is unreached. A sample of
 * one vertex in 64, to leave the trace to the search. */
static void check(const struct search *s, vertex source, vertex *reached)
{
    const struct graph *g = s->graph;

    *reached = 0;
    for (vertex v = 0; v < g->vertices; v++) {
        if (s->parent[v] == NOBODY)
            continue;
        ++*reached;
        if (v % 64)
            continue;
        bool parent_is_neighbour = v == source;
        for (uint64_t i = g->first[v]; i < g->first[v + 1]; i++) {
            parent_is_neighbour |= g->neighbours[i] == s->parent[v];
            if (s->parent[g->neighbours[i]] == NOBODY)
                parent_is_neighbour = false, i = g->first[v + 1] - 1;
        }
        if (!parent_is_neighbour) {
            fprintf(stderr, "bfs: the search from %u is wrong at %u\n", source, v);
            exit(1);
        }
    }
}

/* ---- Main ------------------------------------------------------------------------------ */

static long option_value(const char *text, long min, long max)
{
    char *end;
    long value = strtol(text, &end, 10);

    if (*end || end == text || value < min || value > max) {
        fprintf(stderr, "bfs: '%s' is not a number from %ld to %ld\n", text, min, max);
        exit(2);
    }
    return value;
}

int main(int argc, char **argv)
{
    int scale = 22, average_degree = 16, trials = 8, option;

    random_state = 1;
    while ((option = getopt(argc, argv, "s:d:t:r:")) != -1)
        switch (option) {
        case 's': scale = option_value(optarg, 1, 31); break;
        case 'd': average_degree = option_value(optarg, 1, 1024); break;
        case 't': trials = option_value(optarg, 0, 1 << 20); break;
        case 'r': random_state = option_value(optarg, 0, INT32_MAX); break;
        default:
            fprintf(stderr, "usage: bfs [-s SCALE] [-d DEGREE] [-t TRIALS] [-r SEED]\n");
            return 2;
        }

    struct graph g = make_graph(scale, average_degree);
    fprintf(stderr, "bfs: %u vertices, %" PRIu64 " edges\n", g.vertices, g.first[g.vertices] / 2);
    struct search s = {
        .graph = &g,
        .parent = allocate(g.vertices, sizeof(vertex)),
        .queue = allocate(g.vertices, sizeof(vertex)),
        .frontier = allocate(bitmap_bytes(g.vertices), 1),
        .reached_now = allocate(bitmap_bytes(g.vertices), 1),
    };
    for (int trial = 0; trial < trials && g.first[g.vertices]; trial++) {
        vertex source, reached;
        do
            source = random_below(g.vertices);
        while (!degree(&g, source));
        search_from(&s, source);
        check(&s, source, &reached);
        fprintf(stderr, "bfs: trial %d from %u reached %u\n", trial, source, reached);
    }
    return 0;
}
