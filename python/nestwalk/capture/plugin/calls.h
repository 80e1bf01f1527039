/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The numbers of the system calls that the plugin looks at, by the guest's architecture. x86-64 has a table of its own
 * (arch/x86/entry/syscalls/syscall_64.tbl), aarch64 and riscv64 share Linux's generic one (asm-generic/unistd.h). The
 * order of the arguments is the same in all three, that of clone included.
 */
#ifndef NESTWALK_CALLS_H
#define NESTWALK_CALLS_H

#include <elf.h>
#include <string.h>

struct calls {
    int machine; /* as ELF numbers it */
    int mmap, munmap, brk, mremap, mprotect, madvise;
    int clone, fork, vfork, wait4, waitid; /* -1: there is no such call */
    int execve, execveat, prctl, exit, exit_group;
    /* Calls that copy: (fd, buffer, length, ...), (fd, vector, count, ...), (fd, message, ...). */
    int read, pread64, recvfrom, write, pwrite64, sendto;
    int readv, preadv, preadv2, writev, pwritev, pwritev2;
    int recvmsg, sendmsg;
    int getrandom; /* (buffer, length, ...) */
};

static inline const struct calls *calls_of(const char *target)
{
    static const struct calls x86_64 = {
        .machine = EM_X86_64,
        .mmap = 9, .munmap = 11, .brk = 12, .mremap = 25, .mprotect = 10, .madvise = 28,
        .clone = 56, .fork = 57, .vfork = 58, .wait4 = 61, .waitid = 247,
        .execve = 59, .execveat = 322, .prctl = 157, .exit = 60, .exit_group = 231,
        .read = 0, .pread64 = 17, .recvfrom = 45, .write = 1, .pwrite64 = 18, .sendto = 44,
        .readv = 19, .preadv = 295, .preadv2 = 327, .writev = 20, .pwritev = 296, .pwritev2 = 328,
        .recvmsg = 47, .sendmsg = 46, .getrandom = 318,
    };
#define GENERIC_CALLS \
        .mmap = 222, .munmap = 215, .brk = 214, .mremap = 216, .mprotect = 226, .madvise = 233, \
        .clone = 220, .fork = -1, .vfork = -1, .wait4 = 260, .waitid = 95, \
        .execve = 221, .execveat = 281, .prctl = 167, .exit = 93, .exit_group = 94, \
        .read = 63, .pread64 = 67, .recvfrom = 207, .write = 64, .pwrite64 = 68, .sendto = 206, \
        .readv = 65, .preadv = 69, .preadv2 = 286, .writev = 66, .pwritev = 70, .pwritev2 = 287, \
        .recvmsg = 212, .sendmsg = 211, .getrandom = 278
    static const struct calls aarch64 = { .machine = EM_AARCH64, GENERIC_CALLS };
    static const struct calls riscv64 = { .machine = EM_RISCV, GENERIC_CALLS };
#undef GENERIC_CALLS

    if (!strcmp(target, "x86_64"))
        return &x86_64;
    if (!strcmp(target, "aarch64"))
        return &aarch64;
    return strcmp(target, "riscv64") ? NULL : &riscv64;
}

#endif
