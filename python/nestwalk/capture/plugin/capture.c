/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Nestwalk's capture plugin: a QEMU user-mode TCG plugin that writes every data access of a
 * program, and every change to its address space, as a raw stream (stream.h).
 *
 *   qemu-x86_64 -plugin libnestwalk-capture.so,out=FILE PROGRAM ARGS
 *
 * Arguments:
 *   out=PATH     write to a file or FIFO          (one of out and fd is needed)
 *   fd=N         write to an inherited descriptor
 *   each=PREFIX  every process that this one starts, and every program that is executed, makes a FIFO
 *                PREFIXpid-n and writes its own stream there; so does this one without out and fd
 *   max=N        end the program after about N accesses (rounded up to a block)
 *   log=PATH     add what there is to say to this file instead of stderr
 *   summary=on   say at the end what was written
 *   check=on     only say that this QEMU can load the plugin, then exit 0
 *   follow=NAME  record nothing here, but the first program of that name that this one, or a child
 *                of it, executes (follow.h); with claim=PATH and seen=PATH, files for that
 *
 * How it works. In user mode each guest thread is a host thread, so a thread's state is a
 * thread-local pointer and the per-access path takes no lock: it appends 16 bytes to the
 * thread's own buffer. Full buffers are written as one block under a lock. A system call that
 * changes the address space first writes the accesses so far and then its event, so that the
 * event stands in its place within its thread.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "follow.h"
#include "qemu_plugin.h"
#include "calls.h"
#include "stream.h"

QEMU_PLUGIN_EXPORT int qemu_plugin_version = QEMU_PLUGIN_API;

#define BLOCK_RECORDS 32768u /* 512 KiB: fits a core's L2 cache together with QEMU's own data */
#define ENDED_BY_US 125      /* exit code of a program that the plugin had to end */
#define HIGH_FD 500          /* our descriptors live above the ones a program uses or closes */

/* One guest instruction that may access memory. */
struct site {
    uint64_t pc;
    uint32_t id;
    _Atomic uint64_t memo; /* 0 = none yet; see size_and_store() */
    struct site *next;     /* in its hash bucket */
};

struct thread {
    struct access_record *records;
    uint32_t n;             /* records in the buffer */
    uint32_t tid;
    uint64_t instructions;  /* executed, counted a translation block at a time */
    uint64_t instructions_at_last_access;
    uint64_t accesses_written;
    uint64_t syscall_args[6];
    uint64_t break_now;     /* what brk returned last */
    struct thread *next;
};

static __thread struct thread *self __attribute__((tls_model("initial-exec")));

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* everything below */
static struct thread *threads;
static uint32_t threads_seen;
static uint64_t accesses_written, accesses_max = UINT64_MAX, events_written, instructions_of_dead;
static uint64_t children; /* processes that were started, none of which is recorded */
static int stream_fd = -1, error_fd = 2;
static bool want_summary, stopped;
static struct follow follow; /* without a name: what runs here is recorded */
static const char *log_path;
static const char *each;       /* see the arguments above */
static bool mappings_due;      /* a forked child has not written yet which mappings it began with */
static uint64_t program_entry;
static const struct calls *calls; /* the guest's numbers of system calls */

/* ---- Ending ---------------------------------------------------------------------------- */

static void summarise(void)
{
    uint64_t instructions = instructions_of_dead;

    if (!want_summary)
        return;
    for (struct thread *t = threads; t; t = t->next)
        instructions += t->instructions;
    dprintf(error_fd, "nestwalk-capture: %lu accesses, %lu instructions, %u threads, %lu events\n",
            accesses_written, instructions, threads_seen, events_written);
    if (children && !each)
        dprintf(error_fd, "nestwalk-capture: warning: %lu child process%s not recorded, only the first "
                "process is: if the work is in a child, name it with --follow, such as --follow cc1 for gcc\n",
                children, children == 1 ? " was" : "es were");
}

/* Ends the whole process at once, from whichever thread: the stream cannot go on. The exit code
 * tells nestwalk-capture that it was not the program's. */
static void die(const char *why)
{
    dprintf(error_fd, "nestwalk-capture: %s\n", why);
    _exit(ENDED_BY_US);
}

/* ---- Writing blocks -------------------------------------------------------------------- */

/* A reader that goes away must not become a SIGPIPE of the guest program: block it and look at
 * the error instead. */
