// SPDX-License-Identifier: GPL-2.0
/*
 * hcprobe on|off: the HugeGPT hypercalls, seen from a guest of three bytes.
 *
 * The guest is VMMCALL; HLT. Registers go in and come out through KVM, so that
 * every argument can be tried. "off": the host module has them switched off.
 */
#include "vm.h"

#define CODE		0x10000UL
#define MAP		0x48470001UL
#define GATHER		0x48470002UL
#define RAM		(64UL << 20)
#define SECOND		(256UL << 20)	/* a second slot, its host memory adjacent to nothing */
#define READ_ONLY	(512UL << 20)

static struct vm vm;
static struct kvm_run *run;
static int vcpu, failed;

static long call(unsigned long nr, unsigned long gpa, unsigned long pages)
{
	struct kvm_regs regs;

	if (ioctl(vcpu, KVM_GET_REGS, &regs))
		die("KVM_GET_REGS");
	regs.rip = CODE;
	regs.rax = nr;
	regs.rbx = gpa;
	regs.rcx = pages;
	if (ioctl(vcpu, KVM_SET_REGS, &regs) || ioctl(vcpu, KVM_RUN, 0) ||
	    run->exit_reason != KVM_EXIT_HLT)
		die("KVM_RUN");
	ioctl(vcpu, KVM_GET_REGS, &regs);
	return regs.rax;
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

static void off(void)
{
	expect("no feature bit when off",
	       vm_cpuid(&vm, KVM_CPUID_FEATURES)->eax >> KVM_FEATURE_HGPT & 1, 0);
	expect("map unknown when off", call(MAP, 4 << 20, 512), -1000);
	expect("gather unknown when off", call(GATHER, 4 << 20, 512), -1000);
}

static void on(void)
{
	long huge, granted = 0, busy = 0, i;

	expect("feature bit", vm_cpuid(&vm, KVM_CPUID_FEATURES)->eax >> KVM_FEATURE_HGPT & 1, 1);
	expect("a number next to ours is unknown", call(MAP + 2, 4 << 20, 512), -1000);
	expect("not KVM_HC_MAP_GPA_RANGE either", call(12, 4 << 20, 512), -1000);

	expect("misaligned to 4 KiB", call(MAP, (4 << 20) + 1, 512), -EINVAL);
	expect("misaligned to 2 MiB", call(MAP, (4 << 20) + 4096, 512), -EINVAL);
	expect("length not in blocks", call(GATHER, 4 << 20, 511), -EINVAL);
	expect("nothing", call(MAP, 4 << 20, 0), -EINVAL);
	expect("wraps around", call(MAP, 4 << 20, ~0UL & ~511UL), -EINVAL);
	expect("too much", call(MAP, 0, 1UL << 20), -E2BIG);
	expect("no memory there", call(MAP, 128UL << 20, 512), -EFAULT);
	expect("far beyond", call(GATHER, 1UL << 46, 512), -EFAULT);
	expect("begins inside, ends outside", call(MAP, RAM - HUGE, 1024), -EFAULT);
	expect("ROM", call(MAP, READ_ONLY, 512), -EFAULT);
	expect("failed calls advised nothing", vm_stat(&vm, "hgpt_mapped"), 0);

	expect("map", call(MAP, 8 << 20, 1024), 0);
	expect("map, last block", call(MAP, RAM - HUGE, 512), 0);
	expect("map, second slot", call(MAP, SECOND, 512), 0);
	expect("counted", vm_stat(&vm, "hgpt_mapped"), 2048);
	memset(vm.ram + (8 << 20), 1, 2 * HUGE);
	expect("advised memory comes as huge pages", vm_smaps(&vm, "AnonHugePages"), 4096);

	memset(vm.ram + (16 << 20), 2, HUGE);
	huge = vm_smaps(&vm, "AnonHugePages");
	expect("memory without advice does not", huge, 4096);
	expect("gather", call(GATHER, 16 << 20, 512), 0);
	expect("gathered", vm_smaps(&vm, "AnonHugePages"), huge + 2048);
	expect("content is the same", vm.ram[16 << 20] == 2 && vm.ram[(18 << 20) - 1] == 2, 1);
	expect("gather again", call(GATHER, 16 << 20, 512), 0);

	for (i = 0; i < 2000; i++) {
		long r = call(MAP, 8 << 20, 512);

		granted += r == 0;
		busy += r == -EBUSY;
	}
	expect("every call was granted or put off", granted + busy, 2000);
	expect("the ration ends", busy > 1000, 1);
	expect("and was there", granted > 200, 1);
	usleep(500000);
	expect("and comes back", call(MAP, 8 << 20, 512), 0);
}

int main(int argc, char **argv)
{
	static const unsigned char code[] = { 0x0f, 0x01, 0xd9, 0xf4 };
	bool enabled = argc > 1 && !strcmp(argv[1], "on");

	vm_create(&vm, RAM, false);
	vm_slot(&vm, 1, SECOND, map_aligned(HUGE), HUGE, 0);
	vm_slot(&vm, 2, READ_ONLY, map_aligned(HUGE), HUGE, KVM_MEM_READONLY);
	memcpy(vm.ram + CODE, code, sizeof(code));
	vcpu = vm_vcpu(&vm, 0);
	vcpu_long_mode(vcpu, CODE, 0);
	run = vcpu_run_area(&vm, vcpu);
	if (enabled)
		on();
	else
		off();
	return failed != 0;
}
