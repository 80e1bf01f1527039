/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What a VMM does when its guest asks for huge pages under page tables: the policy that KVM leaves to it.
 *
 * It makes huge pages with MADV_COLLAPSE, which changes no VMA, so that a guest cannot make the VMM split any, and which the kernel
 * refuses where the VMM has said MADV_NOHUGEPAGE or PR_SET_THP_DISABLE. What the kernel does not look at for that call, the VMM does:
 * whether transparent huge pages are switched off on this host. A VM has a bound, and so have all VMs of a host: each block of 2 MiB
 * is a byte of a file which the VMM holds a lock on. The lock goes when the VMM does, however it ends.
 */
#ifndef NESTWALK_GUEST_HGPT_H
#define NESTWALK_GUEST_HGPT_H

#include "vm.h"
#include <pthread.h>

#define KVM_HC_HGPT_REQ_MAP	13
#define KVM_HC_HGPT_REQ_GATHER	14
#define HGPT_CALLS		(1UL << KVM_HC_HGPT_REQ_MAP | 1UL << KVM_HC_HGPT_REQ_GATHER)
#define KVM_EOPNOTSUPP		95
#define BLOCK_PAGES		(HUGE / PAGE)
#define HGPT_CALL_BLOCKS	64	/* of one call: 128 MiB */
#define HGPT_VM_SHARE		16	/* a VM may have this part of its memory, */
#define HGPT_VM_LEAST		16	/* but no less than so many blocks */
#define HGPT_LEDGER		"/tmp/hgpt.blocks"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE		25
#endif

struct grant {
	uint64_t gpa;
	off_t place;			/* its byte in the ledger */
};

struct hgpt {
	pthread_mutex_t lock;
	struct grant *grant;
	size_t granted, most, host_most;
	int ledger;
	long mapped, gathered, failed, busy;	/* pages, pages, calls, calls */
};