static void write_all(const void *data, size_t size)
{
    const char *at = data;

    while (size) {
        ssize_t done = write(stream_fd, at, size);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0 && errno == EPIPE) /* a reader that has had enough knows it */
            _exit(ENDED_BY_US);
        if (done < 0) {
            char why[200];
            snprintf(why, sizeof why, "cannot write the stream: %s", strerror(errno));
            die(why);
        }
        at += done;
        size -= done;
    }
}

static int out_of_the_way(int fd);

/* With each=: makes this process's FIFO and waits for its reader. With the lock held. */
static void open_own_stream(void)
{
    char path[4096];
    unsigned n = 0;

    do
        snprintf(path, sizeof path, "%s%d-%u", each, (int)getpid(), n++);
    while (mkfifo(path, 0600) && errno == EEXIST);
    int low = open(path, O_WRONLY | O_CLOEXEC);
    if (low < 0)
        die("cannot open the stream");
    stream_fd = out_of_the_way(low);
    close(low);
    fcntl(stream_fd, F_SETPIPE_SZ, 1 << 20);
}

static void write_block(struct thread *t, enum block_kind kind, const void *records, uint64_t n,
                        size_t record_size)
{
    struct block_header header = {
        .magic = STREAM_MAGIC, .tid = t->tid, .n = n, .bytes = n * record_size,
        .kind = kind, .instructions = t->instructions,
    };
    sigset_t pipe_signal, before;

    if (stream_fd < 0 && each)
        open_own_stream();
    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
    write_all(&header, sizeof header);
    write_all(records, header.bytes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Writes what is in the buffer of `t`. With the lock held. */
static void flush_locked(struct thread *t)
{
    if (t->n && !stopped) {
        write_block(t, BLOCK_ACCESSES, t->records, t->n, sizeof *t->records);
        accesses_written += t->n;
    }
    t->accesses_written += t->n;
    t->n = 0;
    if (accesses_written >= accesses_max && !stopped) {
        stopped = true;
        summarise();
        _exit(0);
    }
}

static void write_mappings_of_child(struct thread *t);

static void flush(struct thread *t)
{
    if (mappings_due)
        write_mappings_of_child(t);
    pthread_mutex_lock(&lock);
    flush_locked(t);
    pthread_mutex_unlock(&lock);
}

/* Writes the accesses so far and then `n` events, which happened after them. */
static void write_events(struct thread *t, struct event_record *events, uint64_t n)
{
    if (mappings_due)
        write_mappings_of_child(t);
    pthread_mutex_lock(&lock);
    flush_locked(t);
    for (uint64_t i = 0; i < n; i++)
        events[i].accesses_before = t->accesses_written;
    if (n && !stopped) {
        write_block(t, BLOCK_EVENTS, events, n, sizeof *events);
        events_written += n;
    }
    pthread_mutex_unlock(&lock);
}

/* ---- Threads --------------------------------------------------------------------------- */

static struct thread *thread_begin(void)
{
    struct thread *t = calloc(1, sizeof *t);

    if (t)
        t->records = malloc(BLOCK_RECORDS * sizeof *t->records);
    if (!t || !t->records)
        die("out of memory");
    pthread_mutex_lock(&lock);
    t->tid = threads_seen++;
    t->next = threads;
    threads = t;
    pthread_mutex_unlock(&lock);
    return self = t;
}

static inline struct thread *this_thread(void)
{
    return self ? self : thread_begin();
}

static void on_vcpu_exit(qemu_plugin_id_t id, unsigned vcpu)
{
    struct thread *t = self;

    (void)id, (void)vcpu;
    if (!t)
        return;
    pthread_mutex_lock(&lock);
    flush_locked(t);
    instructions_of_dead += t->instructions;
    for (struct thread **p = &threads; *p; p = &(*p)->next)
        if (*p == t) {
            *p = t->next;
            break;
        }
    pthread_mutex_unlock(&lock);
    self = NULL;
    free(t->records);
    free(t);
}

/* A forked child has QEMU and this plugin too. Only the first process is captured: the child
 * lets go of the stream, so that its reader sees the end when the parent ends. */
static void before_fork(void) { pthread_mutex_lock(&lock); }
static void after_fork_in_parent(void) { pthread_mutex_unlock(&lock); }
static void after_fork_in_child(void)
{
    pthread_mutex_unlock(&lock);
    close(stream_fd);
    stream_fd = -1;
    if (!each) {
        stopped = true;
        want_summary = false;
        return;
    }
    /* Only this thread is left. Its stream is made when there is something to write: a child that only executes
     * another program has none. */
    threads = self;
    threads_seen = self ? 1 : 0;
    accesses_written = events_written = instructions_of_dead = children = 0;
    mappings_due = true;
    if (self) {
        struct access_record *records = self->records;
        *self = (struct thread){ .records = records, .break_now = self->break_now };
    }
}

/* ---- Accesses -------------------------------------------------------------------------- */

static void on_block(unsigned vcpu, void *instructions)
{
    (void)vcpu;
    this_thread()->instructions += (uintptr_t)instructions;
}

/*
 * The size and store bits of an access, in the place they have in a record. QEMU's own functions
 * say them, at the price of two calls; an instruction nearly always has the same answer, so it is
 * kept beside its question: question << 32 | answer, one word, since threads share sites.
 */
static inline uint64_t size_and_store(struct site *site, qemu_plugin_meminfo_t info)
{
    uint64_t memo = atomic_load_explicit(&site->memo, memory_order_relaxed);

    if (memo >> 32 != info) {
        const unsigned store_shift = ACCESS_STORE_SHIFT - ACCESS_SIZE_SHIFT;
        uint64_t answer = qemu_plugin_mem_size_shift(info) |
                          qemu_plugin_mem_is_store(info) << store_shift;
        memo = (uint64_t)info << 32 | answer;
        atomic_store_explicit(&site->memo, memo, memory_order_relaxed);
    }
    return (memo & 0xffffffffu) << ACCESS_SIZE_SHIFT;
}

static void on_access(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t vaddr, void *data)
{
    struct thread *t = this_thread();
    struct site *site = data;
    uint64_t since = t->instructions - t->instructions_at_last_access;

    (void)vcpu;
    if (since > ACCESS_INSTRUCTIONS_MAX)
        since = ACCESS_INSTRUCTIONS_MAX;
    t->instructions_at_last_access = t->instructions;
    t->records[t->n++] = (struct access_record){
        .vaddr = vaddr,
        .packed = site->id | since << ACCESS_INSTRUCTIONS_SHIFT |
                  size_and_store(site, info),
    };
    if (t->n == BLOCK_RECORDS)
        flush(t);
}

/* ---- Sites: one number an instruction address, however often QEMU translates it --------- */

#define SITE_BUCKETS (1u << 16)
static struct site *site_buckets[SITE_BUCKETS];
static uint32_t sites;

static struct site *site_of(uint64_t pc)
{
    struct site **bucket = &site_buckets[(pc * 0x9e3779b97f4a7c15u) >> 48];

    for (struct site *s = *bucket; s; s = s->next)
        if (s->pc == pc)
            return s;
    struct site *s = calloc(1, sizeof *s);
    if (!s)
        die("out of memory");
    s->pc = pc;
    s->id = sites++;
    s->next = *bucket;
    return *bucket = s;
}

static void on_translate(qemu_plugin_id_t id, struct qemu_plugin_tb *tb);

/* ---- The address space at program start ------------------------------------------------ */

/*
 * With QEMU's default of guest base 0 the guest's mappings are ordinary mappings of the QEMU process
 * at their own addresses. QEMU up to 8.0 places them from 0x4000000000 up (a non-PIE program where
 * its ELF file says), far below its own; later ones where the host's kernel does, between QEMU's own.
 * So: what is in /proc/self/maps when the first guest instruction is translated, and was not there
 * when the plugin was loaded, is the guest's, but for QEMU's heap and its buffer of translated code
 * with the guard page after it. If the guest's stack (it has a guard page, too) lies below all of
 * QEMU's, nothing above is the guest's. Otherwise, memory that QEMU allocated meanwhile is taken for
 * the guest's, which never touches it. If the program's entry is not found, the assumption does not
 * hold and nothing is written.
 */
#define MAPPINGS_MAX 1024

struct range {
    uint64_t from, to;
};

static struct range own_memory[MAPPINGS_MAX];
static size_t own_ranges;

/* One line of /proc/self/maps. Returns false at the end. `is_own`: it can only be QEMU's. */
static bool next_mapping(FILE *maps, struct event_record *vma, bool *is_own)
{
    unsigned long from, to, inode;
    char perms[5], line[4096], name[8] = "";

    if (!fgets(line, sizeof line, maps) ||
        sscanf(line, "%lx-%lx %4s %*x %*s %lu %7s", &from, &to, perms, &inode, name) < 4)
        return false;
    *vma = (struct event_record){ .op = EVENT_VMA, .addr = from, .len = to - from };
    vma->arg = (perms[0] == 'r' ? PROT_READ : 0) | (perms[1] == 'w' ? PROT_WRITE : 0) |
               (perms[2] == 'x' ? PROT_EXEC : 0);
    vma->flags = (perms[3] == 's' ? MAP_SHARED : MAP_PRIVATE) | (inode ? 0 : MAP_ANONYMOUS);
    static uint64_t code_buffer_end;
    bool is_code_buffer = !inode && (vma->arg & PROT_WRITE) && (vma->arg & PROT_EXEC);
    if (is_code_buffer)
        code_buffer_end = to;
    *is_own = is_code_buffer || (from == code_buffer_end && !vma->arg) || !strcmp(name, "[heap]");
    return true;
}

static void find_own_memory(void)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    struct event_record vma;
    bool is_own;

    while (maps && own_ranges < MAPPINGS_MAX && next_mapping(maps, &vma, &is_own))
        own_memory[own_ranges++] = (struct range){ vma.addr, vma.addr + vma.len };
    if (maps)
        fclose(maps);
}

/* Cuts off `vma` what was there when the plugin was loaded. Returns false if nothing is left. An
 * older mapping that has grown at both ends leaves its upper end only. */
static bool cut_own_memory(struct event_record *vma)
{
    uint64_t from = vma->addr, to = vma->addr + vma->len;

    for (size_t i = 0; i < own_ranges; i++) {
        const struct range *own = &own_memory[i];
        if (own->to <= from || own->from >= to)
            continue;
        if (own->from <= from || own->to < to)
            from = own->to;
        else
            to = own->from;
        if (from >= to)
            return false;
    }
    vma->addr = from;
    vma->len = to - from;
    return true;
}

/* The loaded code is mapped readable but not executable: TCG translates it, nobody runs it. The
 * guest's view is what counts, so the mapping with the entry gets its PROT_EXEC back. */
static void write_initial_mappings(uint64_t entry)
{
    static struct event_record vmas[MAPPINGS_MAX];
    struct event_record vma;
    uint64_t n = 0;
    bool entry_seen = false, is_own, stack_is_low = false;
    FILE *maps = fopen("/proc/self/maps", "re");

    while (maps && n < MAPPINGS_MAX && next_mapping(maps, &vma, &is_own)) {
        bool is_low = own_ranges && vma.addr < own_memory[0].from;
        if (is_own || (stack_is_low && !is_low) || !cut_own_memory(&vma))
            continue;
        stack_is_low |= is_low && !vma.arg;
        if (entry - vma.addr < vma.len) {
            entry_seen = true;
            vma.arg |= PROT_EXEC;
        }
        vmas[n++] = vma;
    }
    if (maps)
        fclose(maps);
    if (!entry_seen) {
        dprintf(error_fd, "nestwalk-capture: the mappings at program start cannot be told from "
                          "QEMU's own; the stream is without them\n");
        return;
    }
    write_events(this_thread(), vmas, n);
}

/* They go before the accesses that are in the buffer. */
static void write_mappings_of_child(struct thread *t)
{
    uint32_t n = t->n;

    mappings_due = false;
    t->n = 0;
    write_initial_mappings(program_entry);
    t->n = n;
}

/* Called for each translation block before it first runs, one at a time (QEMU's mmap lock). */
static void on_translate(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
    static bool begun;
    size_t n = qemu_plugin_tb_n_insns(tb);

    (void)id;
    if (!begun) {
        begun = true;
        program_entry = qemu_plugin_tb_vaddr(tb);
        write_initial_mappings(program_entry);
    }
    qemu_plugin_register_vcpu_tb_exec_cb(tb, on_block, QEMU_PLUGIN_CB_NO_REGS,
                                         (void *)(uintptr_t)n);
    for (size_t i = 0; i < n; i++) {
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
        qemu_plugin_register_vcpu_mem_cb(insn, on_access, QEMU_PLUGIN_CB_NO_REGS,
                                         QEMU_PLUGIN_MEM_RW, site_of(qemu_plugin_insn_vaddr(insn)));
    }
}

/* ---- System calls that change the address space ----------------------------------------- */

static void on_syscall(qemu_plugin_id_t id, unsigned vcpu, int64_t num, uint64_t a1, uint64_t a2,
                       uint64_t a3, uint64_t a4, uint64_t a5, uint64_t a6, uint64_t a7,
                       uint64_t a8)
{
    struct thread *t = this_thread();
    const uint64_t args[6] = { a1, a2, a3, a4, a5, a6 };

    (void)id, (void)vcpu, (void)a7, (void)a8;
    memcpy(t->syscall_args, args, sizeof args);
    if (num == calls->exit || num == calls->exit_group) { /* these do not return */
        struct event_record event = {
            .op = EVENT_EXIT,
            .flags = num == calls->exit ? WHAT_THREAD : WHAT_PROCESS,
            .arg = a1,
        };
        write_events(t, &event, 1);
    } else if (num == calls->prctl && a1 == MARK_PRCTL) { /* this one fails */
        struct event_record event = { .op = EVENT_MARK, .arg = a2 };
        write_events(t, &event, 1);
    } else if (each && num == calls->execve) {
        if (stream_fd >= 0)
            flush(t);
        else
            t->n = 0;
        /* Guest addresses are ours (guest base 0). */
        follow_exec(&follow, (const char *)a1, (char *const *)a2, (char *const *)a3);
    } else if (num == calls->execve || num == calls->execveat) {
        flush(t); /* if it works, QEMU itself is replaced and the capture ends here */
        if (want_summary)
            dprintf(error_fd, "nestwalk-capture: warning: the program replaces itself by another one (exec), "
                    "which is not recorded: name that program with --follow\n");
    }
}

/* QEMU starts a thread for a clone that shares memory, and really forks for a vfork. */
static bool starts_thread(int64_t num, uint64_t flags)
{
    return num == calls->clone && (flags & CLONE_VM) && !(flags & CLONE_VFORK);
}

/* Whether a call that waits for children has just found one that ended, not one that stopped. Of
 * waitid only the result is seen: with WNOHANG it says nothing. */
static bool child_ended(int64_t num, const uint64_t *args, int64_t result)
{
    uint64_t options = num == calls->wait4 ? args[2] : args[3];

    if (num == calls->wait4)
        return result > 0 && !(options & (WUNTRACED | WCONTINUED));
    return (options & WEXITED) && !(options & (WSTOPPED | WCONTINUED | WNOHANG | WNOWAIT));
}

/* ---- What the kernel copies for the program ---------------------------------------------- */

/*
 * A buffer that `read` fills may be touched for the first time by the kernel. The converter knows which pages are
 * new; here only those that were reported since memory was last taken away are left out, so that a buffer that is
 * used again and again costs one event. A page that is forgotten is merely reported again.
 */
#define REPORTED_PAGES 1024u
#define PAGE_SHIFT 12
#define VECTORS_MAX 1024u /* Linux's UIO_MAXIOV */

static _Atomic uint64_t reported[REPORTED_PAGES]; /* page << 16 | store << 15 | the epoch's low 15 bits */
static _Atomic uint64_t mapping_epoch = 1;

/* Whether a page of the range is not known to have been reported. */
static bool is_news(uint64_t addr, uint64_t len, enum copy_direction direction)
{
    uint64_t epoch = atomic_load_explicit(&mapping_epoch, memory_order_relaxed) & 0x7fff;
    bool news = false;

    for (uint64_t page = addr >> PAGE_SHIFT; page <= (addr + len - 1) >> PAGE_SHIFT; page++) {
        _Atomic uint64_t *entry = &reported[page % REPORTED_PAGES];
        uint64_t seen = atomic_load_explicit(entry, memory_order_relaxed), wanted = page << 16 | epoch;
        if (seen == (wanted | 1 << 15) || (seen == wanted && direction == COPY_FROM_USER))
            continue;
        if (direction == COPY_TO_USER)
            wanted |= 1 << 15;
        atomic_store_explicit(entry, wanted, memory_order_relaxed);
        news = true;
    }
    return news;
}

static void report_copy(struct thread *t, uint64_t addr, uint64_t len, enum copy_direction direction)
{
    struct event_record event = { .op = EVENT_COPY, .flags = direction, .addr = addr, .len = len };

    if (len && is_news(addr, len, direction))
        write_events(t, &event, 1);
}

/* Reads the guest's memory (guest base 0), which another thread may have unmapped since the call. */
static bool peek(void *to, uint64_t from, size_t size)
{
    struct iovec local = { to, size }, remote = { (void *)from, size };

    return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)size;
}

