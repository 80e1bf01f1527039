# SPDX-License-Identifier: MIT OR Apache-2.0
"""The verdict on made-up rows: what is equal, what is better, who must act, and what is said where nothing is known."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
from support import Made

from nestwalk import comparisons, intervals, matrix, palette, tables, techniques, verdict, whole_run
from nestwalk.comparisons import Comparison
from nestwalk.counters import Modelled
from nestwalk.errors import NestwalkError
from nestwalk.intervals import Estimate
from nestwalk.result import Result
from nestwalk.verdict import Candidate, Group, Verdict


def row(name: str, gain: float, ci95: float | None, who: str | None = "settings", role: str = "advice") -> Candidate:
    return Candidate(name, f"VM, {name}", role, who, (), "do it", Estimate(gain, ci95))


def group(*rows: Candidate) -> Group:
    def difference(one: Candidate, two: Candidate) -> Estimate:
        return one.gain - two.gain

    return Group("alone", "redis", "VM, plain", Estimate(0.14, 0.01), rows, difference)


def names(made: Group, *rows: Candidate) -> list[list[str]]:
    return [[one.configuration for one in tier] for tier in made.tiers(rows)]


def test_rows_apart_by_more_than_their_interval_are_ranked() -> None:
    rows = row("a", 0.05, 0.01), row("b", 0.13, 0.01), row("c", 0.09, 0.01)
    assert names(group(*rows), *rows) == [["b"], ["c"], ["a"]]


def test_rows_within_the_interval_are_equal_and_none_is_best() -> None:
    rows = row("a", 0.12, 0.02), row("b", 0.13, 0.02), row("c", 0.05, 0.01)
    made = group(*rows)
    assert names(made, *rows) == [["b", "a"], ["c"]]
    line = made.class_line("settings")
    assert "b (13.0 ±2.0 %) and a (12.0 ±2.0 %) (equal within the interval), c 5.0 ±1.0 %." in line
    assert {entry["configuration"]: entry["equal_to"] for entry in made.advice} == {"b": ["a"], "a": ["b"], "c": []}
    assert not {"best", "fastest", "slowest"} & set(" ".join(made.lines).split())


def test_a_difference_as_large_as_its_interval_is_none() -> None:
    assert Estimate(0.01, 0.01).differs is False
    assert Estimate(-0.0101, 0.01).differs is True
    assert Estimate(0.01, None).differs is None
    assert Estimate(0.0, 0.0).differs is False


def test_exact_ties_are_equal_also_without_any_scatter() -> None:
    rows = row("a", 0.1, 0.0), row("b", 0.1, 0.0), row("c", 0.2, 0.0)
    assert names(group(*rows), *rows) == [["c"], ["a", "b"]]


def test_what_does_not_differ_from_the_plain_vm_gives_nothing_back() -> None:
    made = group(row("a", 0.004, 0.01), row("b", -0.03, 0.01))
    assert made.class_line("settings") == (
        "Given back by settings: nothing. No difference within the interval: a. More time: b 3.0 ±1.0 %."
    )
    assert [entry["finding"] for entry in made.advice] == ["equal", "takes more"]


def test_a_line_says_how_many_rows_it_leaves_out() -> None:
    made = group(*(row(f"r{place}", (20 - place) / 100, 0.001) for place in range(10)))
    line = made.class_line("settings")
    assert "r5 15.0 ±0.1 %, 4 more, which are smaller." in line
    assert "r6" not in line
    assert len(made.advice) == 10


def test_without_an_interval_nothing_is_ranked() -> None:
    made = group(row("a", 0.1, None), row("b", 0.2, None))
    assert names(made, *made.candidates) == [["b"], ["a"]]
    line = made.class_line("settings")
    assert "no interval is known" in line
    assert "b +20.0 %, a +10.0 %" in line
    assert {entry["finding"] for entry in made.advice} == {"unknown"}


def test_rows_stand_by_who_must_act_and_limits_are_no_advice() -> None:
    made = group(
        row("new", 0.3, 0.01, "hardware"),
        row("patch", 0.2, 0.01, "kernel patch"),
        row("set", 0.1, 0.01),
        row("native", 0.4, 0.01, None, "limit"),
        row("nested", -0.4, 0.01, None, "setup"),
    )
    assert [entry["configuration"] for entry in made.advice] == ["set", "patch", "new"]
    found = Verdict((made,)).to_json()
    assert found["walk_share"] == 0.14
    assert [entry["configuration"] for entry in found["limits"]] == ["native"]
    assert [entry["configuration"] for entry in found["setups"]] == ["nested"]
    assert found["sentence"].startswith(
        "In a plain VM (plain), page walks take 14.0 ±1.0 % of redis' time. Given back by"
    )
    assert "native" not in found["sentence"]
    heads = [line.split(":")[0] for line in made.lines[1:]]
    assert heads == [
        "Given back by settings",
        "Given back by kernel patches",
        "Given back by new hardware",
        "Limits, not to be had in a VM",
        "Other set-ups",
    ]


def run(cycles: list[int], accesses: int = 100, warm_accesses: int = 0, **whole: Any) -> Result:
    """A result with these windows' cycles, a tenth of which are walks."""
    windows = [
        {"accesses": accesses, "cycles": {"work": number - number // 10, "data": 0, "walk": number // 10, "os": 0}}
        for number in cycles
    ]
    total = {"work": sum(cycles), "data": 0, "walk": 0, "os": 0}
    statistics = {
        "windows": windows,
        "warm_accesses": warm_accesses,
        "accesses": accesses * len(cycles),
        "cycles": total,
    }
    per_access = sum(cycles) / accesses / len(cycles)
    values = {"cycles_per_access": per_access, "cycles_per_access_ci95": 1.0, "walks_per_kiloaccess": 1.0}
    unknown = {"accesses": None, "unavailable": "unavailable, because", "estimated_cycles": 0, "faults": 0, "exits": 0}
    warm = {"warm_up": {"reached": True}}
    return Result({"statistics": statistics, "row": values, "whole_run": {**unknown, "cycles": {}, **whole}, **warm})


def test_windows_are_held_against_each_other_one_by_one() -> None:
    # Windows scatter by a factor of three, and each gains a tenth: the gain is known exactly.
    plain, fast = run([1000, 2000, 3000]), run([900, 1800, 2700])
    gain = intervals.gain(fast, plain)
    assert gain is not None
    assert gain.value == pytest.approx(0.1)
    assert gain.ci95 == pytest.approx(0.0, abs=1e-12)
    # A hand-worked one: gains 50, 100, 450 of 1000 each; R = 0.2; s = sqrt(47500) = 217.9; t(2) = 4.303.
    gain = intervals.gain(run([950, 900, 550]), run([1000, 1000, 1000]))
    assert gain is not None
    assert gain.value == pytest.approx(0.2)
    assert gain.ci95 == pytest.approx(4.303 * (47500 / 3) ** 0.5 / 1000)


def test_windows_without_a_share_say_nothing_of_a_ratio() -> None:
    alone = intervals.ratio([9251, *[0] * 79], [128, *[0] * 79])
    assert alone == Estimate(9251 / 128, None)
    assert intervals.ratio([1, 0, 2, 0, 3], [1, 0, 1, 0, 1]) == intervals.ratio([1, 2, 3], [1, 1, 1])


def test_what_a_captures_model_explains_does_not_widen_an_interval() -> None:
    # The technique gives back half of the walk cycles, which the model counts; windows have none to 500 of 1000.
    walks = [0, 100, 500, 300, 200, 500]
    plain, fast = run([1000] * 6), run([1000 - count // 2 for count in walks])
    alone = intervals.gain(fast, plain)
    assert alone is not None
    assert alone.ci95 is not None

    def counted(walk_cycles: int, windows: int = 1) -> Modelled:
        accesses = 10 * windows
        return {
            "accesses": accesses,
            "walks": 1,
            "walk_cycles": walk_cycles,
            "data_cycles": 990 * windows - walk_cycles,
        }

    for window, count in zip(plain.statistics["windows"], walks, strict=True):
        window["modelled"] = counted(count)
    assert intervals.modelled(plain) is None, "nothing is known of the program"
    plain.statistics["modelled_program"] = counted(60 * sum(walks), 360)
    beside = intervals.gain(fast, plain)
    assert beside is not None
    assert beside.value == alone.value
    assert beside.ci95 == pytest.approx(0, abs=1e-9)
    assert alone.ci95 > 0.1
    # The program has a tenth more walk cycles than the windows: their gain is off by as much.
    plain.statistics["modelled_program"] = counted(66 * sum(walks), 360)
    beside = intervals.gain(fast, plain)
    assert beside is not None
    assert beside.ci95 == pytest.approx(alone.value / 10)


def test_other_windows_are_taken_as_independent_and_few_have_no_interval() -> None:
    gain = intervals.gain(run([900] * 3, accesses=50), run([1000] * 3))
    assert gain is not None
    assert gain.value == pytest.approx(1 - 18 / 10)
    assert gain.ci95 == pytest.approx(2**0.5 / 10)
    # Windows of as many accesses, but of another part of the program.
    gain = intervals.gain(run([900] * 3, warm_accesses=64), run([1000] * 3))
    assert gain is not None
    assert gain.ci95 == pytest.approx(2**0.5 / 10)
    relative = comparisons.relative_interval(run([900] * 3, warm_accesses=64), run([1000] * 3))
    assert relative == pytest.approx(2**0.5 / 10)
    few = intervals.gain(run([900] * 2), run([1000] * 2))
    assert few is not None
    assert few.ci95 is None


def made_up(runs: dict[str, list[int]], **whole: Any) -> Comparison:
    plan = comparisons.plan(configurations=list(runs))
    order = [cell.name for cell in plan.matrix.cells]
    return Comparison(plan, tuple(run(runs[name], **whole) for name in order))


def test_each_group_is_held_against_its_own_plain_vm() -> None:
    done = made_up(
        {
            "vm-4k": [1000] * 3,
            "vm-thp": [800] * 3,
            "vm-4k+smt": [2000] * 3,
            "vm-thp+smt": [1900] * 3,
            "native-4k": [700] * 3,
        }
    )
    alone, beside = done.verdict.groups
    assert [entry["gain"] for entry in alone.advice] == [pytest.approx(0.2)]
    assert [entry["gain"] for entry in beside.advice] == [pytest.approx(0.05)]
    rows = {made["configuration"]: made for made in done.rows}
    assert rows["vm-thp+smt"]["against_baseline"] == pytest.approx(0.95)
    assert rows["vm-thp+smt"]["relative_time"] == pytest.approx(1900 / 700)
    assert done.verdict.to_json()["advice"][0]["how"] == "host: THP always, or madvise with QEMU; guest: THP always"


def test_without_the_plain_vm_there_is_no_verdict_but_a_reason() -> None:
    found = made_up({"native-4k": [700] * 3}).verdict.to_json()
    assert found["unavailable"] == "unavailable, because vm-4k is not among the rows"
    assert (found["advice"], found["walk_share"]) == ([], None)


def test_rows_measured_at_another_place_of_the_program_are_named() -> None:
    order = ("vm-4k", "vm-thp", "vm-ptemagnet", "vm-hugegpt")
    plan = comparisons.plan(configurations=list(order))
    assert [cell.name for cell in plan.matrix.cells] == list(order)
    warm = dict(zip(order, (67, 268, 68, 20), strict=True))
    results = tuple(run([1000] * 3, warm_accesses=warm[name] * 10**6) for name in order)
    done = Comparison(plan, results)
    assert done.elsewhere == [], "lengths that somebody chose"
    for result in results:
        result.warm_up["accesses_max"] = 600_000_000
    titles = [cell.configuration.title for cell in plan.matrix.cells]
    assert done.elsewhere == [
        f"{titles[1]} (268 000 000 and 67 000 000 accesses)",
        f"{titles[3]} (20 000 000 and 67 000 000 accesses)",
    ]
    said = tables.elsewhere(done)
    assert said is not None
    assert titles[1] in said
    assert titles[2] not in said


def test_the_whole_run_counts_what_was_paid_before() -> None:
    plan = comparisons.plan(configurations=["vm-4k", "vm-shadow"])
    plain = run([1000] * 3, unavailable=None)
    shadow = run([800] * 3, unavailable=None, estimated_cycles=2000)
    for result, exits in ((plain, 1000), (shadow, 7000)):
        result.whole_run.update({"accesses": 1000, "cycles": {"exits": exits}})
    done = Comparison(plan, (plain, shadow))
    rows = {made["configuration"]: made for made in done.rows}
    # 10 and 8 cycles an access measured; 1 and 9 more for the exits.
    assert rows["vm-4k"]["whole_run_cycles_per_access"] == pytest.approx(11)
    assert rows["vm-shadow"]["whole_run_against_baseline"] == pytest.approx(17 / 11)
    assert rows["vm-shadow"]["whole_run_kernel_share"] == pytest.approx(9 / 17)
    (entry,) = done.verdict.to_json()["advice"]
    assert entry["gain"] == pytest.approx(0.2)
    assert entry["whole_run_gain"] == pytest.approx(1 - 17 / 11)
    assert entry["whole_run_gain_ci95"] == rows["vm-shadow"]["whole_run_against_baseline_ci95"]
    assert f"shadow paging about {verdict.MINUS}54.5" in done.verdict.groups[0].lines[-1]


def test_a_row_that_loses_over_the_whole_run_is_never_named_without_that() -> None:
    def paid(name: str, gain: float, whole: float | None, role: str = "advice", **rest: Any) -> Candidate:
        estimate = None if whole is None else Estimate(whole, 0.002)
        return Candidate(name, name, role, "settings", (), "", Estimate(gain, 0.01), estimate, **rest)

    made = group(
        paid("wins", 0.12, 0.2),
        paid("loses", 0.08, -0.18),
        paid("equal", 0.0, -0.05, estimated=True),
        paid("worse", -0.03, -0.032),
        paid("nested", 0.0, -0.26, role="setup"),
    )
    line = made.class_line("settings")
    assert "wins 12.0 ±1.0 %," in line
    assert "loses 8.0 ±1.0 % (over the whole run 18.0 ±0.2 % more time)." in line
    assert "interval: equal (over the whole run about 5.0 ±0.2 % more time)." in line
    assert line.endswith("More time: worse 3.0 ±1.0 %.")
    late = group(paid("late", -0.002, 0.04), paid("later", 0.03, 0.05))
    assert "More time: late 0.2 ±1.0 %" not in late.class_line("settings")
    assert "interval: late (over the whole run 4.0 ±0.2 % less time)" in late.class_line("settings")
    assert "later 3.0 ±1.0 %." in late.class_line("settings")
    assert "nested makes no difference within the interval (over the whole run 26.0 ±0.2 % more time)." in made.lines[2]
    assert f"wins +20.0 ±0.2 %, worse {verdict.MINUS}3.2 ±0.2 %, equal about {verdict.MINUS}5.0" in made.lines[-1]
    unknown = group(paid("shadow", 0.08, None, kernel_work=3.26), paid("thp", 0.1, None, kernel_work=0.1))
    assert "shadow 8.0 ±1.0 % (kernel work from the beginning on 3.3 times the plain VM's)" in unknown.lines[1]
    assert "thp 10.0 ±1.0 %, shadow" in unknown.lines[1]


def test_the_interval_of_the_whole_run_is_that_of_its_measured_part() -> None:
    plain, fast = run([1000, 2000, 3000], unavailable=None), run([950, 1900, 2350], unavailable=None)
    for result in (plain, fast):
        result.whole_run.update({"accesses": 1000, "cycles": {"exits": 10_000}})
    # 20 cycles an access, 10 of kernel work; saved 0.5, 1, 6.5 of 20, 30, 40: R = 4/45; residuals by hand.
    gain = whole_run.gain(fast, plain)
    assert gain is not None
    rows = [whole_run.row(result)["whole_run_cycles_per_access"] for result in (fast, plain)]
    assert gain.value == pytest.approx(1 - rows[0] / rows[1]) == pytest.approx(800 / 9000)
    residuals = [50 - 2000 * gain.value, 100 - 3000 * gain.value, 650 - 4000 * gain.value]
    error = (sum(residual**2 for residual in residuals) / 2 / 3) ** 0.5 / 3000
    assert gain.ci95 == pytest.approx(4.303 * error)
    assert whole_run.gain(run([900] * 3), run([1000] * 3)) is None


def test_what_comes_back_besides_the_walks_is_said() -> None:
    done = made_up({"vm-4k": [1000] * 3, "vm-thp": [700] * 3, "vm-host-2m": [950] * 3})
    for result, data in zip(done.results, (200, 190, 50), strict=True):
        result.statistics["cycles"].update({"data": 3 * data, "work": result.statistics["cycles"]["work"] - 3 * data})
    lines = done.verdict.groups[0].lines
    more = "THP in guest and host gives back more than the walks"
    assert f"{more}: waiting for data falls by 15.0 % of the time." in lines
    done = made_up({"vm-4k": [1000] * 3, "vm-thp": [950] * 3})
    assert not [line for line in done.verdict.groups[0].lines if more in line]


def test_colours_are_told_apart() -> None:
    colours = [technique.colour for technique in techniques.known().values()]
    values = [tuple(int(text[at : at + 2], 16) for at in (1, 3, 5)) for text in (*colours, palette.PLAIN)]
    values += [tuple(int(text[at : at + 2], 16) for at in (1, 3, 5)) for text in palette.ROLES.values()]
    for one, two in itertools.combinations(values, 2):
        # The weighted distance of Compuphase's "Colour metric"; two shades of gold have 50.
        red = (one[0] + two[0]) / 2
        weights = (2 + red / 256, 4, 2 + (255 - red) / 256)
        apart = sum(weight * (a - b) ** 2 for weight, a, b in zip(weights, one, two, strict=True)) ** 0.5
        assert apart > 95, (one, two)


def test_what_a_matrix_names_fits_together() -> None:
    for name in ("standard", "everything", "superpages", "contiguous"):
        for cell in matrix.load(name).cells:
            entry = cell.configuration
            if entry.role != "advice":
                continue
            assert entry.changes is not None, entry.name
            used = [techniques.find(used) for used in entry.techniques or ()]
            assert {who for technique in used for who in technique.who} == set(entry.changes), entry.name
            assert bool(used) == bool(entry.changes), entry.name


def test_every_technique_says_how_and_how_to_see_it() -> None:
    colours = [technique.colour for technique in techniques.known().values()]
    assert len(set(colours)) == len(colours)
    for technique in techniques.known().values():
        assert technique.get
        assert set(technique.who) <= set(techniques.WHO)
        assert bool(technique.check) == ("hardware" not in technique.who), technique.name
        assert technique.link.startswith("https://")


def test_a_misspelt_technique_is_refused_with_the_nearest() -> None:
    text = 'schema = 1\n[[configuration]]\nname = "a"\ntechniques = ["hugegtp"]\n'
    with pytest.raises(NestwalkError, match="did you mean 'hugegpt'"):
        matrix.parse(text, "x.toml")
    with pytest.raises(NestwalkError, match="unknown role 'remedy'"):
        matrix.parse('schema = 1\n[[configuration]]\nname = "a"\nrole = "remedy"\n', "x.toml")


def test_the_command_gives_the_verdict(made: Made) -> None:
    found = made.json["verdict"]
    assert found["unavailable"] is None
    assert 0 < found["walk_share"] < 1
    assert found["sentence"].startswith("In a plain VM (4 KiB on both sides), page walks take ")
    advised = [entry["configuration"] for entry in found["advice"]]
    assert "vm-thp" in advised
    assert not {name for name in advised if name.startswith(("native", "vm-4k", "vm-in-vm"))}
    assert [entry["who"] for entry in found["advice"][:4]] == ["settings"] * 4
    assert {entry["variant"] for entry in found["advice"]} == {"alone", "with an SMT co-runner"}
    for entry in found["advice"]:
        assert {"configuration", "who", "gain", "gain_ci95", "how"} <= set(entry)
        assert entry["how"]


def test_shadow_paging_and_a_vm_in_a_vm_do_not_look_free(made: Made) -> None:
    rows = {row["configuration"]: row for row in made.json["rows"]}
    for name in ("vm-shadow", "vm-in-vm"):
        assert rows[name]["whole_run_exits"] > rows["vm-4k"]["whole_run_exits"] > 0
        assert rows[name]["whole_run_kernel_share"] > rows["vm-4k"]["whole_run_kernel_share"]
        assert rows[name]["whole_run_against_baseline"] > rows[name]["against_baseline"]
    sentence = made.json["verdict"]["sentence"]
    assert re.search(r"shadow paging [\d.]+ ±[\d.]+ % \(over the whole run [\d.]+ ±[\d.]+ % more time\)", sentence)
    assert re.search(r"VM in a VM (takes|gives back|makes no difference)", str(made.json["verdict"]["groups"][0]))
    setups = next(line for line in made.json["verdict"]["groups"][0]["lines"] if line.startswith("Other set-ups"))
    assert re.search(r"\(over the whole run [\d.]+ ±[\d.]+ % more time\)", setups)
    page = (made.folder / "report.html").read_text(encoding="utf-8")
    row = re.search(r'<tr><td data-value="VM in a VM">.*?data-label="same, whole run"[^>]*>([\d.]+)', page)
    assert row
    assert float(row[1]) == pytest.approx(rows["vm-in-vm"]["whole_run_against_baseline"], abs=0.001)
    assert rows["native-4k"]["whole_run_exits"] == 0


def test_a_lone_verdict_of_nothing_is_a_sentence() -> None:
    assert Verdict((), "unavailable, because x").sentence == "unavailable, because x"
    assert verdict.short("VM, THP") == "THP"
