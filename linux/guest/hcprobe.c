// SPDX-License-Identifier: GPL-2.0
/*
 * hcprobe: the HugeGPT hypercalls, seen from a guest of a few bytes, and what the VMM's policy makes of them.
 *
 * The guest is VMMCALL; HLT, or a write to memory; HLT. Registers go in and come out through KVM, so that every argument can be
 * tried. Which calls KVM lets through at all is what the series' own hgpt_test holds.
 */
#include "hgpt.h"
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define CODE		0x10000UL
#define CODE_WRITE	0x10010UL
#define MAP		KVM_HC_HGPT_REQ_MAP
#define GATHER		KVM_HC_HGPT_REQ_GATHER
#define RAM		(64UL << 20)
#define SMALL		(256UL << 20)	/* a slot that the VMM wants in small pages */
#define READ_ONLY	(512UL << 20)
#define SHIFTED		(768UL << 20)	/* a slot whose blocks are none of the host's */
#define HOST_BLOCKS	10
#define VM_BLOCKS	8
#define THP		"/sys/kernel/mm/transparent_hugepage/enabled"

static struct vm vm;
static struct hgpt hgpt;
static struct kvm_run *run;
static int failed;

/* What the guest finds in RAX. */
static long guest(int vcpu, unsigned long rip, unsigned long rax, unsigned long rbx, unsigned long rcx)
{
	struct kvm_regs regs;

	if (ioctl(vcpu, KVM_GET_REGS, &regs))
		die("KVM_GET_REGS");
	regs.rip = rip;
	regs.rax = rax;
	regs.rbx = rbx;
	regs.rcx = rcx;
	if (ioctl(vcpu, KVM_SET_REGS, &regs))
		die("KVM_SET_REGS");
	do {
		if (ioctl(vcpu, KVM_RUN, 0))
			die("KVM_RUN");
		if (run->exit_reason == KVM_EXIT_HYPERCALL)
			hgpt_exit(&vm, &hgpt, run);
		else if (run->exit_reason != KVM_EXIT_HLT)
			die("exit");
	} while (run->exit_reason != KVM_EXIT_HLT);
	ioctl(vcpu, KVM_GET_REGS, &regs);
	return regs.rax;
}

static int new_vcpu(int id)
{
	int vcpu = vm_vcpu(&vm, id);

	vcpu_long_mode(vcpu, CODE, 0);
	run = vcpu_run_area(&vm, vcpu);
	return vcpu;
}

static void expect(const char *what, long value, long wanted)
{
	bool good = value == wanted;

	printf("%s - hypercall: %s", good ? "ok" : "not ok", what);
	if (!good)
		printf(" (%ld, not %ld)", value, wanted);
	putchar('\n');
	failed += !good;
}

static long mappings(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	long n = 0;
	int c;

	while ((c = fgetc(f)) != EOF)
		n += c == '\n';
	fclose(f);
	return n;
}

static void thp(const char *how)
{
	int fd = open(THP, O_WRONLY);

	if (fd < 0 || write(fd, how, strlen(how)) < 0)
		die(THP);
	close(fd);
}

static bool logged(uint64_t gpa)
{
	static uint64_t log[RAM / PAGE / 64];
	struct kvm_dirty_log l = { .slot = 0, .dirty_bitmap = log };

	if (ioctl(vm.fd, KVM_GET_DIRTY_LOG, &l))
		die("KVM_GET_DIRTY_LOG");
	return log[gpa / PAGE / 64] >> gpa / PAGE % 64 & 1;
}

/* Another VMM of this host, which has taken all blocks that were left; it ends when it is killed. */
static pid_t other_vmm(void)
{
	struct hgpt other = { .host_most = HOST_BLOCKS, .most = HOST_BLOCKS };
	uint64_t gpa = 0;
	int tell;
	pid_t pid = fork_and_await(&tell);

	if (pid < 0)
		die("the other VMM has ended");
	if (pid)
		return pid;
	other.grant = calloc(HOST_BLOCKS, sizeof(*other.grant));
	other.ledger = open(HGPT_LEDGER, O_RDWR);
	while (hgpt_grant(&other, gpa) == 1)
		gpa += HUGE;
	stay(tell);
}

#define call(nr, gpa, pages) guest(vcpu, CODE, nr, gpa, pages)

static void refused(int vcpu)
{
	long huge = vm_smaps(&vm, "AnonHugePages");

	expect("too much", call(MAP, 0, 1UL << 20), -E2BIG);
	expect("no memory there", call(MAP, 128UL << 20, 512), -EFAULT);
	expect("far beyond", call(GATHER, 1UL << 46, 512), -EFAULT);
	expect("begins inside, ends outside", call(MAP, RAM - HUGE, 1024), -EFAULT);
	expect("ROM", call(MAP, READ_ONLY, 512), -EFAULT);
	expect("memory that the VMM wants in small pages", call(MAP, SMALL, 512), -KVM_EOPNOTSUPP);
	expect("memory not aligned as the guest's", call(MAP, SHIFTED, 512), -KVM_EOPNOTSUPP);
	thp("never");
	expect("map where huge pages are off", call(MAP, 8 << 20, 512), -KVM_EOPNOTSUPP);
	expect("gather where huge pages are off", call(GATHER, 8 << 20, 512), -KVM_EOPNOTSUPP);
	thp("madvise");
	prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
	expect("map where the VMM has none", call(MAP, 8 << 20, 512), -KVM_EOPNOTSUPP);
	prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
	expect("what was refused is granted to nobody", hgpt.granted, 0);
	expect("and is not huge", vm_smaps(&vm, "AnonHugePages"), huge);
}

