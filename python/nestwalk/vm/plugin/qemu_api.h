/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What the plugin uses of QEMU, declared here since distributions ship no header. The interface is
 * described in QEMU's documentation, "QEMU TCG Plugins".
 */
#ifndef NESTWALK_QEMU_API_H
#define NESTWALK_QEMU_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Version 1 is understood by QEMU up to 8.2, version 2 and above by 9.0 and above. */
#ifndef PLUGIN_VERSION
#define PLUGIN_VERSION 1
#endif
/* From this version of QEMU's interface on, the bytes of an instruction are copied. */
#define VERSION_COPIES_DATA 3

#define EXPORT __attribute__((visibility("default")))

typedef uint64_t plugin_id;
typedef uint32_t meminfo;
struct tb;
struct insn;
struct hwaddr;

struct qemu_info {
    const char *target_name;
    struct {
        int min, cur;
    } version;
    bool system_emulation;
    struct {
        int vcpus, vcpus_max;
    } system;
};

enum { NO_REGISTERS = 0, READ_REGISTERS = 1 };
enum { READS_AND_WRITES = 3 };

typedef void (*vcpu_cb)(unsigned vcpu, void *data);
typedef void (*mem_cb)(unsigned vcpu, meminfo, uint64_t vaddr, void *data);

void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct tb *));
void qemu_plugin_register_vcpu_tb_exec_cb(struct tb *, vcpu_cb, int registers, void *);
void qemu_plugin_register_vcpu_insn_exec_cb(struct insn *, vcpu_cb, int registers, void *);
void qemu_plugin_register_vcpu_mem_cb(struct insn *, mem_cb, int registers, int rw, void *);
void qemu_plugin_register_atexit_cb(plugin_id, void (*)(plugin_id, void *), void *);
void qemu_plugin_reset(plugin_id, void (*)(plugin_id));

size_t qemu_plugin_tb_n_insns(const struct tb *);
struct insn *qemu_plugin_tb_get_insn(const struct tb *, size_t);
uint64_t qemu_plugin_insn_vaddr(const struct insn *);
size_t qemu_plugin_insn_size(const struct insn *);
const void *qemu_plugin_insn_data(const struct insn *); /* VERSION_COPIES_DATA: (insn, to, bytes) */

bool qemu_plugin_mem_is_store(meminfo);
unsigned qemu_plugin_mem_size_shift(meminfo);
struct hwaddr *qemu_plugin_get_hwaddr(meminfo, uint64_t vaddr);
bool qemu_plugin_hwaddr_is_io(const struct hwaddr *);
uint64_t qemu_plugin_hwaddr_phys_addr(const struct hwaddr *);

#endif
