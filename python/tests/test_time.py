# SPDX-License-Identifier: MIT OR Apache-2.0
"""``nestwalk time``: which pages a program gets, what is said of its times, the command. No test depends on times."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path

import pytest
from support import EXECUTABLE, Command, run_command

from nestwalk import machines, traces
from nestwalk.errors import NestwalkError
from nestwalk.intervals import Estimate
from nestwalk.probe.statistics import Value
from nestwalk.timed import held, pages, text, trial
from nestwalk.timed.held import Held, Parts, Shares, Simulation
from nestwalk.timed.timing import Timed
from nestwalk.timed.trial import Trial

MIB = 1 << 20
TOUCHED = 64 * MIB

TOUCH = f"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int count, char **words) {{
    char *memory = malloc({TOUCHED});
    memset(memory, 1, {TOUCHED});
    usleep(1000 * (count > 1 ? atoi(words[1]) : 100));
    printf("Runtime: %d.5 seconds\\n", memory[12345]);
    return 0;
}}
"""


def setting(root: Path, value: str) -> Path:
    path = root / pages.SETTING
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value, encoding="ascii")
    return root


@pytest.fixture(scope="module")
def touch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that touches memory, waits for so many ms, and says that it took 1.5 seconds."""
    folder = tmp_path_factory.mktemp("touch")
    source = folder / "touch.c"
    source.write_text(TOUCH, encoding="ascii")
    subprocess.run(["cc", "-O1", "-o", folder / "touch", source], check=True)  # noqa: S607
    return folder / "touch"


@pytest.mark.parametrize("what", ["empty", "text", "machine"])
def test_what_cannot_be_simulated_is_refused_before_the_program_runs(
    command: Command, tmp_path: Path, what: str
) -> None:
    trace, machine = tmp_path / "it.nwt", tmp_path / "bad.toml"
    (tmp_path / "none").write_bytes(b"")
    if what == "empty":
        traces.trace_convert(tmp_path / "none", trace, from_="addresses")
    else:
        trace.write_text("no trace", encoding="ascii")
    if what == "machine":
        machine.write_text("schema = 1\n", encoding="ascii")
    options = ["--trace", "redis", "--machine", machine] if what == "machine" else ["--trace", trace]
    done = command("time", *options, "--rounds", "1", "--", "sh", "-c", f"touch {tmp_path}/ran")
    said = {"empty": "has no access to data", "text": "not a Nestwalk trace", "machine": "bad.toml"}
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert said[what] in done.stderr
    assert not (tmp_path / "ran").exists()


def here() -> pages.Means:
    """How programs get huge pages here; the test is skipped where none does."""
    try:
        return pages.means()
    except NestwalkError as error:
        pytest.skip(str(error))


def made(small: list[float], huge: list[float], *, own: bool = False, huge_bytes: int | None = MIB) -> Timed:
    """A program that took so many seconds of user time, and half of them by its own account."""

    def trials(seconds: list[float]) -> list[Trial]:
        return [Trial(one / 2 if own else None, one, 0.1, one + 0.1, 1000) for one in seconds]

    return Timed(["x"], "always", {"4k": trials(small), "huge": trials(huge)}, {"4k": 0, "huge": huge_bytes})


def test_the_kernels_setting_says_how_huge_pages_are_had(tmp_path: Path) -> None:
    assert pages.means(setting(tmp_path, "[always] madvise never\n")) == "always"
    assert pages.means(setting(tmp_path, "always [madvise] never\n")) == "madvise"
    with pytest.raises(NestwalkError, match=r"enabled: always madvise \[never\]: .*echo madvise"):
        pages.means(setting(tmp_path, "always madvise [never]\n"))
    with pytest.raises(NestwalkError, match="transparent huge pages"):
        pages.means(tmp_path / "none")


def test_malloc_asks_only_where_it_has_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(pages.TUNABLES, "glibc.malloc.check=0")
    assert pages.environment("huge", "madvise")[pages.TUNABLES] == f"glibc.malloc.check=0:{pages.ASKING}"
    assert pages.environment("huge", "always")[pages.TUNABLES] == "glibc.malloc.check=0"
    assert pages.environment("4k", "madvise")[pages.TUNABLES] == "glibc.malloc.check=0"
    monkeypatch.delenv(pages.TUNABLES)
    assert pages.environment("huge", "madvise")[pages.TUNABLES] == pages.ASKING


def test_a_program_gets_the_pages_that_it_is_to_have(touch: Path) -> None:
    how = here()
    assert trial.huge_bytes([str(touch), "2000"], "4k", how) == 0
    most = trial.huge_bytes([str(touch), "2000"], "huge", how)
    assert most is not None
    assert most > TOUCHED // 2
    small, huge = (trial.run([str(touch)], which, how, None) for which in pages.BOTH)
    assert small.faults > TOUCHED // 4096
    assert huge.faults < small.faults / 4
    # Of a program that ends at once it is not known.
    assert trial.huge_bytes(["true"], "4k", how) is None
    # What this test starts is not left without huge pages.
    assert trial.run([str(touch)], "huge", how, None).faults < small.faults / 4


def test_memory_of_programs_that_it_starts_counts(touch: Path) -> None:
    most = trial.huge_bytes(["sh", "-c", f"{touch} 2000; true"], "huge", here())
    assert most is not None
    assert most > TOUCHED // 2


def test_a_program_says_its_own_time(touch: Path) -> None:
    found = trial.run([str(touch)], "4k", "always", re.compile(r"Runtime: ([\d.]+)"))
    assert found.own_s == 1.5
    assert found.elapsed_s >= 0.1
    with pytest.raises(NestwalkError, match="nothing that it says matches"):
        trial.run([str(touch)], "4k", "always", re.compile("Took: (.*)"))
    with pytest.raises(NestwalkError, match="no number of seconds"):
        trial.run([str(touch)], "4k", "always", re.compile(r"Runtime: [\d.]+ (\w+)"))
    with pytest.raises(NestwalkError, match="nothing to compare"):
        trial.run(["echo", "Took 0 s"], "4k", "always", re.compile(r"Took (\d)"))


def test_a_ratio_is_taken_round_by_round() -> None:
    # A round that is disturbed is so with either kind of pages.
    done = made([2.2, 4.4, 2.2, 2.2, 2.2], [2.0, 4.0, 2.0, 2.0, 2.0])
    found = done.ratio("user_s")
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((1.1, 1.1, 1.1))
    assert "9.1% shorter" in text.headline(done)
    assert done.judged == "user_s"
    assert done.ratio("own_s") is None
    assert made([2.0], [1.0], own=True).judged == "own_s"


@pytest.mark.parametrize(
    ("small", "huge", "said"),
    [
        ([1.0] * 5, [1.1] * 5, "10.0% longer"),
        ([1.0, 1.1, 1.0, 0.9, 1.0], [1.0] * 5, "no difference"),
        ([1.2], [1.0], "too few rounds"),
    ],
)
def test_the_headline_says_what_is_clear(small: list[float], huge: list[float], said: str) -> None:
    assert said in text.headline(made(small, huge))


def test_intervals_are_claimed_only_where_there_are_some() -> None:
    few, enough = (" ".join(text.notes(made([2.0] * rounds, [1.0] * rounds))) for rounds in (2, 5))
    assert "without intervals, which need 5 rounds" in few
    assert "with bootstrapped 95 % intervals" in enough


def test_a_program_without_huge_pages_is_not_judged() -> None:
    done = made([1.0] * 5, [0.9] * 5, huge_bytes=0)
    assert "unavailable, because" in text.headline(done)
    assert "no huge pages" in " ".join(done.notes)
    assert "too short" in text.headline(made([0.0] * 5, [0.0] * 5))
    # Not known is not none.
    assert "shorter" in text.headline(made([1.0] * 5, [0.9] * 5, huge_bytes=None))


FILE = Shares(560, 700)


def of(small: Parts, huge: Parts, measured: Value, *, ci95: float = 0.0, shares: Shares = FILE) -> Held:
    return Held("4k", small, huge, Estimate(small.total / huge.total, ci95), measured, shares)


def test_ratios_agree_where_their_intervals_meet() -> None:
    small, huge = Parts(2, 4, 3), Parts(2, 4, 0)
    assert of(small, huge, Value(1.45, 1.4, 1.5)).agrees
    assert not of(small, huge, Value(1.35, 1.3, 1.4)).agrees
    assert of(small, huge, Value(1.35, 1.3, 1.4), ci95=0.11).agrees
    assert of(small, huge, Value(1.35)).agrees is None
    assert "too few rounds" in text.verdict(of(small, huge, Value(1.35)))
    assert "+11.1%" in text.verdict(of(small, huge, Value(1.35, 1.3, 1.4)))


def test_what_hides_of_walks_is_what_makes_ratios_equal() -> None:
    small, huge = Parts(2, 4, 2.8), Parts(2, 3.9, 0.07)
    one = of(small, huge, Value(1.2, 1.1, 1.3))
    assert one.critical(one.ratio.value) == pytest.approx(700)
    found = one.critical(1.2)
    assert found is not None
    scaled = [Parts(parts.work, parts.data, parts.walk * found / 700) for parts in (small, huge)]
    assert scaled[0].total / scaled[1].total == pytest.approx(1.2)
    # All of 4 cycles an access gives 1.68, none 1.017; beyond is nothing.
    assert one.critical(1.8) is None
    assert one.critical(1.0) is None
    assert of(Parts(1, 1, 0), Parts(1, 1, 0), Value(1.1)).critical(1.1) is None
    assert "no share of walk cycles" in text.critical(of(small, huge, Value(1.8, 1.7, 1.9)))


def waiting(parts: Parts, shares: Shares) -> float:
    """Cycles an access of a program with other shares than the file's."""
    data = parts.data / (1 - FILE.overlap / 1000) * (1 - shares.overlap / 1000)
    return parts.work + data + parts.walk / FILE.critical * shares.critical


