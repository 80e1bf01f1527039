// SPDX-License-Identifier: GPL-2.0
/*
 * minivmm VMLINUX INITRD MIB CPUS COMMANDLINE [BLOCKS]
 *
 * The smallest VMM that boots a Linux vmlinux: in-kernel interrupt chips, a
 * serial port, an MP table for further vCPUs, reset through the keyboard
 * controller. Used inside the test guest, to nest another one. When the guest
 * resets, prints what KVM and the kernel know about the guest's memory.
 *
 * With BLOCKS it lets the guest have huge pages under its page tables, as long as no
 * more than so many blocks of 2 MiB are such in all VMs of this host. See hgpt.h.
 */
#include "hgpt.h"
#include <asm/bootparam.h>
#include <elf.h>
#include <sys/stat.h>

#define BOOT_PARAMS	0x7000UL
#define COMMAND_LINE	0x20000UL
#define MP_FLOATING	0x9fc00UL	/* the last KiB of base memory is searched */
#define MP_TABLE	0x9fc10UL
#define SERIAL		0x3f8
#define SERIAL_IRQ	4

static struct vm vm;
static struct hgpt hgpt;
static pthread_mutex_t devices = PTHREAD_MUTEX_INITIALIZER;

static struct {
	uint8_t ier, lcr, mcr, scratch, dll, dlm;
	bool transmit_empty;
} uart;

static void uart_interrupt(void)
{
	struct kvm_irq_level irq = { .irq = SERIAL_IRQ, .level = 0 };

	ioctl(vm.fd, KVM_IRQ_LINE, &irq);
	irq.level = (uart.ier & 2) && uart.transmit_empty;
	if (irq.level)
		ioctl(vm.fd, KVM_IRQ_LINE, &irq);
}

static uint8_t uart_read(int reg)
{
	bool latch = uart.lcr & 0x80;
	uint8_t value;

	switch (reg) {
	case 0:
		return latch ? uart.dll : 0;
	case 1:
		return latch ? uart.dlm : uart.ier;
	case 2:
		value = (uart.ier & 2) && uart.transmit_empty ? 2 : 1;
		if (value == 2) {
			uart.transmit_empty = false;
			uart_interrupt();
		}
		return value;
	case 3:
		return uart.lcr;
	case 4:
		return uart.mcr;
	case 5:
		return 0x60;
	case 6:
		return 0xb0;
	default:
		return uart.scratch;
	}
}

static void uart_write(int reg, uint8_t value)
{
	bool latch = uart.lcr & 0x80;

	switch (reg) {
	case 0:
		if (latch) {
			uart.dll = value;
			break;
		}
		putchar(value);
		if (value == '\n')
			fflush(stdout);
		uart.transmit_empty = true;
		uart_interrupt();
		break;
	case 1:
		if (latch) {
			uart.dlm = value;
			break;
		}
		uart.ier = value & 15;
		if (uart.ier & 2)
			uart.transmit_empty = true;
		uart_interrupt();
		break;
	case 3:
		uart.lcr = value;
		break;
	case 4:
		uart.mcr = value;
		break;
	case 7:
		uart.scratch = value;
		break;
	}
}

static void finish(const char *why, int status)
{
	fflush(stdout);
	printf("VMM {\"end\":\"%s\",\"rss_kb\":%ld,\"huge_kb\":%ld,\"pages_4k\":%ld,\"pages_2m\":%ld,\"hypercalls\":%ld,\"hgpt_mapped\":%ld,\"hgpt_gathered\":%ld,\"hgpt_failed\":%ld,\"hgpt_busy\":%ld}\n",
	       why, vm_smaps(&vm, "Rss"), vm_smaps(&vm, "AnonHugePages"),
	       vm_stat(&vm, "pages_4k"), vm_stat(&vm, "pages_2m"), vm_stat(&vm, "hypercalls"),
	       hgpt.mapped, hgpt.gathered, hgpt.failed, hgpt.busy);
	fflush(stdout);
	_exit(status);
}

static void port_io(struct kvm_run *run)
{
	uint8_t *data = (uint8_t *)run + run->io.data_offset;
	bool out = run->io.direction == KVM_EXIT_IO_OUT;
	unsigned int port = run->io.port, i;

	if (out && port == 0x64 && *data == 0xfe)
		finish("reset", 0);
	for (i = 0; i < run->io.count; i++, data += run->io.size) {
		if (port >= SERIAL && port < SERIAL + 8) {
			if (out)
				uart_write(port - SERIAL, *data);
			else
				memset(data, uart_read(port - SERIAL), run->io.size);
		} else if (!out) {
			memset(data, port == 0x64 ? 0 : 0xff, run->io.size);
		}
	}
}

static void *run_vcpu(void *arg)
{
	int fd = (intptr_t)arg;
	struct kvm_run *run = vcpu_run_area(&vm, fd);
	char why[64];

	for (;;) {
		if (ioctl(fd, KVM_RUN, 0) < 0 && errno != EINTR && errno != EAGAIN)
			die("KVM_RUN");
		if (run->exit_reason == KVM_EXIT_HYPERCALL) {
			/* May take long, and has nothing to do with the devices. */
			hgpt_exit(&vm, &hgpt, run);
			continue;
		}
		pthread_mutex_lock(&devices);
		switch (run->exit_reason) {
		case KVM_EXIT_IO:
			port_io(run);
			break;
		case KVM_EXIT_MMIO:
			if (!run->mmio.is_write)
				memset(run->mmio.data, 0xff, 8);
			break;
		case KVM_EXIT_INTR:
		case KVM_EXIT_IRQ_WINDOW_OPEN:
		case KVM_EXIT_UNKNOWN:
			break;
		case KVM_EXIT_SHUTDOWN:
			finish("triple fault", 2);
			break;
		default:
			snprintf(why, sizeof(why), "exit %u suberror %u", run->exit_reason,
				 run->internal.suberror);
			finish(why, 3);
		}
		pthread_mutex_unlock(&devices);
	}
	return NULL;
}

