/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A client that fills a redis server and then reads and writes it with a Zipf distribution.
 *
 *   zipf_client [-p PORT] [-k KEYS] [-v BYTES] [-n OPERATIONS] [-w PERCENT] [-z THETA]
 *               [-c CONNECTIONS] [-q PIPELINE] [-t SECONDS] [-r SEED] [-s]
 *
 * First every key is set once, in order, 16 to an MSET. Then OPERATIONS commands go over
 * CONNECTIONS connections in turn, PIPELINE at a time: SET for PERCENT of them and GET for the
 * rest. Key ranks follow a Zipf distribution with exponent THETA; ranks are scattered over the
 * keys, so hot keys are not neighbours. Value sizes are uniform from half of BYTES to one and a
 * half of it, drawn anew at each SET. -s shuts the server down at the end. The client gives up
 * after SECONDS.
 */
#include <hiredis/hiredis.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#define PROGRAM "zipf_client"
#include "zipf.h"

static void fail(const char *what, const char *detail)
{
    fprintf(stderr, PROGRAM ": %s: %s\n", what, detail && *detail ? detail : "no reason given");
    exit(1);
}

/* ---- Talking to the server ------------------------------------------------------------- */

static redisContext *connect_to_server(int port)
{
    struct timeval limit = { .tv_sec = 60 };
    redisContext *c = redisConnectWithTimeout("127.0.0.1", port, limit);

    if (!c || c->err)
        fail("cannot connect", c ? c->errstr : "out of memory");
    redisSetTimeout(c, limit);
    return c;
}

struct load {
    uint64_t keys, value_bytes;
    char *value;
    uint64_t hits, misses;
};

static size_t random_value_size(const struct load *load)
{
    return load->value_bytes / 2 + next_random() % (load->value_bytes + 1);
}

static void append_set(redisContext *c, const struct load *load, uint64_t key)
{
    redisAppendCommand(c, "SET user:%012" PRIu64 " %b", key, load->value, random_value_size(load));
}

/* Sets up to FILL_BATCH keys from `key` on. Returns the first key after them. */
enum { FILL_BATCH = 16 };
static uint64_t append_mset(redisContext *c, const struct load *load, uint64_t key)
{
    char names[FILL_BATCH][24];
    const char *words[1 + 2 * FILL_BATCH] = { "MSET" };
    size_t sizes[1 + 2 * FILL_BATCH] = { 4 };
    int n = 1;

    for (int i = 0; i < FILL_BATCH && key < load->keys; i++, key++) {
        sizes[n] = snprintf(names[i], sizeof names[i], "user:%012" PRIu64, key);
        words[n++] = names[i];
        sizes[n] = random_value_size(load);
        words[n++] = load->value;
    }
    redisAppendCommandArgv(c, n, words, sizes);
    return key;
}

static void append_get(redisContext *c, uint64_t key)
{
    redisAppendCommand(c, "GET user:%012" PRIu64, key);
}

static void take_replies(redisContext *c, struct load *load, unsigned n)
{
    while (n--) {
        redisReply *reply;
        if (redisGetReply(c, (void **)&reply) != REDIS_OK)
            fail("no reply", c->errstr);
        if (reply->type == REDIS_REPLY_ERROR)
            fail("the server refused", reply->str);
        load->hits += reply->type == REDIS_REPLY_STRING;
        load->misses += reply->type == REDIS_REPLY_NIL;
        freeReplyObject(reply);
    }
}

static void fill(redisContext *c, struct load *load, unsigned pipeline)
{
    for (uint64_t key = 0; key < load->keys;) {
        unsigned n = 0;
        for (; n < pipeline && key < load->keys; n++)
            key = append_mset(c, load, key);
        take_replies(c, load, n);
    }
}

static void drive(redisContext **connections, unsigned n_connections, struct load *load,
                  uint64_t operations, unsigned write_percent, double theta, unsigned pipeline)
{
    struct zipf zipf = zipf_new(load->keys, theta);

    for (uint64_t done = 0, turn = 0; done < operations; turn++) {
        redisContext *c = connections[turn % n_connections];
        unsigned n = 0;
        for (; n < pipeline && done < operations; n++, done++) {
            uint64_t key = scatter(zipf_rank(&zipf), load->keys);
            if (next_random() % 100 < write_percent)
                append_set(c, load, key);
            else
                append_get(c, key);
        }
        take_replies(c, load, n);
    }
}

/* ---- Main ------------------------------------------------------------------------------ */

int main(int argc, char **argv)
{
    struct load load = { .keys = 1000000, .value_bytes = 256 };
    uint64_t operations = 1000000;
    unsigned port = 6379, write_percent = 10, n_connections = 8, pipeline = 16, seconds = 3600;
    double theta = 0.99;
    bool shut_down = false;
    redisContext *connections[64];
    int option;

    while ((option = getopt(argc, argv, "p:k:v:n:w:z:c:q:t:r:s")) != -1)
        switch (option) {
        case 'p': port = number(optarg, 1, 65535); break;
        case 'k': load.keys = number(optarg, 2, 2000000000); break;
        case 'v': load.value_bytes = number(optarg, 2, 1 << 20); break;
        case 'n': operations = number(optarg, 0, UINT64_MAX >> 1); break;
        case 'w': write_percent = number(optarg, 0, 100); break;
        case 'z': theta = exponent(optarg); break;
        case 'c': n_connections = number(optarg, 1, 64); break;
        case 'q': pipeline = number(optarg, 1, 1024); break;
        case 't': seconds = number(optarg, 1, 1000000); break;
        case 'r': random_state = number(optarg, 0, UINT64_MAX >> 1); break;
        case 's': shut_down = true; break;
        default: return 2;
        }
    alarm(seconds); /* ends this process if anything hangs */

    load.value = malloc(load.value_bytes * 2);
    if (!load.value)
        fail("no memory", "for the value");
    for (uint64_t i = 0; i < load.value_bytes * 2; i++)
        load.value[i] = ' ' + next_random() % 95;
    for (unsigned i = 0; i < n_connections; i++)
        connections[i] = connect_to_server(port);

    fill(connections[0], &load, pipeline);
    fprintf(stderr, PROGRAM ": %" PRIu64 " keys set\n", load.keys);
    drive(connections, n_connections, &load, operations, write_percent, theta, pipeline);
    fprintf(stderr, PROGRAM ": %" PRIu64 " operations, %" PRIu64 " hits, %" PRIu64 " misses\n",
            operations, load.hits, load.misses);
    if (shut_down) /* the server closes the connection without a reply */
        freeReplyObject(redisCommand(connections[0], "SHUTDOWN NOSAVE"));
    for (unsigned i = 0; i < n_connections; i++)
        redisFree(connections[i]);
    free(load.value);
    return 0;
}
