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
};

static inline const struct calls *calls_of(const char *target)
{
    static const struct calls x86_64 = {
        .machine = EM_X86_64,
        .mmap = 9, .munmap = 11, .brk = 12, .mremap = 25, .mprotect = 10, .madvise = 28,
        .clone = 56, .fork = 57, .vfork = 58, .wait4 = 61, .waitid = 247,
        .execve = 59, .execveat = 322, .prctl = 157, .exit = 60, .exit_group = 231,
    };
#define GENERIC_CALLS \
        .mmap = 222, .munmap = 215, .brk = 214, .mremap = 216, .mprotect = 226, .madvise = 233, \
        .clone = 220, .fork = -1, .vfork = -1, .wait4 = 260, .waitid = 95, \
        .execve = 221, .execveat = 281, .prctl = 167, .exit = 93, .exit_group = 94
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