def test_shares_are_those_with_which_both_times_come_out() -> None:
    small, huge = Parts(2, 4, 2.8), Parts(2, 3.9, 0.07)
    one = of(small, huge, Value(1.2, 1.1, 1.3))
    for wanted in (FILE, Shares(750, 750), Shares(0, 1000), Shares(1000, 0)):
        found = one.shares_for(waiting(small, wanted), waiting(huge, wanted))
        assert found is not None
        assert (found.overlap, found.critical) == pytest.approx((wanted.overlap, wanted.critical), abs=1e-6)
    assert one.shares_for(1.9, 1.9) is None, "less than the work alone"
    assert one.shares_for(16.0, 6.0) is None, "more than all walks"
    assert of(small, small, Value(1.0)).shares_for(5.0, 4.0) is None, "twice the same equation"
    assert of(small, huge, Value(1.2), shares=Shares(1000, 700)).shares_for(5.0, 4.0) is None, "data is not seen"


def test_cycles_an_access_are_of_the_whole_program() -> None:
    small, huge = Parts(2, 4, 2.8), Parts(2, 3.9, 0.07)
    one = of(small, huge, Value(1.2, 1.1, 1.3))
    wanted = Shares(800, 500)
    seconds = [waiting(parts, wanted) / 4 for parts in (small, huge)]
    done = made([seconds[0]] * 5, [seconds[1]] * 5)
    assert done.cycles("4k") is None, "without a trace"
    done.simulation = Simulation("x", 4000, 10**9, [one])
    assert done.cycles("huge") == pytest.approx([waiting(huge, wanted)] * 5)
    shares = done.shares(one)
    assert shares is not None
    assert [share.value for share in shares.values()] == pytest.approx([800, 500])
    said = " ".join(text.notes(done))
    assert "if 800 (800 to 800) thousandths of the data's latency are hidden" in said
    assert "the machine's file has 560" in said
    found = done.to_json()["held"][0]["timing_measured"]
    assert found["walk_critical_permille"]["value"] == pytest.approx(500)
    # A program that times a part of itself: how many accesses that has is not known.
    part = made([seconds[0]] * 5, [seconds[1]] * 5, own=True)
    part.simulation = done.simulation
    assert part.shares(one) is None
    assert "walk cycles" in " ".join(text.notes(part))
    # Most rounds with times that no shares give.
    odd = made([1e-4] * 4 + [seconds[0]], [1e-4] * 4 + [seconds[1]])
    odd.simulation = done.simulation
    assert odd.shares(one) is None


