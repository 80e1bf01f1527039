/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Following a driver (sh -c, gcc, make) to the program that does the work.
 *
 * The driver runs under QEMU with follow=NAME and is not recorded. Whatever it, or a child of it,
 * executes is run under QEMU and this plugin too: in place of the program, QEMU is executed with
 * the program as its argument. The first program called NAME is recorded; the others are only
 * followed on.
 */
#ifndef NESTWALK_FOLLOW_H
#define NESTWALK_FOLLOW_H

#include <stdbool.h>

struct follow {
    int machine;         /* of this QEMU's guests, as ELF numbers it (EM_X86_64) */
    const char *name;    /* of the program: the last part of its path, or the whole of it; NULL: record all */
    const char *claim;   /* a file that the first one to be recorded makes */
    const char *seen;    /* a file to which the name of each program that is executed is added */
    const char *driving; /* -plugin argument of what is followed on */
    const char *recording; /* -plugin argument of what is recorded */
};

/*
 * Called before execve(path, argv, envp) of the guest, whose memory is ours. Does not return where
 * the program is run under QEMU. Returns where that cannot be: then the call goes on as it would,
 * and fails, or runs a program that is for another machine and is not followed.
 */
void follow_exec(const struct follow *follow, const char *path, char *const *argv, char *const *envp);

#endif
