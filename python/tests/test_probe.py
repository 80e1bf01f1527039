# SPDX-License-Identifier: MIT OR Apache-2.0
"""``nestwalk probe``: what is said of curves, how much memory is taken, and the command. No test depends on times."""

from __future__ import annotations

import json
import math
import random
import signal
import statistics as stdlib
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from support import EXECUTABLE, run_command

from nestwalk import _native
from nestwalk.errors import NestwalkError
from nestwalk.probe import cells, knees, limits, probing, simulated, statistics, validation
from nestwalk.probe.cells import HUGE, Cell, Measured
from nestwalk.probe.knees import Point
from nestwalk.probe.statistics import Value

MIB = 1 << 20
ROOT = Path(__file__).parents[2]


def drawn(middle: float, noise: float, dice: random.Random, rounds: int = 9) -> list[float]:
    """Rounds around ``middle``: one is disturbed, and takes three times as long."""
    disturbed = dice.randrange(rounds)
    return [middle * (3 if round_ == disturbed else 1) + dice.gauss(0, noise) for round_ in range(rounds)]


def test_intervals_cover_the_true_median() -> None:
    dice = random.Random(1)  # noqa: S311 (synthetic data)
    held = 0
    for _ in range(200):
        found = statistics.value([dice.gauss(100, 5) for _ in range(9)])
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 100 <= found.high
    # 95 % are asked for; a percentile bootstrap of nine medians gives a little less.
    assert 176 <= held <= 200


def test_a_disturbed_round_does_not_move_a_median() -> None:
    found = statistics.value([10.0, 10.1, 9.9, 10.0, 10.2, 9.8, 300.0, 10.0, 10.1])
    assert found.value == 10.0
    assert found.low == pytest.approx(9.9, abs=0.2)


def test_few_rounds_have_no_interval() -> None:
    found = statistics.value([1.0, 2.0, 3.0])
    assert (found.value, found.low, found.high, found.ci95) == (2.0, None, None, None)
    assert not found.surely_above(0)
    assert not found.surely_below(10)


def test_the_same_rounds_give_the_same_interval() -> None:
    samples = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0]
    assert statistics.value(samples) == statistics.value(samples)


def test_pairs_cancel_what_disturbs_both() -> None:
    noise = [1.0, 2.0, 5.0, 1.1, 3.0, 1.4, 0.7]
    found = statistics.ratio([2 * one for one in noise], noise)
    assert (found.value, found.low, found.high) == (2.0, 2.0, 2.0)


def curve(step_at: float, low: float, high: float, noise: float, seed: int = 1) -> list[Point]:
    dice = random.Random(seed)  # noqa: S311 (synthetic data)
    sizes = [MIB * 2.0 ** (index / 2) for index in range(17)]
    return [Point(size, statistics.value(drawn(low if size <= step_at else high, noise, dice))) for size in sizes]


@pytest.mark.parametrize("seed", range(5))
def test_a_knee_is_found_where_it_is(seed: int) -> None:
    found = knees.knee(curve(8 * MIB, 6.0, 20.0, 0.3, seed), step=3.0)
    assert found is not None
    assert found.last_flat == 8 * MIB
    assert found.first_above == pytest.approx(8 * MIB * math.sqrt(2))


@pytest.mark.parametrize("seed", range(5))
def test_a_flat_curve_has_no_knee(seed: int) -> None:
    assert knees.knee(curve(math.inf, 6.0, 6.0, 0.3, seed), step=3.0) is None


@pytest.mark.parametrize("seed", range(5))
def test_a_step_within_the_noise_is_no_knee(seed: int) -> None:
    assert knees.knee(curve(8 * MIB, 6.0, 9.5, 20.0, seed), step=3.0) is None


def test_behind_a_noisy_point_no_later_step_is_taken_for_the_first() -> None:
    points = curve(64 * MIB, 6.0, 60.0, 0.1)
    points[7] = Point(points[7].at, Value(20.0, 5.0, 90.0))
    assert knees.knee(points, step=3.0) is None


def test_a_single_point_above_is_no_knee() -> None:
    points = curve(math.inf, 6.0, 6.0, 0.1)
    points[5] = Point(points[5].at, statistics.value([40.0] * 9))
    assert knees.knee(points, step=3.0) is None


def costs(middle: float, noise: float, seed: int) -> list[list[float]]:
    """Nine rounds at four footprints."""
    dice = random.Random(seed)  # noqa: S311 (synthetic data)
    return [[middle + dice.gauss(0, noise) for _ in range(9)] for _ in range(4)]