def test_a_trace_is_played_on_either_host() -> None:
    detected = machines.detect()
    footprint = traces.trace_info("bfs")["footprint_bytes"]
    done = held.hold("bfs", Value(1.1, 1.0, 1.2), machine="zen4")
    assert (done.machine, done.accesses) == ("zen4", traces.trace_info("bfs")["program_accesses"])
    found = done.held
    assert tuple(one.host for one in found) == held.hosts(detected)
    for one in found:
        # On a host with 4 KiB pages a huge page's parts have TLB entries of their own; else BFS hardly walks.
        assert one.small.walk > (2 if one.host == "4k" else 10) * one.huge.walk
        assert one.small.data == pytest.approx(one.huge.data, rel=0.2)
        assert one.ratio.value == pytest.approx(one.small.total / one.huge.total)
        assert one.ratio.value > 1.01
        # Its arrays are large mappings: most of its memory lies in huge pages.
        assert one.huge_bytes is None or one.huge_bytes > footprint * 0.8


def test_json_has_it_all(touch: Path) -> None:
    here()
    done = run_command("time", "--json", "-q", "--rounds", "2", "--own-time", r"Runtime: ([\d.]+)", "--", touch)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["schema"], found["rounds"], found["judged"], found["held"]) == (1, 2, "own_s", [])
    assert found["measures"]["own_s"]["ratio"] == {"value": 1.0, "low": None, "high": None}
    assert found["measures"]["faults"]["4k"]["value"] > found["measures"]["faults"]["huge"]["value"]
    assert found["program"] == [str(touch)]