static void checksum(uint8_t *table, size_t len, size_t at)
{
	uint8_t sum = 0;
	size_t i;

	for (i = 0; i < len; i++)
		sum += table[i];
	table[at] = -sum;
}

/* MultiProcessor Specification 1.4: one entry a processor, no I/O APIC. */
static void mp_table(unsigned int cpus)
{
	uint8_t *f = (uint8_t *)vm.ram + MP_FLOATING, *t = (uint8_t *)vm.ram + MP_TABLE, *e = t + 44;
	uint32_t table = MP_TABLE, lapic = 0xfee00000;
	uint16_t entries = 0, len;
	unsigned int i;

	for (i = 0; i < cpus; i++, e += 20, entries++) {
		memset(e, 0, 20);
		e[1] = i;
		e[2] = 0x14;
		e[3] = i ? 1 : 3;
	}
	e[0] = 1;					/* bus 0: ISA */
	memcpy(e + 2, "ISA   ", 6);
	e += 8;
	entries++;
	for (i = 0; i < 2; i++, e += 8, entries++) {	/* LINT0: ExtINT, LINT1: NMI */
		memset(e, 0, 8);
		e[0] = 4;
		e[1] = i ? 1 : 3;
		e[6] = 0xff;
		e[7] = i;
	}
	len = e - t;
	memset(t, 0, 44);
	memcpy(t, "PCMP", 4);
	memcpy(t + 4, &len, 2);
	t[6] = 4;
	memcpy(t + 8, "NESTWALKMINIVMM     ", 20);
	memcpy(t + 34, &entries, 2);
	memcpy(t + 36, &lapic, 4);
	checksum(t, len, 7);
	memset(f, 0, 16);
	memcpy(f, "_MP_", 4);
	memcpy(f + 4, &table, 4);
	f[8] = 1;
	f[9] = 4;
	checksum(f, 16, 10);
}

static uint64_t load_kernel(const char *path)
{
	int fd = open(path, O_RDONLY), i;
	uint64_t entry;
	Elf64_Phdr *ph;
	struct stat st;
	Elf64_Ehdr *h;

	if (fd < 0 || fstat(fd, &st))
		die(path);
	h = mmap(NULL, st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (h == MAP_FAILED || memcmp(h, ELFMAG, SELFMAG))
		die("not an ELF file");
	ph = (Elf64_Phdr *)((char *)h + h->e_phoff);
	for (i = 0; i < h->e_phnum; i++, ph++)
		if (ph->p_type == PT_LOAD) {
			if (ph->p_paddr + ph->p_memsz > vm.size)
				die("kernel larger than memory");
			memcpy(vm.ram + ph->p_paddr, (char *)h + ph->p_offset, ph->p_filesz);
		}
	entry = h->e_entry;
	munmap(h, st.st_size);
	close(fd);
	return entry;
}

static void load_initrd(struct boot_params *b, const char *path)
{
	int fd = open(path, O_RDONLY);
	struct stat st;
	size_t at;

	if (fd < 0 || fstat(fd, &st) || (size_t)st.st_size > vm.size / 2)
		die(path);
	at = (vm.size - st.st_size) & ~(HUGE - 1);
	if (read(fd, vm.ram + at, st.st_size) != st.st_size)
		die(path);
	b->hdr.ramdisk_image = at;
	b->hdr.ramdisk_size = st.st_size;
	close(fd);
}

int main(int argc, char **argv)
{
	unsigned int cpus, i;
	struct boot_params *b;
	pthread_t thread;
	uint64_t entry;

	if (argc < 6 || argc > 7) {
		fprintf(stderr, "usage: minivmm VMLINUX INITRD MIB CPUS COMMANDLINE [BLOCKS]\n");
		return 2;
	}
	cpus = strtoul(argv[4], NULL, 0);
	vm_create(&vm, strtoul(argv[3], NULL, 0) << 20, true);
	if (argc == 7 && !hgpt_enable(&vm, &hgpt, strtoul(argv[6], NULL, 0)))
		fprintf(stderr, "minivmm: this host's KVM has no hypercalls of HugeGPT\n");
	entry = load_kernel(argv[1]);
	b = (struct boot_params *)(vm.ram + BOOT_PARAMS);
	b->hdr.type_of_loader = 0xff;
	b->hdr.boot_flag = 0xaa55;
	b->hdr.header = 0x53726448;
	b->hdr.version = 0x20f;
	b->hdr.loadflags = 1;
	b->hdr.kernel_alignment = 0x1000000;
	b->hdr.cmd_line_ptr = COMMAND_LINE;
	b->hdr.cmdline_size = strlen(argv[5]);
	strcpy(vm.ram + COMMAND_LINE, argv[5]);
	load_initrd(b, argv[2]);
	b->e820_table[0] = (struct boot_e820_entry){ 0, MP_FLOATING, 1 };
	b->e820_table[1] = (struct boot_e820_entry){ 0x100000, vm.size - 0x100000, 1 };
	b->e820_entries = 2;
	mp_table(cpus);

	for (i = 0; i < cpus; i++) {
		int fd = vm_vcpu(&vm, i);

		if (!i)
			vcpu_long_mode(fd, entry, BOOT_PARAMS);
		if (pthread_create(&thread, NULL, run_vcpu, (void *)(intptr_t)fd))
			die("pthread_create");
	}
	pause();
	return 1;
}
