/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Nestwalk's plugin for whole guests: QEMU x86-64 system mode, TCG.
 *
 *   qemu-system-x86_64 ... -plugin vmtrace.so,control=FILE,out=FIFO[,always=on]
 *
 * It writes the data accesses of one process, by user and by kernel code, with gva and frame, as a
 * stream (vmtrace.h). The process is known by its CR3, which Nestwalk puts into the control block;
 * before that the plugin counts there what runs in which address space. Accesses are instrumented
 * from the moment that recording is asked for; with always=on from the beginning, so that a marker
 * in the program (nopl 0x50544d31(%rax,%rax,1)) begins and ends the recording to the instruction.
 *
 * A vCPU is a host thread, and its state is used by that thread only. The per-access path takes no
 * lock; full buffers are written under one.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "cr3.h"
#include "qemu_api.h"
#include "vmtrace.h"

EXPORT int qemu_plugin_version = PLUGIN_VERSION;

#define VCPUS_MAX 1024
#define BLOCK_RECORDS 16384u /* 256 KiB: fits a core's L2 cache */
#define CR3_ADDRESS 0x000ffffffffff000ull
#define CR4_LA57 (1u << 12)
#define PAGE_SHIFT 12

/* An instruction that may access memory. */
struct site {
    uint64_t pc;
    uint64_t id; /* in its place in a record */
    _Atomic uint64_t memo; /* 0: none yet; see size_and_store() */
    struct site *next; /* in its hash bucket */
};

struct vcpu {
    bool stale;     /* CR3 may have changed */
    bool recording; /* the process that is recorded runs here */
    uint32_t n;     /* records in the buffer */
    uint32_t levels; /* of the page tables of that process */
    uint64_t kernel_records;
    uint64_t instructions[2]; /* user, kernel; of the process */
    uint64_t at_last[2];      /* ... at its last record of that mode */
    uint64_t at_block[2];     /* ... at the last block */
    struct space *space;
    struct record *records;
};

static struct vcpu vcpus[VCPUS_MAX];
static struct control *control;
static enum cr3_source source;
static int stream = -1;
static bool always, copies_data;
static uint64_t seen_command; /* that has been acted upon */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* the stream, and the table of spaces */

#define SHARED_READ(field) __atomic_load_n(&control->field, __ATOMIC_ACQUIRE)
#define SHARED_WRITE(field, value) __atomic_store_n(&control->field, value, __ATOMIC_RELEASE)

/* ---- The stream ------------------------------------------------------------------------ */

static void fail(int error)
{
    SHARED_WRITE(failure, error);
    SHARED_WRITE(state, STATE_FAILED);
}

static bool write_all(const void *data, size_t size)
{
    for (const char *at = data; size;) {
        ssize_t done = write(stream, at, size);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0) {
            fail(errno);
            return false;
        }
        at += done;
        size -= done;
    }
    return true;
}

static void flush(unsigned number)
{
    struct vcpu *v = &vcpus[number];
    struct block_header header = { .magic = BLOCK_MAGIC, .vcpu = number, .n = v->n, .levels = v->levels };

    if (!v->n)
        return;
    for (int mode = 0; mode < 2; mode++) {
        header.instructions[mode] = v->instructions[mode] - v->at_block[mode];
        v->at_block[mode] = v->instructions[mode];
    }
    pthread_mutex_lock(&lock);
    if (SHARED_READ(state) == STATE_RECORDING &&
        write_all(&header, sizeof header) && write_all(v->records, v->n * sizeof *v->records)) {
        control->accesses += v->n;
        control->kernel += v->kernel_records;
        if (control->accesses >= control->max)
            SHARED_WRITE(state, STATE_FULL);
    }
    pthread_mutex_unlock(&lock);
    v->n = 0;
    v->kernel_records = 0;
}

/* The vCPU waits here until Nestwalk stops the guest, so that little changes before it looks at the
 * page tables; not for ever, should Nestwalk be gone. */
static void hold(void)
{
    const struct timespec nap = { .tv_nsec = 100000 };

    for (int i = 0; i < 100000 && SHARED_READ(command) == COMMAND_RECORD; i++)
        nanosleep(&nap, NULL);
}