/* The first `len` bytes of a vector of `count` buffers. */
static void report_vector(struct thread *t, uint64_t vector, uint64_t count, uint64_t len,
                          enum copy_direction direction)
{
    struct { uint64_t addr, len; } part;

    for (uint64_t i = 0; i < count && i < VECTORS_MAX && len; i++) {
        if (!peek(&part, vector + i * sizeof part, sizeof part))
            return;
        uint64_t done = part.len < len ? part.len : len;
        report_copy(t, part.addr, done, direction);
        len -= done;
    }
}

/* The kernel's struct msghdr of 64-bit machines, as far as the buffers go. */
struct message {
    uint64_t name, name_len, vector, count;
};

/* A call that returned `len`: that many bytes were copied, if it is one that copies. Of a datagram that was cut off
 * (MSG_TRUNC) it returns the whole length. */
static void on_copy(struct thread *t, int64_t num, const uint64_t *a, uint64_t len)
{
    const struct calls *c = calls;
    struct message message;

    if (num == c->read || num == c->pread64 || num == c->recvfrom)
        report_copy(t, a[1], len < a[2] ? len : a[2], COPY_TO_USER);
    else if (num == c->write || num == c->pwrite64 || num == c->sendto)
        report_copy(t, a[1], len < a[2] ? len : a[2], COPY_FROM_USER);
    else if (num == c->getrandom)
        report_copy(t, a[0], len < a[1] ? len : a[1], COPY_TO_USER);
    else if (num == c->readv || num == c->preadv || num == c->preadv2)
        report_vector(t, a[1], a[2], len, COPY_TO_USER);
    else if (num == c->writev || num == c->pwritev || num == c->pwritev2)
        report_vector(t, a[1], a[2], len, COPY_FROM_USER);
    else if ((num == c->recvmsg || num == c->sendmsg) && peek(&message, a[1], sizeof message))
        report_vector(t, message.vector, message.count, len, num == c->recvmsg ? COPY_TO_USER : COPY_FROM_USER);
}