def test_a_table_is_printed(touch: Path) -> None:
    here()
    done = run_command("time", "--rounds", "1", "--own-time", r"Runtime: ([\d.]+)", "--", touch)
    assert done.returncode == 0, done.stderr
    assert "no interval, because there are too few rounds" in done.stdout
    assert "page faults" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--", "sh", "-c", "echo gone; exit 3"], "sh: ended with exit code 3; it said: gone"),
        (["--", "sh", "-c", "kill -9 $$"], "sh: was ended by SIGKILL, and said nothing"),
        (["--", "./no-such-program"], "./no-such-program: cannot be started: No such file"),
        (["--own-time", "x(", "--", "true"], "no regular expression"),
        (["--own-time", "x", "--", "true"], "give one group"),
        (["--rounds", "0", "--", "true"], "give a whole number from 1 to 1000"),
        (["--machine", "zen4", "--", "true"], "give --trace, too"),
        (["--trace", "none", "--", "true"], "unknown trace 'none'"),
        (["--trace", "bfs", "--machine", "zen", "--", "true"], "unknown machine 'zen'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(command: Command, arguments: list[str], said: str) -> None:
    here()
    done = command("time", "-q", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_an_interrupt_ends_the_program_too(tmp_path: Path) -> None:
    here()
    pid = tmp_path / "pid"
    words = ["sh", "-c", f"echo $$ > {pid}; exec sleep 60"]
    process = subprocess.Popen([EXECUTABLE, "time", "-q", "--", *words], stderr=subprocess.PIPE, text=True)
    while not (pid.exists() and pid.read_text()):
        assert process.poll() is None
    time.sleep(0.5)  # the command gets to waiting
    process.send_signal(2)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130, said
    assert not Path("/proc", pid.read_text().strip()).exists()