@pytest.mark.parametrize(
    ("huge", "noise", "expected"),
    [(80.0, 5.0, "4k"), (2.0, 3.0, "2m"), (35.0, 5.0, "mixed"), (35.0, 200.0, "unknown")],
    ids=["4k", "2m", "mixed", "noisy"],
)
def test_host_pages(huge: float, noise: float, expected: str) -> None:
    found, why = knees.host_pages(costs(huge, noise, 1), costs(100.0, 5.0, 2))
    assert found == expected
    assert "in 2 MiB pages an access pays" in why


def test_host_pages_are_unknown_where_nothing_can_be_seen() -> None:
    assert knees.host_pages(costs(0.0, 1.0, 1), costs(0.0, 1.0, 2))[0] == "unknown"
    assert knees.host_pages([], [])[0] == "unknown"
    assert knees.host_pages([[80.0] * 3], [[100.0] * 3])[0] == "unknown"


def test_one_disturbed_footprint_does_not_change_the_answer() -> None:
    huge = costs(2.0, 3.0, 1)
    huge[0] = [500.0] * 9
    assert knees.host_pages(huge, costs(100.0, 5.0, 2))[0] == "2m"


def around(middle: float, half: float) -> Value:
    return Value(middle, middle - half, middle + half)


def test_capacity_is_where_half_goes_beyond() -> None:
    def ns(size: float) -> float:
        return 10.0 if size <= 8 * MIB else 110.0 if size >= 32 * MIB else 60.0

    points = [Point(size * MIB, around(ns(size * MIB), 2.0)) for size in (1, 2, 4, 8, 16, 32, 64, 128)]
    found = knees.capacity(points, 1 * MIB, 16 * MIB)
    assert found is not None
    assert found.bytes == pytest.approx(16 * MIB)
    assert found.low < found.bytes < found.high
    assert (found.plateau_ns.value, found.beyond_ns.value) == (10.0, 110.0)


def test_capacity_is_unknown_on_a_flat_or_noisy_curve() -> None:
    flat = [Point(size * MIB, around(50.0, 2.0)) for size in (1, 2, 4, 8, 16, 32, 64)]
    assert knees.capacity(flat, MIB, 16 * MIB) is None
    noisy = [Point(size * MIB, around(10.0 * size, 500.0)) for size in (1, 2, 4, 8, 16, 32, 64)]
    assert knees.capacity(noisy, MIB, 16 * MIB) is None
    assert knees.capacity(flat, 100 * MIB, 200 * MIB) is None


@pytest.mark.parametrize(
    ("low", "high", "ours", "expected"),
    [
        (1.2, 1.4, 1.3, "agrees"),
        (1.2, 1.4, 1.1, "agrees"),
        (1.2, 1.4, 1.0, "differs"),
        (0.98, 1.02, 1.0, "agrees"),
        (0.98, 1.02, 1.5, "differs"),
        (0.9, 1.5, 1.0, "not clear"),
        (0.9, 1.0, 1.5, "differs"),
    ],
)
def test_verdicts(low: float, high: float, ours: float, expected: str) -> None:
    assert validation.verdict(Value((low + high) / 2, low, high), ours) == expected


def test_without_an_interval_no_verdict() -> None:
    assert validation.verdict(Value(1.3), 1.3) == "not clear"


def fake(root: Path, **contents: str) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text("MemTotal: 1 kB\nMemAvailable:    8388608 kB\n", encoding="utf-8")
    for name, text in contents.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def test_memory_is_what_linux_says_is_available(tmp_path: Path) -> None:
    assert limits.available(fake(tmp_path)) == 8 << 30


def test_a_container_s_limit_counts_version_2(tmp_path: Path) -> None:
    root = fake(tmp_path, proc__self__cgroup="0::/a/b\n")
    for folder, most in (("a/b", "max"), ("a", str(3 << 30))):
        place = root / "sys/fs/cgroup" / folder
        place.mkdir(parents=True, exist_ok=True)
        (place / "memory.max").write_text(f"{most}\n", encoding="utf-8")
        (place / "memory.current").write_text(f"{1 << 30}\n", encoding="utf-8")
    assert limits.available(root) == 2 << 30