#ifndef MADV_POPULATE_READ /* Linux 5.14, glibc 2.35 */
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

/* Of a populated mapping one record says so much: a reader takes no longer copies. */
#define POPULATED_MAX (1ull << 30)

/* Pages that the kernel faults in before a call returns (mm_populate()): for the trace as if it copied to or from them. */
static void report_populated(struct thread *t, uint64_t addr, uint64_t len, enum copy_direction direction)
{
    for (uint64_t done = 0; done < len; done += POPULATED_MAX) {
        uint64_t left = len - done;
        struct event_record event = { .op = EVENT_COPY, .flags = direction, .addr = addr + done,
                                      .len = left < POPULATED_MAX ? left : POPULATED_MAX };
        write_events(t, &event, 1);
    }
}

/* How much of a mapping has something behind it: no page beyond a file's end can be had. The program's descriptors are
 * this process's own. */
static uint64_t backed(const uint64_t *mmap_args)
{
    uint64_t len = mmap_args[1], offset = mmap_args[5];
    struct stat file;

    if (mmap_args[3] & MAP_ANONYMOUS || fstat((int)mmap_args[4], &file) || !S_ISREG(file.st_mode))
        return len;
    uint64_t size = ((uint64_t)file.st_size + (1 << PAGE_SHIFT) - 1) >> PAGE_SHIFT << PAGE_SHIFT;
    uint64_t rest = size > offset ? size - offset : 0;
    return rest < len ? rest : len;
}