/* ---- Address spaces -------------------------------------------------------------------- */

static struct space *space_of(uint64_t cr3)
{
    static struct space rest; /* when the table is full */
    struct space *found = &rest;

    pthread_mutex_lock(&lock);
    for (unsigned i = 0, at = (cr3 >> PAGE_SHIFT) * 0x9e3779b1u; i < SPACES; i++, at++) {
        struct space *one = &control->spaces[at % SPACES];
        if (!one->cr3)
            __atomic_store_n(&one->cr3, cr3, __ATOMIC_RELEASE);
        if (one->cr3 == cr3) {
            found = one;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static bool is_target(const struct vcpu *v)
{
    uint64_t mask = SHARED_READ(target_mask);

    return SHARED_READ(state) == STATE_RECORDING && (v->space->cr3 & mask) == (control->target & mask);
}

static void look(unsigned number)
{
    struct vcpu *v = &vcpus[number];
    uint64_t cr3 = cr3_now(number) & CR3_ADDRESS;

    v->stale = false;
    if (!v->space || v->space->cr3 != cr3)
        v->space = space_of(cr3);
    v->recording = is_target(v);
    if (v->recording)
        v->levels = cr4_now(number) & CR4_LA57 ? 5 : 4;
    if (v->recording && !v->records) {
        v->records = malloc(BLOCK_RECORDS * sizeof *v->records);
        if (!v->records) {
            fail(ENOMEM);
            v->recording = false;
        }
    }
}

static void look_everywhere(void)
{
    for (unsigned i = 0; i < VCPUS_MAX; i++)
        vcpus[i].stale = true;
}

/* ---- Callbacks of vCPUs ---------------------------------------------------------------- */

static void install(plugin_id id);
static plugin_id own_id;

/* Nestwalk has asked for something. One vCPU acts on it. */
static void obey(uint64_t command)
{
    pthread_mutex_lock(&lock);
    bool mine = seen_command != command;
    seen_command = command;
    pthread_mutex_unlock(&lock);
    if (!mine)
        return;
    if (command == COMMAND_RECORD && SHARED_READ(state) == STATE_RUNNING) {
        SHARED_WRITE(state, STATE_RECORDING);
        look_everywhere();
        if (!always)
            qemu_plugin_reset(own_id, install); /* translates all code anew */
    }
}

/* A block of code begins. `data`: instructions << 1 | kernel. */
static void on_block(unsigned number, void *data)
{
    struct vcpu *v = &vcpus[number];
    uint64_t count = (uintptr_t)data >> 1, mode = (uintptr_t)data & 1;
    uint64_t command = SHARED_READ(command);

    if (__builtin_expect(command != seen_command, 0))
        obey(command);
    if (__builtin_expect(v->stale, 0))
        look(number);
    v->space->instructions[mode] += count;
    if (v->recording)
        v->instructions[mode] += count;
}

static void on_cr3(unsigned number, void *data)
{
    (void)data;
    vcpus[number].stale = true;
}

static void on_mark(unsigned number, void *data)
{
    struct vcpu *v = &vcpus[number];

    (void)data;
    look(number);
    if (!SHARED_READ(marks))
        SHARED_WRITE(marked, v->space->cr3);
    SHARED_WRITE(marks, SHARED_READ(marks) + 1);
    if (!always)
        return;
    if (SHARED_READ(state) == STATE_RUNNING) {
        control->target = v->space->cr3;
        seen_command = COMMAND_RECORD;
        SHARED_WRITE(command, COMMAND_RECORD);
        SHARED_WRITE(state, STATE_RECORDING);
        look_everywhere();
    } else if (SHARED_READ(state) == STATE_RECORDING && v->recording) {
        flush(number);
        v->recording = false;
        SHARED_WRITE(state, STATE_FULL);
        hold();
    }
}

/*
 * Size and store bit of an access, in their places. QEMU's functions say them at the price of two
 * calls; an instruction nearly always has the same answer, which is kept beside its question:
 * question << 32 | answer, one word, since vCPUs share sites.
 */
static inline uint64_t size_and_store(struct site *site, meminfo info)
{
    uint64_t memo = __atomic_load_n(&site->memo, __ATOMIC_RELAXED);

    if (!memo || memo >> 32 != info) {
        uint64_t answer = 8u | qemu_plugin_mem_is_store(info) | (qemu_plugin_mem_size_shift(info) & 3) << 1;
        if (qemu_plugin_mem_size_shift(info) > 3)
            answer = 8u | qemu_plugin_mem_is_store(info) | 3u << 1;
        memo = (uint64_t)info << 32 | answer;
        __atomic_store_n(&site->memo, memo, __ATOMIC_RELAXED);
    }
    return (memo & 7) << RECORD_STORE_SHIFT;
}

static inline void note(unsigned number, meminfo info, uint64_t vaddr, struct site *site, unsigned mode)
{
    struct vcpu *v = &vcpus[number];
    struct hwaddr *hw = qemu_plugin_get_hwaddr(info, vaddr);
    uint64_t since = v->instructions[mode] - v->at_last[mode], where, frame = FRAME_UNKNOWN;

    v->at_last[mode] = v->instructions[mode];
    where = (vaddr & RECORD_GVA_MASK) | size_and_store(site, info) | (mode ? RECORD_KERNEL : 0);
    if (hw && qemu_plugin_hwaddr_is_io(hw)) {
        where |= RECORD_IO;
    } else if (hw) {
        frame = qemu_plugin_hwaddr_phys_addr(hw) >> PAGE_SHIFT;
        if (frame > FRAME_UNKNOWN)
            frame = FRAME_UNKNOWN;
    }
    v->records[v->n++] = (struct record){
        .where = where,
        .what = frame | site->id | (since < SINCE_MAX ? since : SINCE_MAX) << SINCE_SHIFT,
    };
    v->kernel_records += mode;
    if (v->n == BLOCK_RECORDS) {
        flush(number);
        if (SHARED_READ(state) != STATE_RECORDING) {
            v->recording = false;
            look_everywhere();
            hold();
        }
    }
}

static void on_user_access(unsigned number, meminfo info, uint64_t vaddr, void *site)
{
    if (vcpus[number].recording)
        note(number, info, vaddr, site, 0);
}

static void on_kernel_access(unsigned number, meminfo info, uint64_t vaddr, void *site)
{
    if (vcpus[number].recording)
        note(number, info, vaddr, site, 1);
}

/* ---- Translation ----------------------------------------------------------------------- */

/* One number an instruction address, however often QEMU translates it. */
static struct site *site_of(uint64_t pc)
{
    static struct site *buckets[1u << 16];
    static uint32_t sites;
    static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
    struct site **bucket = &buckets[(pc * 0x9e3779b97f4a7c15u) >> 48], *s;

    pthread_mutex_lock(&guard);
    for (s = *bucket; s && s->pc != pc; s = s->next)
        ;
    if (!s && (s = calloc(1, sizeof *s))) {
        s->pc = pc;
        s->id = (uint64_t)(sites < SITE_MAX ? sites++ : SITE_MAX) << SITE_SHIFT;
        s->next = *bucket;
        *bucket = s;
    }
    pthread_mutex_unlock(&guard);
    if (!s)
        abort(); /* as QEMU itself does without memory */
    return s;
}

/* The same function of QEMU as of VERSION_COPIES_DATA. */
extern __typeof__(size_t(const struct insn *, void *, size_t)) copy_insn_data __asm__("qemu_plugin_insn_data");

static size_t bytes_of(const struct insn *insn, unsigned char *to, size_t room)
{
    size_t size = qemu_plugin_insn_size(insn);

    if (size > room)
        size = room;
    if (copies_data)
        return copy_insn_data(insn, to, size);
    memcpy(to, qemu_plugin_insn_data(insn), size);
    return size;
}

/* mov to cr3: 0f 22, with a register in modrm's middle field that is 3; REX may come first. */
static bool sets_cr3(const unsigned char *code, size_t size)
{
    size_t at = size && (code[0] & 0xf0) == 0x40;

    return size >= at + 3 && code[at] == 0x0f && code[at + 1] == 0x22 && (code[at + 2] >> 3 & 7) == 3;
}

static const unsigned char mark[8] = { 0x0f, 0x1f, 0x84, 0x00, 0x31, 0x4d, 0x54, 0x50 };

static void on_translate(plugin_id id, struct tb *tb)
{
    size_t n = qemu_plugin_tb_n_insns(tb);
    /* The kernel is in the upper half. */
    unsigned kernel = qemu_plugin_insn_vaddr(qemu_plugin_tb_get_insn(tb, 0)) >> 63;
    bool accesses = always || SHARED_READ(state) == STATE_RECORDING;
    int registers = source == CR3_PLUGIN_API ? READ_REGISTERS : NO_REGISTERS;

    (void)id;
    qemu_plugin_register_vcpu_tb_exec_cb(tb, on_block, registers, (void *)(uintptr_t)(n << 1 | kernel));
    for (size_t i = 0; i < n; i++) {
        struct insn *insn = qemu_plugin_tb_get_insn(tb, i);
        unsigned char code[15];
        size_t size = bytes_of(insn, code, sizeof code);

        if (kernel && sets_cr3(code, size))
            qemu_plugin_register_vcpu_insn_exec_cb(insn, on_cr3, NO_REGISTERS, NULL);
        if (!kernel && size == sizeof mark && !memcmp(code, mark, size))
            qemu_plugin_register_vcpu_insn_exec_cb(insn, on_mark, registers, NULL);
        if (accesses)
            qemu_plugin_register_vcpu_mem_cb(insn, kernel ? on_kernel_access : on_user_access, NO_REGISTERS,
                                             READS_AND_WRITES, site_of(qemu_plugin_insn_vaddr(insn)));
    }
}

/* ---- Beginning and end ----------------------------------------------------------------- */

static void on_exit_of_qemu(plugin_id id, void *data)
{
    (void)id, (void)data;
    for (unsigned i = 0; i < VCPUS_MAX; i++)
        if (vcpus[i].n)
            flush(i);
    close(stream);
}

static void install(plugin_id id)
{
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translate);
    qemu_plugin_register_atexit_cb(id, on_exit_of_qemu, NULL);
}

static int refuse(const char *what, const char *name)
{
    fprintf(stderr, "nestwalk vmtrace: %s%s\n", what, name);
    return 1;
}

static int begin(const char *control_path, const char *stream_path)
{
    const struct stream_header header = { .magic = STREAM_MAGIC };
    int fd = open(control_path, O_RDWR | O_CLOEXEC);

    if (fd < 0 || (control = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED)
        return refuse("no control block at ", control_path);
    close(fd);
    stream = open(stream_path, O_WRONLY | O_CLOEXEC);
    if (stream < 0 || !write_all(&header, sizeof header))
        return refuse("cannot write ", stream_path);
    return 0;
}

EXPORT int qemu_plugin_install(plugin_id id, const struct qemu_info *info, int argc, char **argv)
{
    const char *control_path = NULL, *stream_path = NULL;

    own_id = id;
    copies_data = info->version.cur >= VERSION_COPIES_DATA;
    if (!info->system_emulation || strcmp(info->target_name, "x86_64"))
        return refuse("records guests of qemu-system-x86_64 only, not of ", info->target_name);
    for (int i = 0; i < argc; i++) {
        if (!strncmp(argv[i], "control=", 8))
            control_path = argv[i] + 8;
        else if (!strncmp(argv[i], "out=", 4))
            stream_path = argv[i] + 4;
        else if (!strcmp(argv[i], "always=on"))
            always = true;
        else
            return refuse("unknown option ", argv[i]);
    }
    if (!control_path || !stream_path)
        return refuse("control=FILE and out=FIFO are needed", "");
    if (begin(control_path, stream_path))
        return 1;
    source = cr3_begin(id);
    SHARED_WRITE(source, source);
    look_everywhere();
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a guest that nobody records any more does not go on */
    install(id);
    SHARED_WRITE(state, STATE_RUNNING);
    return 0;
}