/* Whether KVM lets the VMM answer these calls; if so they come, and the vCPUs made from here on have the feature bit. */
static inline bool hgpt_enable(struct vm *vm, struct hgpt *h, size_t host_blocks)
{
	struct kvm_enable_cap cap = { .cap = KVM_CAP_EXIT_HYPERCALL, .args = { HGPT_CALLS } };
	struct kvm_cpuid_entry2 *features = vm_cpuid(vm, KVM_CPUID_FEATURES);

	if ((ioctl(vm->fd, KVM_CHECK_EXTENSION, KVM_CAP_EXIT_HYPERCALL) & HGPT_CALLS) != HGPT_CALLS || !features)
		return false;
	if (ioctl(vm->fd, KVM_ENABLE_CAP, &cap))
		die("KVM_CAP_EXIT_HYPERCALL");
	features->eax |= 1U << KVM_FEATURE_HGPT;
	pthread_mutex_init(&h->lock, NULL);
	h->most = vm->size / HUGE / HGPT_VM_SHARE;
	if (h->most < HGPT_VM_LEAST)
		h->most = HGPT_VM_LEAST;
	h->host_most = host_blocks;
	h->grant = calloc(h->most, sizeof(*h->grant));
	h->ledger = open(HGPT_LEDGER, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	if (!h->grant || h->ledger < 0)
		die(HGPT_LEDGER);
	return true;
}

static inline bool thp_is_off(void)
{
	char text[64] = "";
	int fd = open("/sys/kernel/mm/transparent_hugepage/enabled", O_RDONLY);

	if (fd < 0 || read(fd, text, sizeof(text) - 1) <= 0)
		text[0] = '\0';
	if (fd >= 0)
		close(fd);
	return !text[0] || strstr(text, "[never]");
}

static inline bool ledger_lock(struct hgpt *h, short type, off_t place)
{
	struct flock one = { .l_type = type, .l_whence = SEEK_SET, .l_start = place, .l_len = 1 };

	return !fcntl(h->ledger, F_OFD_SETLK, &one);
}

/* Of the host's blocks, one that no VM has. */
static inline off_t ledger_take(struct hgpt *h)
{
	size_t place, i;

	for (place = 0; place < h->host_most; place++) {
		/* Own locks do not conflict. */
		for (i = 0; i < h->granted && h->grant[i].place != (off_t)place; i++)
			;
		if (i == h->granted && ledger_lock(h, F_WRLCK, place))
			return place;
	}
	return -1;
}

/* Returns 1 for a block granted now, 0 for one that was before, -EBUSY when a bound is reached. */
static inline int hgpt_grant(struct hgpt *h, uint64_t gpa)
{
	size_t i;
	off_t place;

	for (i = 0; i < h->granted; i++)
		if (h->grant[i].gpa == gpa)
			return 0;
	if (h->granted == h->most)
		return -EBUSY;
	place = ledger_take(h);
	if (place < 0)
		return -EBUSY;
	h->grant[h->granted++] = (struct grant){ gpa, place };
	return 1;
}

static inline void hgpt_ungrant_last(struct hgpt *h, size_t keep)
{
	while (h->granted > keep)
		ledger_lock(h, F_UNLCK, h->grant[--h->granted].place);
}

/* RAM of the guest that is whole in one slot; NULL for anything else. */
static inline char *hgpt_block(struct vm *vm, uint64_t gpa, struct slot **found)
{
	struct slot *s;

	for (s = vm->slot; s < vm->slot + SLOTS; s++)
		if (s->size && gpa >= s->gpa && gpa - s->gpa <= s->size - HUGE && s->size >= HUGE && !(s->flags & KVM_MEM_READONLY)) {
			*found = s;
			return s->hva + (gpa - s->gpa);
		}
	return NULL;
}

static inline long hgpt_collapse(char *block)
{
	/* There has to be something to collapse. The guest may be writing there. */
	__atomic_fetch_or((uint64_t *)block, 0, __ATOMIC_RELAXED);
	if (!madvise(block, HUGE, MADV_COLLAPSE))
		return 0;
	return errno == EAGAIN ? -EBUSY : -KVM_EOPNOTSUPP;
}

/* What the guest gets for its call. */
static inline long hgpt_call(struct vm *vm, struct hgpt *h, uint64_t nr, uint64_t gpa, uint64_t npages)
{
	uint64_t blocks = npages / BLOCK_PAGES, i;
	struct slot *slot;
	size_t before;
	long result = 0;
	char *block;

	if (blocks > HGPT_CALL_BLOCKS)
		return -E2BIG;
	/* All of it is looked at before any of it is changed. */
	for (i = 0; i < blocks; i++) {
		block = hgpt_block(vm, gpa + i * HUGE, &slot);
		if (!block)
			return -EFAULT;
		/* Logged memory is on its way to another host. */
		if (slot->flags & KVM_MEM_LOG_DIRTY_PAGES)
			result = -EBUSY;
		else if ((uintptr_t)block % HUGE && !result)
			result = -KVM_EOPNOTSUPP;
	}
	pthread_mutex_lock(&h->lock);
	before = h->granted;
	if (!result && thp_is_off())
		result = -KVM_EOPNOTSUPP;
	for (i = 0; i < blocks && result >= 0; i++)
		result = hgpt_grant(h, gpa + i * HUGE);
	for (i = 0; i < blocks && result >= 0; i++)
		result = hgpt_collapse(hgpt_block(vm, gpa + i * HUGE, &slot));
	if (result < 0)
		hgpt_ungrant_last(h, before);
	if (result == -EBUSY)
		h->busy++;
	else if (result)
		h->failed++;
	else if (nr == KVM_HC_HGPT_REQ_MAP)
		h->mapped += npages;
	else
		h->gathered += npages;
	pthread_mutex_unlock(&h->lock);
	return result;
}

/* KVM_EXIT_HYPERCALL: KVM has checked who calls, and that address and length are aligned. */
static inline void hgpt_exit(struct vm *vm, struct hgpt *h, struct kvm_run *run)
{
	if (run->hypercall.nr == KVM_HC_HGPT_REQ_MAP || run->hypercall.nr == KVM_HC_HGPT_REQ_GATHER)
		run->hypercall.ret = hgpt_call(vm, h, run->hypercall.nr, run->hypercall.args[0], run->hypercall.args[1]);
}

#endif