def test_a_container_s_limit_counts_version_1(tmp_path: Path) -> None:
    root = fake(tmp_path, proc__self__cgroup="5:cpu:/x\n4:memory:/box\n0::/\n")
    place = root / "sys/fs/cgroup/memory/box"
    place.mkdir(parents=True)
    (place / "memory.limit_in_bytes").write_text(str(1 << 30), encoding="utf-8")
    (place / "memory.usage_in_bytes").write_text(str(1 << 20), encoding="utf-8")
    (place.parent / "memory.limit_in_bytes").write_text("9223372036854771712", encoding="utf-8")
    (place.parent / "memory.usage_in_bytes").write_text("5", encoding="utf-8")
    assert limits.available(root) == (1 << 30) - (1 << 20)


def test_footprints_take_a_quarter_of_memory_at_most(tmp_path: Path) -> None:
    root = fake(tmp_path)
    assert limits.footprint(None, 2 << 30, root) == 1 << 30
    assert limits.footprint(None, 512 * MIB, root) == 512 * MIB
    assert limits.footprint(4 << 30, 2 << 30, root) == 4 << 30
    with pytest.raises(NestwalkError, match=r"--footprint-max 5120MiB: .* give at most 4096MiB"):
        limits.footprint(5 << 30, 2 << 30, root)


def test_a_machine_with_no_memory_is_refused(tmp_path: Path) -> None:
    root = fake(tmp_path)
    (root / "proc/meminfo").write_text("MemAvailable: 65536 kB\n", encoding="utf-8")
    with pytest.raises(NestwalkError, match="needs 128 MiB of memory, and 64 MiB are available"):
        limits.footprint(None, 2 << 30, root)


def test_a_round_has_every_cell_once_and_layouts_of_a_footprint_together() -> None:
    wanted = validation.plan(64 * MIB)
    dice = random.Random(3)  # noqa: S311 (synthetic data)
    first, second = (cells._turns(wanted, dice) for _ in range(2))
    assert sorted(first) == sorted(second) == sorted(wanted)
    assert first != second
    runs = [
        cell.footprint_bytes
        for index, cell in enumerate(first)
        if not index or first[index - 1].footprint_bytes != cell.footprint_bytes
    ]
    assert len(runs) == len(set(runs))


@pytest.mark.parametrize("size", [64 * MIB, 1 << 30, 3 << 30], ids=["64MiB", "1GiB", "3GiB"])
def test_planned_cells_can_be_laid_out(size: int) -> None:
    for cell in [*probing.plan(size, 32 * MIB), *validation.plan(size)]:
        lines = int(cell.layout[-1]) if cell.layout.startswith("lines-") else 1
        assert cell.pages > 0
        assert cell.pages % (8 * lines) == 0, cell
        assert cell.footprint_bytes <= size


def test_a_measurement_has_a_sample_a_round_and_the_layout_that_it_names() -> None:
    wanted = [Cell(2 * MIB, layout, "grouped") for layout in (HUGE, "lines-1", "lines-8")]
    shares: list[float] = []
    done = cells.measure(wanted, rounds=2, seed=1, advanced=shares.append)
    assert all(len(done.samples[cell]) == 2 for cell in wanted)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert done.facts["small"]["means"] in ("userfaultfd, UFFDIO_MOVE", "mremap")
    seen = done.facts["small"]["lines_per_group"]["lines-8"]
    if seen["value"] is None:
        assert seen["unavailable"].startswith("unavailable, because ")
    elif done.facts["small"]["huge_bytes"] == done.facts["small"]["bytes"]:
        assert seen["value"] == 8.0


def test_pages_are_moved_without_userfaultfd_too() -> None:
    arena = _native.Probe(4 * MIB, False, True)
    assert json.loads(arena.facts())["means"] == "mremap"
    arena.arrange(512, "lines-8", 1)
    assert json.loads(arena.time(512, "grouped", 1, 0))["ns"] > 0


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda arena: arena.arrange(1 << 20, "lines-1", 1), "1048576 pages"),
        (lambda arena: arena.arrange(72, "lines-8", 1), "72 pages: lines-8 takes a multiple of 64"),
        (lambda arena: arena.arrange(64, "lines-3", 1), "lines-3"),
        (lambda arena: arena.time(64, "sideways", 1, 0), "sideways"),
        (lambda arena: arena.time(0, "random", 1, 0), "0 pages"),
    ],
    ids=["too-many", "no-multiple", "no-layout", "no-order", "none"],
)
def test_what_no_arena_can_do_is_one_clear_error(call: object, said: str) -> None:
    with pytest.raises(NestwalkError, match=said):
        call(_native.Probe(4 * MIB, False))  # type: ignore[operator]


