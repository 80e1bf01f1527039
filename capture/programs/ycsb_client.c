/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A client that loads a redis or memcached server as YCSB does, over plain sockets.
 *
 *   ycsb_client [-m] [-p PORT] [-k KEYS] [-v BYTES] [-n OPERATIONS] [-w PERCENT] [-z THETA]
 *               [-c CONNECTIONS] [-t SECONDS] [-s SECONDS] [-r SEED]
 *
 * redis, or with -m memcached (its text protocol). First every key is set once, over the first
 * connection, 64 sets in a pipeline. Then OPERATIONS requests, a set for PERCENT of them and a get
 * for the rest: every connection has one request under way, as a thread of YCSB has, and all of
 * them send before any reply is awaited. Keys are "user" and 19 digits, values have BYTES bytes.
 * Ranks of keys follow a Zipf distribution with exponent THETA, scattered over the keys. The client
 * gives up after SECONDS (-t), and waits for some (-s) between the keys and the requests, in which
 * a server's own threads finish what the keys have left them.
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#define PROGRAM "ycsb_client"
#include "zipf.h"

enum { CONNECTIONS_MAX = 64, FILL_BATCH = 64, REQUEST_HEAD = 128 };

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

/* ---- Talking to the server ------------------------------------------------------------- */

struct connection {
    int fd;
    char *out; /* requests to be sent, `out_length` bytes of them */
    size_t out_length;
    char *in; /* bytes received from `in_start` to `in_end` */
    size_t in_start, in_end, in_size;
};

struct load {
    bool memcached;
    uint64_t keys, value_bytes, hits, misses;
    char *value;
};

static void connect_to(struct connection *c, int port, size_t value_bytes)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
    int on = 1;

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (c->fd < 0 || connect(c->fd, (void *)&address, sizeof address))
        fail(PROGRAM ": connect");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    c->in_size = 2 * (value_bytes + REQUEST_HEAD);
    c->out = malloc(FILL_BATCH * (value_bytes + REQUEST_HEAD));
    c->in = malloc(c->in_size);
    if (!c->out || !c->in)
        fail(PROGRAM ": malloc");
}

static void append_set(struct connection *c, const struct load *load, uint64_t key)
{
    const char *form = load->memcached ? "set user%019" PRIu64 " 0 0 %" PRIu64 "\r\n"
                                       : "*3\r\n$3\r\nSET\r\n$23\r\nuser%019" PRIu64 "\r\n$%" PRIu64
                                         "\r\n";

    c->out_length += sprintf(c->out + c->out_length, form, key, load->value_bytes);
    memcpy(c->out + c->out_length, load->value, load->value_bytes);
    c->out_length += load->value_bytes;
    c->out_length += sprintf(c->out + c->out_length, "\r\n");
}

static void append_get(struct connection *c, const struct load *load, uint64_t key)
{
    const char *form = load->memcached ? "get user%019" PRIu64 "\r\n"
                                       : "*2\r\n$3\r\nGET\r\n$23\r\nuser%019" PRIu64 "\r\n";

    c->out_length += sprintf(c->out + c->out_length, form, key);
}

static void send_all(struct connection *c)
{
    for (size_t sent = 0; sent < c->out_length;) {
        ssize_t n = write(c->fd, c->out + sent, c->out_length - sent);
        if (n <= 0)
            fail(PROGRAM ": write");
        sent += n;
    }
    c->out_length = 0;
}

/* Waits until `bytes` bytes are there, and takes them. */
static const char *take(struct connection *c, size_t bytes)
{
    if (c->in_size - c->in_start < bytes) {
        memmove(c->in, c->in + c->in_start, c->in_end - c->in_start);
        c->in_end -= c->in_start;
        c->in_start = 0;
    }
    while (c->in_end - c->in_start < bytes) {
        ssize_t n = read(c->fd, c->in + c->in_end, c->in_size - c->in_end);
        if (n <= 0)
            fail(PROGRAM ": read");
        c->in_end += n;
    }
    c->in_start += bytes;
    return c->in + c->in_start - bytes;
}

