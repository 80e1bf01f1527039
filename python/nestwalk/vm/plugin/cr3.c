/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * CR3 and CR4 of a vCPU. Plugins can read registers from QEMU 9.0 on. Before that, the functions of QEMU's
 * debugger stub serve, which builds with loadable modules export (Debian's and Fedora's are such).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "cr3.h"

#define VCPUS_MAX 1024

/* GLib's, which QEMU links. */
struct byte_array {
    uint8_t *data;
    unsigned len;
};
struct array {
    char *data;
    unsigned len;
};
struct descriptor {
    void *handle;
    const char *name, *feature;
};

static struct byte_array *(*byte_array_new)(void);
static struct byte_array *(*byte_array_set_size)(struct byte_array *, unsigned);
static __thread struct byte_array *bytes;

static struct array *(*get_registers)(void);
static int (*read_register)(void *handle, struct byte_array *);
static void *handles[2]; /* CR3, CR4: the same for all vCPUs, which are of one model */

static void *(*get_cpu)(int);
static int (*gdb_read)(void *cpu, struct byte_array *, int number);
/* In the stub's numbering of x86-64: 16 general registers, rip, eflags, 6 segments, 3 bases, cr0,
 * cr2, cr3, cr4 (QEMU's gdb-xml/i386-64bit.xml). */
enum { GDB_CR3 = 16 + 1 + 1 + 6 + 3 + 2 };

static void find_handles(uint64_t id, unsigned vcpu)
{
    struct array *found = get_registers();

    (void)id, (void)vcpu;
    for (unsigned i = 0; found && i < found->len; i++) {
        struct descriptor *one = (struct descriptor *)found->data + i;
        if (!strcmp(one->name, "cr3"))
            handles[0] = one->handle;
        else if (!strcmp(one->name, "cr4"))
            handles[1] = one->handle;
    }
}

enum cr3_source cr3_begin(uint64_t id)
{
    void (*on_vcpu)(uint64_t, void (*)(uint64_t, unsigned));

    *(void **)&byte_array_new = dlsym(RTLD_DEFAULT, "g_byte_array_new");
    *(void **)&byte_array_set_size = dlsym(RTLD_DEFAULT, "g_byte_array_set_size");
    *(void **)&get_registers = dlsym(RTLD_DEFAULT, "qemu_plugin_get_registers");
    *(void **)&read_register = dlsym(RTLD_DEFAULT, "qemu_plugin_read_register");
    *(void **)&on_vcpu = dlsym(RTLD_DEFAULT, "qemu_plugin_register_vcpu_init_cb");
    *(void **)&get_cpu = dlsym(RTLD_DEFAULT, "qemu_get_cpu");
    *(void **)&gdb_read = dlsym(RTLD_DEFAULT, "x86_cpu_gdb_read_register");
    if (!byte_array_new || !byte_array_set_size)
        return CR3_NOWHERE;
    if (get_registers && read_register && on_vcpu) {
        on_vcpu(id, find_handles);
        return CR3_PLUGIN_API;
    }
    return get_cpu && gdb_read ? CR3_FUNCTIONS : CR3_NOWHERE;
}

/* CR3 (0) or CR4 (1). */
static uint64_t read_now(unsigned vcpu, int which)
{
    uint64_t value = 0;

    if (!bytes)
        bytes = byte_array_new();
    byte_array_set_size(bytes, 0);
    if (handles[which])
        read_register(handles[which], bytes);
    else if (gdb_read)
        gdb_read(get_cpu(vcpu), bytes, GDB_CR3 + which);
    memcpy(&value, bytes->data, bytes->len < sizeof value ? bytes->len : sizeof value);
    return value;
}

uint64_t cr3_now(unsigned vcpu)
{
    return read_now(vcpu, 0);
}

uint64_t cr4_now(unsigned vcpu)
{
    return read_now(vcpu, 1);
}
