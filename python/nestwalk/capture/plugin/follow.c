/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Following a driver to the program that does the work: see follow.h. */
#define _GNU_SOURCE
#include "follow.h"

#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HEAD 256 /* bytes of a file that tell what it is: as many as the kernel reads (BINPRM_BUF_SIZE) */

static bool read_head(const char *path, char head[HEAD + 1])
{
    int fd = access(path, X_OK) ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, head, HEAD);

    if (fd >= 0)
        close(fd);
    if (n < 0)
        return false;
    memset(head + n, 0, HEAD + 1 - n);
    return true;
}

static bool is_ours(const struct follow *follow, const char *head)
{
    Elf64_Ehdr header;

    memcpy(&header, head, sizeof header);
    return !memcmp(header.e_ident, ELFMAG, SELFMAG) && header.e_ident[EI_CLASS] == ELFCLASS64 &&
           header.e_machine == follow->machine;
}

/* Of a script: its interpreter and, if there is one, the interpreter's one argument. The line is cut up in place, as the
 * kernel does it (fs/binfmt_script.c). */
static bool parse_script(char *head, char **interpreter, char **argument)
{
    if (head[0] != '#' || head[1] != '!')
        return false;
    head[strcspn(head, "\n")] = 0;
    char *at = head + 2 + strspn(head + 2, " \t");
    char *end = at + strcspn(at, " \t");
    char *rest = end + strspn(end, " \t");
    size_t length = strlen(rest);

    while (length && strchr(" \t", rest[length - 1]))
        rest[--length] = 0;
    *end = 0;
    *interpreter = at;
    *argument = *rest ? rest : NULL;
    return *at;
}

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static void note(const char *file, const char *name)
{
    int fd = open(file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);

    if (fd >= 0) {
        dprintf(fd, "%s\n", name);
        close(fd);
    }
}

/* Whether this is the first program of the name: the file can be made once only. */
static bool is_claimed(const char *claim)
{
    int fd = open(claim, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

void follow_exec(const struct follow *follow, const char *path, char *const *argv, char *const *envp)
{
    char head[HEAD + 1], inner[HEAD + 1], qemu[4096];
    char *interpreter = NULL, *argument = NULL;
    const char *program = path, *name = last_part(path);
    ssize_t length = readlink("/proc/self/exe", qemu, sizeof qemu - 1);
    size_t n = 0, at = 0;

    if (length < 0 || !argv || !argv[0] || !read_head(path, head))
        return;
    qemu[length] = 0;
    if (follow->seen)
        note(follow->seen, name);
    if (parse_script(head, &interpreter, &argument)) {
        program = interpreter;
        if (!read_head(program, inner) || !is_ours(follow, inner))
            return;
    } else if (!is_ours(follow, head)) {
        return;
    }
    bool is_wanted = !follow->name || !strcmp(name, follow->name) || !strcmp(path, follow->name);
    bool is_recorded = is_wanted && (!follow->name || is_claimed(follow->claim));
    const char *plugin = is_recorded ? follow->recording : follow->driving;

    while (argv[n])
        n++;
    const char **words = calloc(n + 9, sizeof *words);
    if (!words)
        return;
    words[at++] = qemu;
    words[at++] = "-0";
    words[at++] = interpreter ? interpreter : argv[0];
    words[at++] = "-plugin";
    words[at++] = plugin;
    words[at++] = program;
    if (argument)
        words[at++] = argument;
    if (interpreter)
        words[at++] = path;
    for (size_t i = 1; i < n; i++)
        words[at++] = argv[i];
    execve(qemu, (char *const *)words, envp);
    free(words);
}