static void granted(int vcpu)
{
	long maps = mappings(), huge = vm_smaps(&vm, "AnonHugePages");

	expect("map", call(MAP, 8 << 20, 1024), 0);
	expect("map, last block", call(MAP, RAM - HUGE, 512), 0);
	expect("they are huge at once", vm_smaps(&vm, "AnonHugePages"), huge + 3 * 2048);
	memset(vm.ram + (16 << 20), 2, HUGE);
	expect("other memory is not", vm_smaps(&vm, "AnonHugePages"), huge + 3 * 2048);
	expect("gather", call(GATHER, 16 << 20, 512), 0);
	expect("gathered", vm_smaps(&vm, "AnonHugePages"), huge + 4 * 2048);
	expect("content is the same", vm.ram[16 << 20] == 2 && vm.ram[(18 << 20) - 1] == 2, 1);
	expect("gather again", call(GATHER, 16 << 20, 512), 0);
	expect("no mapping of the VMM was split", mappings(), maps);
}

/* Live migration: memory is logged, then no longer. */
static void migration(int vcpu)
{
	vm_slot(&vm, 0, 0, vm.ram, RAM, KVM_MEM_LOG_DIRTY_PAGES);
	expect("map while memory is logged", call(MAP, 20 << 20, 512), -EBUSY);
	logged(0);
	guest(vcpu, CODE_WRITE, 0x77, (16 << 20) + 5 * PAGE, 0);
	/* As a VMM that does not mind would do it. */
	expect("collapse meanwhile", hgpt_collapse(vm.ram + (16 << 20)), 0);
	expect("a page of a huge page is in the log", logged((16 << 20) + 5 * PAGE), 1);
	guest(vcpu, CODE_WRITE, 0x78, (16 << 20) + 6 * PAGE, 0);
	expect("and the next one, in the next log", logged((16 << 20) + 6 * PAGE), 1);
	expect("with what was written", vm.ram[(16 << 20) + 5 * PAGE] + vm.ram[(16 << 20) + 6 * PAGE], 0x77 + 0x78);
	vm_slot(&vm, 0, 0, vm.ram, RAM, 0);
	expect("map when it is logged no more", call(MAP, 20 << 20, 512), 0);
}

static void bounds(int vcpu)
{
	size_t before = hgpt.granted;
	pid_t other = other_vmm();

	expect("map when other VMs have all that the host gives", call(MAP, 24 << 20, 512), -EBUSY);
	expect("which is put off, and nothing granted", hgpt.granted, before);
	kill(other, SIGKILL);
	waitpid(other, NULL, 0);
	expect("map when they are gone", call(MAP, 24 << 20, 512), 0);
	expect("two more than this VM may have", call(MAP, 32 << 20, (VM_BLOCKS - before + 1) * 512), -EBUSY);
	expect("nothing of them is granted", hgpt.granted, before + 1);
	expect("as many as it may have", call(MAP, 32 << 20, (VM_BLOCKS - before - 1) * 512), 0);
	expect("one more", call(MAP, 48 << 20, 512), -EBUSY);
	expect("one that it has already", call(GATHER, 8 << 20, 512), 0);
}

int main(void)
{
	static const unsigned char code[] = { 0x0f, 0x01, 0xd9, 0xf4 }, write_code[] = { 0x88, 0x03, 0xf4 };
	int unaware, vcpu;
	char *shifted;
	bool enabled;

	unlink(HGPT_LEDGER);
	vm_create(&vm, RAM, false);
	vm_slot(&vm, 1, SMALL, map_aligned(HUGE), HUGE, 0);
	vm_slot(&vm, 2, READ_ONLY, map_aligned(HUGE), HUGE, KVM_MEM_READONLY);
	shifted = map_aligned(2 * HUGE);
	if (madvise(shifted, 2 * HUGE, MADV_HUGEPAGE))
		die("MADV_HUGEPAGE");
	vm_slot(&vm, 3, SHIFTED, shifted + PAGE, HUGE, 0);
	memcpy(vm.ram + CODE, code, sizeof(code));
	memcpy(vm.ram + CODE_WRITE, write_code, sizeof(write_code));
	expect("KVM offers no feature bit by itself", vm_cpuid(&vm, KVM_CPUID_FEATURES)->eax >> KVM_FEATURE_HGPT & 1, 0);
	unaware = new_vcpu(0);
	enabled = hgpt_enable(&vm, &hgpt, HOST_BLOCKS);
	expect("KVM lets the VMM answer", enabled, 1);
	if (!enabled)
		return 1;
	hgpt.most = VM_BLOCKS;
	expect("map by a vCPU without the feature bit", guest(unaware, CODE, MAP, 8 << 20, 512), -1000);
	vcpu = new_vcpu(1);
	expect("not KVM_HC_MAP_GPA_RANGE", call(12, 4 << 20, 512), -1000);
	expect("misaligned", call(MAP, (4 << 20) + 4096, 512), -EINVAL);
	refused(vcpu);
	granted(vcpu);
	migration(vcpu);
	bounds(vcpu);
	unlink(HGPT_LEDGER);
	return failed != 0;
}
