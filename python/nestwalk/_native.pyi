# SPDX-License-Identifier: MIT OR Apache-2.0
"""The engine. What is structured comes back as JSON text; errors are `nestwalk.errors.NestwalkError`."""

from collections.abc import Callable, Sequence

def version() -> str:
    """The version of engine and package."""

def model() -> str:
    """The model that the engine computes: two engines of one model give the same results to the last bit."""

def ratio(
    windows: Sequence[tuple[float, float]], model: tuple[list[tuple[float, float]], tuple[float, float]] | None
) -> tuple[float | None, float | None]:
    """The ratio of the sums of numerators and denominators over windows, and half of its 95 % interval.

    ``model``: the same two sums of each window, and of all that they are a sample of, as a capture's model counted
    them.
    """

def catalog(traces: str) -> str:
    """What there is by kind, each a list of `name` and `description`; bundled traces lie in `traces`."""

def scenario(name: str) -> str:
    """The TOML text of the bundled scenario `name`."""

def check(scenario: str, path: str, traces: str) -> None:
    """Says what is wrong with a scenario and with what it names, as far as that shows without a run."""

def configuration(scenario: str, path: str) -> str:
    """All that a run is made from, names resolved: `scenario`, `machine`, `costs`."""

def run(scenario: str, path: str, traces: str, progress: Callable[[int, int | None], bool] | None = None) -> str:
    """Runs `scenario` (TOML text), of the file `path` (for messages, relative paths); bundled traces lie in `traces`.

    `progress` is told of the accesses done and of all there are, if known, and ends the run by returning False.
    The GIL is released; Ctrl-C ends the run with KeyboardInterrupt.
    """

def save_memory(scenario: str, path: str, traces: str, layer: int) -> tuple[str, bytes]:
    """The memory with which kernel `layer` of a scenario begins: what it is (JSON), and the bytes of its file."""

def save_real_memory(proc: str, node: int | None, cpus: int, seed: int) -> tuple[str, bytes]:
    """The memory of a real machine's largest zone (of a node): what it is (JSON), and the bytes of its file."""

def touched_regions(scenario: str, path: str, traces: str) -> list[int]:
    """Numbers (address >> 21) of the 2 MiB regions that a scenario's program touches until it is populated."""

class Populated:
    """The machine of a scenario, up to the first access of its program: all memory touched before is populated.

    It serves one run. A process that holds one can be copied (``os.fork``) for each of several, as what needs other
    threads is over. What `progress` is told, and how it ends the work, is as in :func:`run`.
    """

    def __init__(
        self, scenario: str, path: str, traces: str, progress: Callable[[int, int | None], bool] | None = None
    ) -> None:
        """Populates the memory of `scenario` (TOML text), of the file `path`."""

    def run(self, scenario: str, path: str, progress: Callable[[int, int | None], bool] | None = None) -> str:
        """Runs `scenario`, which is :func:`populated_by` the same, from here to its end: as :func:`run` would."""

def populated_by(scenario: str, path: str) -> str:
    """Equal for scenarios whose memory is populated in the same way, so that they can share a :class:`Populated`."""

def trace_convert(
    source: str, destination: str, options: str, progress: Callable[[int, int | None], bool] | None = None
) -> str:
    """Converts a capture as `options` (JSON) says; `accesses`, `bytes_per_access` and more. The GIL is released."""

def capture(source: str, destination: str, options: str, hear: Callable[[int, int, int, int, bool], int]) -> str:
    """Makes a trace of the plugin's stream as `options` (JSON) say; what came of it as JSON. The GIL is released.

    `hear` is told of accesses, pages ever touched, misses of a model TLB, bytes on disk, and whether the mark that ends
    the capture has come; it answers 0 to give up, 1 to go on, 2 to begin sampling.
    """

def capture_live(
    source: str, following: str, options: str, traces: str, hear: Callable[[int, int, int, int, bool], int]
) -> str:
    """Runs the plugin's stream under the scenarios of `following` (JSON) while it comes; what came of it as JSON.

    `following`: `footprint` bytes, `threads`, `runs` (texts and paths). `hear` as for `capture`.
    """

def trace_info(path: str) -> str:
    """`accesses`, `instructions`, `threads`, `footprint_bytes`, `vmas`, `format` of a trace."""

def vm_processes(pieces: str, cr3: int, levels: int) -> str:
    """Processes of a guest whose memory is `pieces` (JSON): `cr3`, `program`, `mapped_bytes`, `huge_bytes` of each.

    `cr3` is what one of its processors had in CR3 at some time, without flags; tables have `levels` levels.
    """

def vm_tables(pieces: str, cr3: int, levels: int, kernel: bool, path: str, regions: str | None = None) -> str:
    """Writes the page tables that `cr3` points to as the dump `path`, the kernel's half if `kernel`; what it holds.

    `regions` is what the guest's kernel says of where it sorts those of the process (:func:`recorded_regions`).
    """

def tables_have_regions(path: str) -> bool:
    """Whether the dump of page tables `path` says where its kernel sorts them; False for what is no dump."""

def vm_record(
    source: str,
    destination: str,
    tables: str,
    pieces: str,
    about: tuple[str, str, str | None],
    kept: str,
    progress: Callable[[int, int | None], bool] | None = None,
) -> str:
    """Converts the stream `source` of a guest to a trace, until it ends; then compares it with the dump `tables`.

    `pieces` is a file with the guest's memory (JSON), which need be there only in the end, as `tables`; `about` is
    program, command, date. The GIL is released.
    """

def schema(kind: str) -> str:
    """The JSON Schema of files of the sort `kind`: machine, scenario or costs."""

def statistics_schema() -> str:
    """The JSON Schema of a result's `statistics`."""

