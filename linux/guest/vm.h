/* SPDX-License-Identifier: GPL-2.0 */
/* A KVM virtual machine with vCPUs in 64-bit mode: what both VMMs need. */
#ifndef NESTWALK_GUEST_VM_H
#define NESTWALK_GUEST_VM_H

#include "common.h"
#include <linux/kvm.h>
#include <sys/ioctl.h>

#define KVM_CPUID_FEATURES	0x40000001
#define KVM_FEATURE_HGPT	18
#define PAGE_TABLES		0x9000UL	/* PML4, PDPT, PD: the first GiB, 1:1 */
#define GDT			0x500UL
#define SLOTS			8

struct cpuid {
	struct kvm_cpuid2 head;
	struct kvm_cpuid_entry2 entry[200];
};

/* As KVM was told. */
struct slot {
	uint64_t gpa;
	char *hva;
	size_t size;
	unsigned int flags;
};

struct vm {
	int kvm, fd;
	char *ram;
	size_t size;
	struct slot slot[SLOTS];
	struct cpuid cpuid;
};

static inline void vm_slot(struct vm *vm, unsigned int slot, uint64_t gpa, void *hva, size_t size,
			   unsigned int flags)
{
	struct kvm_userspace_memory_region r = {
		.slot = slot, .flags = flags, .guest_phys_addr = gpa, .memory_size = size,
		.userspace_addr = (uintptr_t)hva,
	};

	if (ioctl(vm->fd, KVM_SET_USER_MEMORY_REGION, &r))
		die("KVM_SET_USER_MEMORY_REGION");
	vm->slot[slot] = (struct slot){ gpa, hva, size, flags };
}

/* RAM from guest address 0, on a 2 MiB boundary of the host; page tables and GDT for boot. */
static inline void vm_create(struct vm *vm, size_t size, bool irqchip)
{
	uint64_t *table, *gdt;
	char *p;
	int i;

	vm->kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	if (vm->kvm < 0)
		die("/dev/kvm");
	vm->fd = ioctl(vm->kvm, KVM_CREATE_VM, 0);
	if (vm->fd < 0)
		die("KVM_CREATE_VM");
	ioctl(vm->fd, KVM_SET_TSS_ADDR, 0xfffbd000UL);
	if (irqchip) {
		struct kvm_pit_config pit = { 0 };

		if (ioctl(vm->fd, KVM_CREATE_IRQCHIP, 0) || ioctl(vm->fd, KVM_CREATE_PIT2, &pit))
			die("KVM_CREATE_IRQCHIP");
	}
	p = mmap(NULL, size + HUGE, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		die("mmap");
	vm->ram = (char *)(((uintptr_t)p + HUGE - 1) & ~(HUGE - 1));
	vm->size = size;
	vm_slot(vm, 0, 0, vm->ram, size, 0);

	table = (uint64_t *)(vm->ram + PAGE_TABLES);
	table[0] = (PAGE_TABLES + 0x1000) | 3;
	table[512] = (PAGE_TABLES + 0x2000) | 3;
	for (i = 0; i < 512; i++)
		table[1024 + i] = (uint64_t)i << 21 | 0x83;
	gdt = (uint64_t *)(vm->ram + GDT);
	gdt[2] = 0x00af9b000000ffffULL;
	gdt[3] = 0x00cf93000000ffffULL;

	vm->cpuid.head.nent = 200;
	if (ioctl(vm->kvm, KVM_GET_SUPPORTED_CPUID, &vm->cpuid))
		die("KVM_GET_SUPPORTED_CPUID");
}

static inline struct kvm_cpuid_entry2 *vm_cpuid(struct vm *vm, uint32_t function)
{
	unsigned int i;

	for (i = 0; i < vm->cpuid.head.nent; i++)
		if (vm->cpuid.entry[i].function == function)
			return &vm->cpuid.entry[i];
	return NULL;
}

/* Every vCPU is a socket of its own: no topology to describe. */
static inline int vm_vcpu(struct vm *vm, unsigned int id)
{
	struct cpuid cpuid = vm->cpuid;
	int fd = ioctl(vm->fd, KVM_CREATE_VCPU, id);
	unsigned int i;

	if (fd < 0)
		die("KVM_CREATE_VCPU");
	for (i = 0; i < cpuid.head.nent; i++) {
		struct kvm_cpuid_entry2 *e = &cpuid.entry[i];

		switch (e->function) {
		case 1:
			e->ecx |= 1U << 31;			/* under a hypervisor */
			e->ebx = (e->ebx & 0xffff) | 1U << 16 | id << 24;
			e->edx &= ~(1U << 28);
			break;
		case 0xb: case 0x1f:
			e->eax = e->ebx = e->ecx = 0;
			e->edx = id;
			break;
		case 0x80000008:
			e->ecx = 0;
			break;
		case 0x8000001e:
			e->eax = id;
			e->ebx = e->ecx = 0;
			break;
		}
	}
	if (ioctl(fd, KVM_SET_CPUID2, &cpuid))
		die("KVM_SET_CPUID2");
	return fd;
}

static inline void vcpu_long_mode(int fd, uint64_t rip, uint64_t rsi)
{
	struct kvm_segment code = {
		.limit = ~0u, .selector = 0x10, .type = 11, .present = 1, .s = 1, .l = 1, .g = 1,
	}, data = {
		.limit = ~0u, .selector = 0x18, .type = 3, .present = 1, .db = 1, .s = 1, .g = 1,
	};
	struct kvm_regs regs = { .rip = rip, .rsi = rsi, .rflags = 2, .rsp = 0x8ff0 };
	struct kvm_sregs s;

	if (ioctl(fd, KVM_GET_SREGS, &s))
		die("KVM_GET_SREGS");
	s.cs = code;
	s.ds = s.es = s.ss = s.fs = s.gs = data;
	s.gdt.base = GDT;
	s.gdt.limit = 31;
	s.cr3 = PAGE_TABLES;
	s.cr4 = 0x20;
	s.cr0 = 0x80050033;
	s.efer = 0x500;
	if (ioctl(fd, KVM_SET_SREGS, &s) || ioctl(fd, KVM_SET_REGS, &regs))
		die("KVM_SET_REGS");
}

static inline struct kvm_run *vcpu_run_area(struct vm *vm, int fd)
{
	int size = ioctl(vm->kvm, KVM_GET_VCPU_MMAP_SIZE, 0);
	struct kvm_run *run = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (run == MAP_FAILED)
		die("mmap vcpu");
	return run;
}

static inline long vm_stat(struct vm *vm, const char *name)
{
	char path[128], text[32] = "";
	int fd, n;

	snprintf(path, sizeof(path), "/sys/kernel/debug/kvm/%d-%d/%s", getpid(), vm->fd, name);
	fd = open(path, O_RDONLY);
	if (fd < 0)
		return -1;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	return n > 0 ? strtol(text, NULL, 10) : -1;
}

/* kB of a smaps key summed over the mappings that overlap the guest's RAM. */
static inline long vm_smaps(struct vm *vm, const char *key)
{
	unsigned long lo = (uintptr_t)vm->ram, hi = lo + vm->size, start, end, kb, sum = 0;
	FILE *f = fopen("/proc/self/smaps", "r");
	size_t len = strlen(key);
	bool inside = false;
	char line[256];

	if (!f)
		return -1;
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2 && strchr(line, '-') < strchr(line, ' '))
			inside = start < hi && end > lo;
		else if (inside && !strncmp(line, key, len) && line[len] == ':' &&
			 sscanf(line + len + 1, "%lu", &kb) == 1)
			sum += kb;
	}
	fclose(f);
	return sum;
}

#endif