/* Takes a line without its end. */
static const char *take_line(struct connection *c, char line[REQUEST_HEAD])
{
    size_t n = 0;

    do {
        if (n == REQUEST_HEAD) {
            fprintf(stderr, PROGRAM ": a reply of more than %d bytes\n", REQUEST_HEAD);
            exit(1);
        }
        line[n++] = *take(c, 1);
    } while (line[n - 1] != '\n');
    line[n - 2] = 0;
    return line;
}

static void take_reply(struct connection *c, struct load *load)
{
    char line[REQUEST_HEAD];

    take_line(c, line);
    if (!strcmp(line, "+OK") || !strcmp(line, "STORED"))
        return;
    if (!strcmp(line, "$-1") || !strcmp(line, "END")) {
        load->misses++;
    } else if (line[0] == '$' || !strncmp(line, "VALUE ", 6)) {
        take(c, load->value_bytes + 2);
        if (load->memcached)
            take_line(c, line); /* END */
        load->hits++;
    } else {
        fprintf(stderr, PROGRAM ": the server says '%s'\n", line);
        exit(1);
    }
}

static void fill(struct connection *c, struct load *load)
{
    for (uint64_t key = 0; key < load->keys;) {
        unsigned n = 0;
        for (; n < FILL_BATCH && key < load->keys; n++, key++)
            append_set(c, load, key);
        send_all(c);
        while (n--)
            take_reply(c, load);
    }
}

static void drive(struct connection *connections, unsigned n_connections, struct load *load,
                  uint64_t operations, unsigned write_percent, double theta)
{
    struct zipf zipf = zipf_new(load->keys, theta);

    for (uint64_t done = 0; done < operations; done += n_connections) {
        for (unsigned i = 0; i < n_connections; i++) {
            uint64_t key = scatter(zipf_rank(&zipf), load->keys);
            if (next_random() % 100 < write_percent)
                append_set(&connections[i], load, key);
            else
                append_get(&connections[i], load, key);
            send_all(&connections[i]);
        }
        for (unsigned i = 0; i < n_connections; i++)
            take_reply(&connections[i], load);
    }
}

/* ---- Main ------------------------------------------------------------------------------ */

int main(int argc, char **argv)
{
    struct load load = { .keys = 1000000, .value_bytes = 1000 };
    uint64_t operations = 1000000;
    unsigned port = 6379, write_percent = 5, n_connections = 8, seconds = 7200, pause = 0;
    double theta = 0.99;
    struct connection connections[CONNECTIONS_MAX] = { 0 };
    int option;

    while ((option = getopt(argc, argv, "mp:k:v:n:w:z:c:t:s:r:")) != -1)
        switch (option) {
        case 'm': load.memcached = true; break;
        case 'p': port = number(optarg, 1, 65535); break;
        case 'k': load.keys = number(optarg, 2, 2000000000); break;
        case 'v': load.value_bytes = number(optarg, 1, 1 << 20); break;
        case 'n': operations = number(optarg, 0, UINT64_MAX >> 1); break;
        case 'w': write_percent = number(optarg, 0, 100); break;
        case 'z': theta = exponent(optarg); break;
        case 'c': n_connections = number(optarg, 1, CONNECTIONS_MAX); break;
        case 't': seconds = number(optarg, 1, 1000000); break;
        case 's': pause = number(optarg, 0, 1000000); break;
        case 'r': random_state = number(optarg, 0, UINT64_MAX >> 1); break;
        default: return 2;
        }
    alarm(seconds); /* ends this process if anything hangs */

    load.value = malloc(load.value_bytes);
    if (!load.value)
        fail(PROGRAM ": malloc");
    for (uint64_t i = 0; i < load.value_bytes; i++)
        load.value[i] = ' ' + next_random() % 95;
    for (unsigned i = 0; i < n_connections; i++)
        connect_to(&connections[i], port, load.value_bytes);

    fill(&connections[0], &load);
    fprintf(stderr, PROGRAM ": %" PRIu64 " keys set\n", load.keys);
    sleep(pause);
    drive(connections, n_connections, &load, operations, write_percent, theta);
    fprintf(stderr, PROGRAM ": %" PRIu64 " operations, %" PRIu64 " hits, %" PRIu64 " misses\n",
            operations, load.hits, load.misses);
    for (unsigned i = 0; i < n_connections; i++)
        close(connections[i].fd);
    return 0;
}