static void on_populate(struct thread *t, int64_t num, const uint64_t *a, uint64_t result)
{
    if (num == calls->mmap) {
        bool populates = (a[3] & (MAP_POPULATE | MAP_NONBLOCK)) == MAP_POPULATE || a[3] & MAP_LOCKED;
        /* As populate_vma_page_range() does: a private page that may be written gets its copy at once. */
        bool stores = a[2] & PROT_WRITE && (a[3] & MAP_TYPE) == MAP_PRIVATE;
        if (populates && a[2] & (PROT_READ | PROT_WRITE | PROT_EXEC))
            report_populated(t, result, backed(a), stores ? COPY_TO_USER : COPY_FROM_USER);
    } else if (num == calls->madvise && (a[2] == MADV_POPULATE_READ || a[2] == MADV_POPULATE_WRITE)) {
        report_populated(t, a[0], a[1], a[2] == MADV_POPULATE_WRITE ? COPY_TO_USER : COPY_FROM_USER);
    }
}

/* Whether pages may lose what they have by it, so that a copy there is news again. */
static bool takes_memory(const struct event_record *event)
{
    switch (event->op) {
    case EVENT_MMAP:
        return event->arg >> 32 & MAP_FIXED;
    case EVENT_BRK:
        return event->result < event->arg;
    case EVENT_CLONE:
        return event->flags == WHAT_PROCESS; /* the next store to each page copies it */
    default:
        return event->op == EVENT_MUNMAP || event->op == EVENT_MREMAP || event->op == EVENT_MADVISE;
    }
}