def test_counters_count_or_say_why_not() -> None:
    for one in json.loads(_native.Counters().read()):
        assert (
            (one["count"] is None) == one["unavailable"].startswith("unavailable, because ")
            if one["unavailable"]
            else one["count"] is not None
        )


def synthetic(ns: object, sizes: list[Cell]) -> Measured:
    """A measurement in which each cell takes ``ns(cell)``, with one disturbed round in nine."""
    dice = random.Random(2)  # noqa: S311 (synthetic data)
    samples = {cell: drawn(ns(cell), 0.02, dice) for cell in sizes}  # type: ignore[operator]
    facts = {"huge": {"bytes": 1 << 30, "huge_bytes": 1 << 30, "means": None}, "small": {"bytes": 1, "huge_bytes": 1}}
    return Measured(samples=samples, clock_ghz=[3.0] * 9, stretches=100, facts=facts)


PROCESSOR = {
    "brand": "synthetic",
    "family": 25,
    "model": 1,
    "hypervisor": "KVM",
    "caches": [{"level": 2, "bytes": 512 << 10}, {"level": 3, "bytes": 32 * MIB}],
    "tlbs": [{"level": 1, "entries": 64}, {"level": 2, "entries": 2048}],
}


def ideal(cell: Cell, huge_walks: float) -> float:
    """A machine with TLBs of 64 and 2048 entries, an L2 of 512 KiB and 16 MiB of last-level cache."""
    lines = cell.footprint_bytes if cell.order == "lines" else cell.footprint_bytes // 64
    data = 1.3 if lines <= 32 << 10 else 4.0 if lines <= 512 << 10 else 15.0 if lines <= 16 * MIB else 100.0
    if cell.order == "lines":
        return data
    walk = 0.0 if cell.footprint_bytes <= 256 << 10 else 2.3 if cell.footprint_bytes <= 8 * MIB else 32.0
    return data + (walk * huge_walks if cell.layout == HUGE else walk)


@pytest.mark.parametrize(("huge_walks", "expected"), [(0.8, "4k"), (0.02, "2m")], ids=["4k", "2m"])
def test_an_ideal_machine_is_recognised(huge_walks: float, expected: str) -> None:
    wanted = probing.plan(1 << 30, 32 * MIB)
    done = probing.judged(synthetic(lambda cell: ideal(cell, huge_walks), wanted), 1 << 30, 1, PROCESSOR)
    assert done.host_pages == expected
    assert done.reach["l1_tlb"]["low_bytes"] == 256 << 10
    assert done.reach["l2_tlb"]["low_bytes"] == 8 * MIB
    assert done.walk_cost["l2"]["ns"] == pytest.approx(32.0, abs=1.0)
    assert done.llc["low_bytes"] <= done.llc["bytes"] <= done.llc["high_bytes"]
    assert done.llc["bytes"] == pytest.approx(16 * MIB, rel=0.5)
    assert json.dumps(done.to_json())


@pytest.mark.parametrize(("huge_walks", "expected"), [(1.0, "4k"), (0.0, "2m")], ids=["4k", "2m"])
def test_the_first_level_tells_pages_of_the_host_where_memory_is_too_noisy(huge_walks: float, expected: str) -> None:
    wanted = probing.plan(1 << 30, 32 * MIB)
    dice = random.Random(3)  # noqa: S311 (synthetic data)
    done = synthetic(lambda cell: ideal(cell, huge_walks), wanted)
    for cell, samples in done.samples.items():
        if cell.footprint_bytes > 8 * MIB:
            done.samples[cell] = [one + dice.uniform(0, 200) for one in samples]
    found = probing.judged(done, 1 << 30, 1, PROCESSOR)
    assert found.host_pages == expected
    assert "a miss of the first-level TLB costs" in found.host_pages_why


def test_a_flat_machine_is_unknown_with_sentences() -> None:
    done = probing.judged(synthetic(lambda _: 5.0, probing.plan(256 * MIB, None)), 256 * MIB, 1, PROCESSOR)
    assert done.host_pages == "unknown"
    for found in (*done.reach.values(), done.llc):
        assert found["unavailable"].startswith("unavailable, because ")


def test_bare_metal_has_no_host() -> None:
    wanted = probing.plan(64 * MIB, 32 * MIB)
    done = probing.judged(synthetic(lambda _: 5.0, wanted), 64 * MIB, 1, {**PROCESSOR, "hypervisor": None})
    assert (done.host_pages, done.host_pages_why) == (
        "unknown",
        "this is no virtual machine: nothing translates below its own tables",
    )


