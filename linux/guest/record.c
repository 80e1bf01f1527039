// SPDX-License-Identifier: GPL-2.0
/*
 * record PID FILE
 *
 * Write what /proc says of a process to FILE, in the form that `nestwalk inspect
 * FILE` reads on any machine (docs/inspect.md has the format): for guests without
 * Python. Needs CAP_SYS_ADMIN for the frames; without it they are recorded as 0.
 * For kernels without PAGEMAP_SCAN: what is mapped by PMDs is not recorded.
 */
#include "common.h"
#include <fcntl.h>

#define CHUNK_PAGES	65536UL
#define TEXT_MAX	(64UL << 20)

/* Files below / that say how the kernel is set. */
static const char *const SYSTEM[] = {
	"proc/buddyinfo",
	"proc/sys/kernel/osrelease",
	"proc/sys/vm/swappiness",
	"proc/sys/vm/compaction_proactiveness",
	"sys/kernel/mm/transparent_hugepage/enabled",
	"sys/kernel/mm/transparent_hugepage/defrag",
	"sys/kernel/mm/transparent_hugepage/shmem_enabled",
	"sys/kernel/mm/transparent_hugepage/khugepaged/pages_to_scan",
	"sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs",
	"sys/kernel/mm/transparent_hugepage/khugepaged/max_ptes_none",
	"sys/kernel/mm/transparent_hugepage/khugepaged/defrag",
	/* Where it sorts page tables. */
	"sys/kernel/debug/sorted_tables/regions",
};

static void put(FILE *out, const void *bytes, size_t count)
{
	if (fwrite(bytes, 1, count, out) != count)
		die("write");
}

static void put_head(FILE *out, const char *name, uint64_t bytes)
{
	uint64_t head[2] = { strlen(name), bytes };

	put(out, head, sizeof(head));
	put(out, name, strlen(name));
}

/* A whole file of /proc, whose size nobody knows before; NULL if it cannot be read. */
static char *text_of(const char *path, size_t *size)
{
	char *text = malloc(TEXT_MAX + 1);
	FILE *in = fopen(path, "r");

	if (!text)
		die("malloc");
	if (!in) {
		free(text);
		return NULL;
	}
	*size = fread(text, 1, TEXT_MAX, in);
	text[*size] = 0;
	fclose(in);
	return text;
}

static char *put_text(FILE *out, const char *path, const char *name)
{
	size_t size;
	char *text = text_of(path, &size);

	if (text) {
		put_head(out, name, size);
		put(out, text, size);
	}
	return text;
}

/* The next mapping of the text at *line; 0 at its end. [vsyscall] has no pagemap. */
static int next_mapping(const char **line, uint64_t *first, uint64_t *pages)
{
	unsigned long start, end;

	while (**line) {
		const char *this = *line, *stop = strchr(this, '\n');

		*line = stop ? stop + 1 : this + strlen(this);
		if (sscanf(this, "%lx-%lx", &start, &end) == 2 && !(start >> 63)) {
			const char *name = strchr(this, '[');

			if (name && name < *line && (!strncmp(name, "[vdso]", 6) || !strncmp(name, "[vvar", 5)))
				continue;
			*first = start >> PAGE_SHIFT;
			*pages = (end - start) >> PAGE_SHIFT;
			return 1;
		}
	}
	return 0;
}

static void put_pages(FILE *out, const char *maps, const char *path)
{
	uint64_t first, pages, bytes = 0, *entries = malloc(CHUNK_PAGES * sizeof(*entries));
	int fd = open(path, O_RDONLY);
	const char *line = maps;

	if (fd < 0 || !entries)
		die(path);
	while (next_mapping(&line, &first, &pages))
		bytes += (3 + pages) * sizeof(uint64_t);
	put_head(out, "pages", bytes);
	line = maps;
	while (next_mapping(&line, &first, &pages)) {
		uint64_t head[3] = { first, pages, 0 };

		put(out, head, sizeof(head));
		while (pages) {
			size_t count = pages < CHUNK_PAGES ? pages : CHUNK_PAGES;
			ssize_t got = pread(fd, entries, count * sizeof(*entries), first * sizeof(*entries));

			if (got <= 0)
				die("the process ended: pread pagemap");
			put(out, entries, got);
			first += got / sizeof(*entries);
			pages -= got / sizeof(*entries);
		}
	}
	close(fd);
	free(entries);
}

/* The frame of the page of zeros: of a page of our own that is read and never written. */
static void put_zero_frame(FILE *out)
{
	volatile char *page = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t frame;
	char text[24];

	if (page == MAP_FAILED)
		die("mmap");
	(void)page[0];
	read_frames((const void *)page, 1, &frame);
	snprintf(text, sizeof(text), "%llu", (unsigned long long)frame);
	if (frame) {
		put_head(out, "zero_frame", strlen(text));
		put(out, text, strlen(text));
	}
}

int main(int argc, char **argv)
{
	char path[256], name[256], *maps;
	size_t i;
	FILE *out;

	if (argc != 3) {
		fprintf(stderr, "usage: record PID FILE\n");
		return 2;
	}
	out = fopen(argv[2], "w");
	if (!out)
		die(argv[2]);
	put(out, "NWIN0001", 8);
	snprintf(path, sizeof(path), "/proc/%s/status", argv[1]);
	if (!put_text(out, path, "process/status"))
		die(path);
	snprintf(path, sizeof(path), "/proc/%s/maps", argv[1]);
	maps = put_text(out, path, "process/maps");
	if (!maps)
		die(path);
	snprintf(path, sizeof(path), "/proc/%s/pagemap", argv[1]);
	put_pages(out, maps, path);
	put_zero_frame(out);
	for (i = 0; i < sizeof(SYSTEM) / sizeof(*SYSTEM); i++) {
		snprintf(path, sizeof(path), "/%s", SYSTEM[i]);
		snprintf(name, sizeof(name), "system/%s", SYSTEM[i]);
		put_text(out, path, name);
	}
	if (fclose(out))
		die(argv[2]);
	return 0;
}