static void on_syscall_return(qemu_plugin_id_t id, unsigned vcpu, int64_t num, int64_t result)
{
    struct thread *t = this_thread();
    const uint64_t *a = t->syscall_args;
    struct event_record event = { .addr = a[0], .len = a[1], .result = result };

    (void)id, (void)vcpu;
    if (result < 0 && result > -4096) /* failed: nothing changed */
        return;
    if (num == calls->mmap) {
        event.op = EVENT_MMAP;
        event.arg = (a[2] & 0xffffffffu) | a[3] << 32;
    } else if (num == calls->munmap) {
        event.op = EVENT_MUNMAP;
    } else if (num == calls->brk) {
        event.op = EVENT_BRK;
        event.len = 0;
        event.arg = t->break_now;
        t->break_now = result;
    } else if (num == calls->mremap) {
        event.op = EVENT_MREMAP;
        event.arg = a[2];
        event.flags = a[3];
    } else if (num == calls->mprotect) {
        event.op = EVENT_MPROTECT;
        event.arg = a[2];
    } else if (num == calls->madvise) {
        event.op = EVENT_MADVISE;
        event.arg = a[2];
    } else if (num == calls->clone || num == calls->fork || num == calls->vfork) {
        event.op = EVENT_CLONE;
        event.addr = event.len = 0;
        event.arg = num == calls->clone ? a[0] : 0;
        event.flags = starts_thread(num, a[0]) ? WHAT_THREAD : WHAT_PROCESS;
        if (event.flags == WHAT_PROCESS)
            __atomic_fetch_add(&children, 1, __ATOMIC_RELAXED);
    } else if (num == calls->wait4 || num == calls->waitid) {
        if (!child_ended(num, a, result))
            return;
        event.op = EVENT_CHILD_EXIT;
        event.addr = event.len = 0;
        event.result = num == calls->wait4 ? result : a[0] == P_PID ? (int64_t)a[1] : 0;
    } else {
        on_copy(t, num, a, result);
        return;
    }
    if (takes_memory(&event))
        atomic_fetch_add_explicit(&mapping_epoch, 1, memory_order_relaxed);
    write_events(t, &event, 1);
    on_populate(t, num, a, result);
}