def test_the_simulated_chase_has_the_same_layout() -> None:
    from nestwalk import machines, pool

    machine = simulated.machine(machines.detect(), ghz=3.0, llc_bytes=8 * MIB)
    assert "KiB" in machine.text
    wanted = [Cell(4 * MIB, layout, "grouped") for layout in cells.SPREADS]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulated, "ACCESSES_MIN", 2048)
        with tempfile.TemporaryDirectory() as folder:
            found = simulated.simulate(wanted, machine, Path(folder), host="4k", seed=1, jobs=2, watcher=pool.Silent())
    assert [found[cell]["lines"] for cell in wanted] == [1.0, 1.0, 2.0, 4.0, 8.0]


def test_a_share_of_the_cache_has_a_prime_number_of_sets() -> None:
    assert [simulated.prime_below(number) for number in (0, 2, 4, 4864, 5120)] == [2, 2, 3, 4861, 5119]


def test_page_table_pages_share_no_sets_because_of_a_share_of_the_cache() -> None:
    """In random order the layouts cost the same. With 19 x 256 sets, a walk on one line took twice as long."""
    from nestwalk import machines, pool

    milan = machines.detect(ROOT / "crates/live/tests/cpuid/milan-7763.txt")
    machine = simulated.machine(milan, ghz=None, llc_bytes=19 * 256 * 16 * 64)
    wanted = [Cell(256 * MIB, layout, "random") for layout in ("lines-1", "lines-8")]
    with tempfile.TemporaryDirectory() as folder:
        found = simulated.simulate(wanted, machine, Path(folder), host="4k", seed=1, jobs=2, watcher=pool.Silent())
    one, eight = (found[cell]["walk_cycles"] or 0 for cell in wanted)
    assert eight == pytest.approx(one, rel=0.05)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--footprint-max", "1TiB"], "give at most"),
        (["--footprint-max", "1MiB"], "from 64MiB"),
        (["--footprint-max", "much"], "give a size"),
        (["--rounds", "0"], "from 1 to 1000"),
        (["--out", "/proc/version/x"], "/proc/version"),
    ],
    ids=["too-large", "too-small", "no-size", "no-rounds", "no-folder"],
)
def test_bad_arguments_are_one_clear_error(arguments: list[str], said: str) -> None:
    done = run_command("probe", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert said in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr


def test_json_of_a_small_probe_and_its_folder(tmp_path: Path) -> None:
    done = run_command("probe", "--footprint-max", "64MiB", "--rounds", "1", "--json", "-q", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["schema"] == 1
    assert found["host_pages"] in ("4k", "2m", "mixed", "unknown")
    assert found["curve"]
    for row in found["curve"]:
        assert {"footprint_bytes", "layout", "ns_per_access", "ci95"} <= row.keys()
        assert row["ns_per_access"] > 0
        assert row["ci95"] is None, "one round has no interval"
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"results.parquet", "results.json", "report.html"}
    page = (tmp_path / "out/report.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 4
    assert "Making it again" in page


def test_a_small_validation_has_a_row_for_each_cell_and_a_verdict_on_each_shape(tmp_path: Path) -> None:
    options = ["--validate", "--footprint-max", "64MiB", "--rounds", "1", "--json", "-q"]
    done = run_command("probe", *options, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["validation"]
    assert {(row["layout"], row["order"]) for row in found["rows"]} == {
        (layout, order) for layout in validation.LAYOUTS for order in validation.ORDERS
    }
    assert len(found["shapes"]) == len(validation.QUESTIONS) * 2 * len(validation.footprints(64 * MIB))
    assert {shape["verdict"] for shape in found["shapes"]} == {"not clear"}, "one round decides nothing"
    lines = {row["layout"]: row["simulated_lines_per_group"] for row in found["rows"]}
    assert [lines[name] for name in cells.SPREADS] == [1.0, 1.0, 2.0, 4.0, 8.0]
    assert (tmp_path / "out/table.md").read_text(encoding="utf-8").startswith("Measured on 2")


def test_ctrl_c_ends_it_and_leaves_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [EXECUTABLE, "probe", "--rounds", "1000", "--footprint-max", "64MiB", "--out", str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, ""), err
    assert "Traceback" not in err
    assert not (tmp_path / "out").exists()


def test_medians_agree_with_the_standard_library() -> None:
    samples = [5.0, 3.0, 8.0, 1.0]
    assert statistics.value(samples).value == stdlib.median(samples)
