/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * System calls that copy to and from memory of which the program itself touches nothing, or fill it. It prints where the
 * memory is, in hexadecimal: one "name value" a line.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif
#define PAGE 4096l
#define EACH (16 * PAGE) /* each call has so much to itself */

static char *area;

static char *part(int i)
{
    return area + i * EACH;
}

static void expect(long got, long wanted)
{
    if (got != wanted)
        exit(1);
}

static void map(void *at, long len)
{
    if (mmap(at, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0) == MAP_FAILED)
        exit(1);
}

/* A mapping in its own part of the area. */
static void map_part(int i, int prot, int flags, int fd)
{
    if (mmap(part(i), EACH, prot, flags | MAP_FIXED, fd, 0) == MAP_FAILED)
        exit(1);
}

int main(void)
{
    int zero = open("/dev/zero", O_RDONLY), null = open("/dev/null", O_WRONLY), pair[2];

    area = mmap(NULL, 16 * EACH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (area == MAP_FAILED || zero < 0 || null < 0 || socketpair(AF_UNIX, SOCK_DGRAM, 0, pair))
        return 1;
    printf("area %lx\n", (long)area);
    fflush(stdout);

    expect(read(zero, part(0) + 100, 2 * PAGE), 2 * PAGE); /* three pages */
    expect(read(zero, part(0) + 200, PAGE), PAGE);         /* of which two are no news */
    map(part(0), PAGE);
    expect(read(zero, part(0), 10), 10);                   /* a new page at an old place */

    struct iovec vector[] = { { part(1), 10 }, { part(1) + 4 * PAGE, PAGE }, { part(1) + 8 * PAGE, PAGE } };
    expect(readv(zero, vector, 2), 10 + PAGE);

    expect(write(null, part(2), 3 * PAGE), 3 * PAGE); /* the kernel need not read them, but might */
    expect(read(zero, part(2), PAGE), PAGE);          /* the first store is news */
    expect(write(null, part(2), PAGE), PAGE);         /* a load behind it is not */
    struct iovec out[] = { { part(3), PAGE }, { part(3) + 2 * PAGE, 1 } };
    expect(writev(null, out, 2), PAGE + 1);

    expect(send(pair[0], part(4), 2 * PAGE, 0), 2 * PAGE);
    expect(recv(pair[1], part(5), PAGE, MSG_TRUNC), 2 * PAGE); /* one page is copied */
    struct iovec one = { part(6), PAGE }, other = { part(7), PAGE };
    struct msghdr message = { .msg_iov = &one, .msg_iovlen = 1 }, answer = { .msg_iov = &other, .msg_iovlen = 1 };
    expect(sendmsg(pair[0], &message, 0), PAGE);
    expect(recvmsg(pair[1], &answer, 0), PAGE);

    expect(getrandom(part(8), 100, 0), 100);
    expect(read(-1, part(9), PAGE), -1); /* fails: copies nothing */

    int file = memfd_create("short", 0), private = MAP_PRIVATE | MAP_ANONYMOUS;
    expect(ftruncate(file, 3 * PAGE - 5), 0);
    map_part(10, PROT_READ | PROT_WRITE, private | MAP_POPULATE, -1);
    map_part(11, PROT_READ, private | MAP_POPULATE, -1);
    map_part(12, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file); /* of which three pages are there */
    map_part(13, PROT_READ | PROT_WRITE, private | MAP_POPULATE | MAP_NONBLOCK, -1); /* populates nothing */
    map_part(14, PROT_NONE, private | MAP_POPULATE, -1);                             /* nor does this */
    expect(madvise(part(15), 2 * PAGE, MADV_POPULATE_WRITE), 0);
    return 7;
}