/* ---- Start and end ---------------------------------------------------------------------- */

/* The program has ended and no guest thread runs any more. */
static void on_exit_of_program(qemu_plugin_id_t id, void *data)
{
    (void)id, (void)data;
    if (stopped)
        return;
    accesses_max = UINT64_MAX; /* the end is near anyway: do not cut other threads short */
    pthread_mutex_lock(&lock);
    for (struct thread *t = threads; t; t = t->next)
        flush_locked(t);
    pthread_mutex_unlock(&lock);
    summarise();
}

/* Moves a descriptor out of the program's way: programs close descriptors they did not open, and
 * reuse low numbers. */
static int out_of_the_way(int fd)
{
    int high = fcntl(fd, F_DUPFD_CLOEXEC, HIGH_FD);

    return high < 0 ? fd : high;
}

/* What a program under a driver does before it executes another one. */
static void on_syscall_of_driver(qemu_plugin_id_t id, unsigned vcpu, int64_t num, uint64_t a1, uint64_t a2,
                                 uint64_t a3, uint64_t a4, uint64_t a5, uint64_t a6, uint64_t a7, uint64_t a8)
{
    (void)id, (void)vcpu, (void)a6, (void)a7, (void)a8;
    /* Guest addresses are ours (guest base 0). Of execveat only what execve can do as well is followed. */
    if (num == calls->execve)
        follow_exec(&follow, (const char *)a1, (char *const *)a2, (char *const *)a3);
    else if (num == calls->execveat && (int)a1 == AT_FDCWD && !a5)
        follow_exec(&follow, (const char *)a2, (char *const *)a3, (char *const *)a4);
}

/* The -plugin argument of what a recorded program executes, with each=. */
static bool prepare_for_each(void)
{
    static char recording[3 * 4096];
    Dl_info own;

    if (!dladdr(&follow, &own))
        return false;
    size_t used = snprintf(recording, sizeof recording, "%s,each=%s,summary=%s%s%s", own.dli_fname, each,
                           want_summary ? "on" : "off", log_path ? ",log=" : "", log_path ? log_path : "");
    follow.recording = recording;
    return used < sizeof recording;
}

/* The two -plugin arguments that programs under a driver are run with. */
static bool prepare_to_follow(const char *out)
{
    static char driving[5 * 4096], recording[3 * 4096];
    char max[32] = "";
    Dl_info own;

    if (!out || !follow.claim || !follow.seen || !dladdr(&follow, &own))
        return false;
    if (accesses_max != UINT64_MAX)
        snprintf(max, sizeof max, ",max=%lu", accesses_max);
    const char *summary = want_summary ? "on" : "off";
    size_t used = snprintf(recording, sizeof recording, "%s,out=%s,summary=%s%s%s%s", own.dli_fname, out, summary, max,
                           log_path ? ",log=" : "", log_path ? log_path : "");
    size_t more = snprintf(driving, sizeof driving, "%s,follow=%s,claim=%s,seen=%s", recording, follow.name,
                           follow.claim, follow.seen);
    follow.recording = recording;
    follow.driving = driving;
    return used < sizeof recording && more < sizeof driving;
}