def machine(name: str) -> str:
    """A machine by name or file, checked as a run would: `path`, `text`, `lines` (`key`, `value`, `comment`)."""

def toml_check(path: str, text: str) -> None:
    """Says where `text`, the file `path`, is no TOML, if it is none."""

def toml_position(text: str, path: list[str], of_key: bool) -> tuple[int, int] | None:
    """Line and column of the value at a path of keys and indices, or of its key; of the deepest part that is there."""

def toml_path_at(text: str, line: int, column: int) -> list[str]:
    """The path of keys and indices of what is at a line and a column; empty where there is nothing."""

def processor(dump: str | None = None, path: str | None = None) -> str:
    """The processor here, or of a recorded CPUID: `processor`, `nearest`, `sysfs` (null for a recorded one)."""

class Probe:
    """Memory in 2 MiB pages or in 4 KiB pages of a known layout, and chases of pointers through it (Linux only)."""

    def __init__(self, bytes: int, huge: bool, remap: bool = False) -> None:  # noqa: A002
        """`bytes` (a multiple of 2 MiB), touched; `remap`: 4 KiB pages are moved by `mremap` in any case."""

    def facts(self) -> str:
        """`bytes`, `huge_bytes` (that were in 2 MiB pages when all was touched), `means` (that move 4 KiB pages)."""

    def arrange(self, pages: int, spread: str, seed: int) -> None:
        """Gives the first `pages` pages the frames of the layout `spread` (``lines-8``)."""

    def lines_per_group(self, pages: int) -> float | str:
        """Lines of the host's table a group of 8 pages, as pagemap shows them; or why that cannot be known."""

    def time(self, pages: int, kind: str, seed: int, microseconds: int) -> str:
        """A chase through the first `pages` pages: `ns` a load, `stretches`, `disturbed`.

        `kind` is ``grouped`` or ``random`` (a line a page) or ``lines`` (all lines of the pages).
        """

class Counters:
    """The processor's counters of this thread, in user mode, from now on (Linux only)."""

    def __init__(self, events: str = "[]") -> None:
        """Opens what the kernel lets it: the events it names itself, and `events` (`name`, `kind`, `config`)."""

    def read(self) -> str:
        """A list of `name`, `count`, `counted_share` (of the time), `unavailable`."""

def clock_ghz() -> float | None:
    """The clock that the processor has in effect; None where it is not known how to measure it."""

def cloud_replay(
    columns: tuple[bytes, bytes, bytes, bytes, bytes],
    fleet: str,
    options: str,
    progress: Callable[[int, int | None], bool] | None = None,
) -> tuple[str, bytes, bytes, bytes]:
    """Replays a trace of VMs over a fleet (JSON) as options (JSON) say. The GIL is released.

    Columns, little-endian, a value for each request: arrival (i64, s), earliest deletion (i64, s; the largest i64:
    none is known), latest deletion (i64, s), virtual CPUs (u32), memory (u64, pages of 4 KiB).

    Back come what was found and measured (JSON), and columns of outcomes (u8: 0 refused, 1 unplaced, 2 placed),
    hosts (u32) and segments (u32).
    """

def trace_head(path: str, skip: int, count: int) -> str:
    """Items of a trace from a number on, as JSON."""

def trace_profile(path: str, progress: Callable[[int, int | None], bool] | None = None) -> str:
    """How a trace's program uses its memory, as JSON."""

def locality(
    workload: str, traces: str, accesses: int, progress: Callable[[int, int | None], bool] | None = None
) -> str:
    """Spatial locality by page of a program (a scenario's ``workload``, as JSON), as JSON."""

def trace_check(path: str) -> str:
    """What a check of the whole trace counted: `accesses`, `records`, `touches`, `events`, `instructions`."""

def _panic() -> None:
    """Panics, for the test that this is an error like any other."""

def bench_names() -> list[str]:
    """The benchmarks there are."""

def bench(name: str, repetitions: int, traces: str) -> str:
    """The best of `repetitions` runs of a benchmark: `name`, `value`, `unit`. The GIL is released."""

def inspect_process(
    pid: int | None = None,
    path: str | None = None,
    all_flags: bool = False,
    contents: bool = False,
    keep: bool = False,
) -> tuple[str, bytes | None]:
    """What the memory of process `pid`, or of the recording `path`, looks like (JSON); and its recording, if `keep`.

    `all_flags` reads the flags of every frame, `contents` the contents of 2 MiB pages. The GIL is released.
    """

def recorded_regions(path: str) -> str:
    """What the kernel of the recording `path` says of where it sorts the page tables of the process, as text."""

def anonymous_pages(pid: int | None = None, path: str | None = None) -> tuple[bool, list[tuple[int, int, bool, bytes]]]:
    """The anonymous private memory of a process or a recording: whether it is known what PMDs map, and its pieces.

    Of each piece: the first page of its mapping, its own first page, whether PMDs map it (an entry then is one of
    2 MiB), and its entries as in `/proc/PID/pagemap`. The GIL is released.
    """

def proc_mappings(text: str) -> list[tuple[int, int, str, str, str]]:
    """Of `/proc/PID/maps`: start, end, permissions, device and inode (empty for anonymous memory), name."""

def proc_words(path: str, first: int, count: int) -> bytes:
    """Words of 64 bits of a file such as pagemap, from number `first` on; fewer than `count` where it ends."""

def proc_buddyinfo(text: str) -> list[int]:
    """Free blocks by order in the text of `/proc/buddyinfo`."""

def inspect_is_recording(path: str) -> bool:
    """Whether the file `path` begins like a recording."""

def inspect_host(root: str | None = None) -> str:
    """The VMs of this KVM host (JSON); `root` is `/` unless a test says otherwise."""