static bool parse_number(const char *text, uint64_t *number)
{
    char *end;

    errno = 0;
    *number = strtoull(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end && !errno;
}

static bool parse_argument(char *argument, char **out, uint64_t *fd, bool *check)
{
    char *value = strchr(argument, '=');

    if (!value)
        return false;
    *value++ = 0;
    if (!strcmp(argument, "out")) {
        *out = value;
        return *value;
    }
    if (!strcmp(argument, "fd"))
        return parse_number(value, fd) && *fd <= INT32_MAX;
    if (!strcmp(argument, "max"))
        return parse_number(value, &accesses_max);
    if (!strcmp(argument, "follow"))
        return *(follow.name = value);
    if (!strcmp(argument, "each"))
        return *(each = value);
    if (!strcmp(argument, "log"))
        return *(log_path = value);
    if (!strcmp(argument, "claim"))
        return *(follow.claim = value);
    if (!strcmp(argument, "seen"))
        return *(follow.seen = value);
    if (!strcmp(argument, "summary"))
        return (want_summary = !strcmp(value, "on")) || !strcmp(value, "off");
    if (!strcmp(argument, "check"))
        return (*check = !strcmp(value, "on")) || !strcmp(value, "off");
    return false;
}

static int refuse(const char *what, const char *detail)
{
    dprintf(error_fd, "nestwalk-capture: %s%s%s\n", what, detail ? ": " : "", detail ? detail : "");
    return -1;
}

static bool open_stream(const char *out, int fd)
{
    int low = out ? open(out, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644) : fd;

    if (low < 0 || fcntl(low, F_GETFD) < 0)
        return false;
    stream_fd = out_of_the_way(low);
    if (stream_fd != low)
        close(low);
    fcntl(stream_fd, F_SETPIPE_SZ, 1 << 20); /* fewer switches to the reader; fine if refused */
    return true;
}

QEMU_PLUGIN_EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc,
                                           char **argv)
{
    char *out = NULL;
    uint64_t fd = UINT64_MAX;
    bool check = false;

    error_fd = out_of_the_way(2);
    if (info->version.min > QEMU_PLUGIN_API || info->version.cur < QEMU_PLUGIN_API)
        return refuse("this QEMU's plugin interface is not the one that the plugin was built for", NULL);
    calls = info->system_emulation ? NULL : calls_of(info->target_name);
    if (!calls)
        return refuse("only user-mode QEMU for x86_64, aarch64 and riscv64 is supported, not", info->target_name);
    follow.machine = calls->machine;
    for (int i = 0; i < argc; i++)
        if (!parse_argument(argv[i], &out, &fd, &check))
            return refuse("plugin argument not understood", argv[i]);
    if (log_path) {
        int log_fd = open(log_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
        if (log_fd < 0)
            return refuse(log_path, strerror(errno));
        close(error_fd);
        error_fd = out_of_the_way(log_fd);
        close(log_fd);
    }
    if (check) {
        printf("nestwalk-capture: plugin interface %d\n", QEMU_PLUGIN_API);
        fflush(stdout);
        _exit(0);
    }
    if (follow.name) {
        if (!prepare_to_follow(out))
            return refuse("follow needs out=, claim= and seen=, not too long", NULL);
        qemu_plugin_register_vcpu_syscall_cb(id, on_syscall_of_driver);
        return 0;
    }
    bool given = out || fd != UINT64_MAX;
    if ((out && fd != UINT64_MAX) || (!given && !each))
        return refuse("the plugin needs one of out=PATH and fd=N, or each=PREFIX", NULL);
    if (each && !prepare_for_each())
        return refuse("each=PREFIX is too long", NULL);
    if (given && !open_stream(out, (int)fd))
        return refuse(out ? out : "the descriptor given with fd=", strerror(errno));

    find_own_memory();
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translate);
    qemu_plugin_register_vcpu_syscall_cb(id, on_syscall);
    qemu_plugin_register_vcpu_syscall_ret_cb(id, on_syscall_return);
    qemu_plugin_register_vcpu_exit_cb(id, on_vcpu_exit);
    qemu_plugin_register_atexit_cb(id, on_exit_of_program, NULL);
    return 0;
}
