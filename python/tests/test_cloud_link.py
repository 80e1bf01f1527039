# SPDX-License-Identifier: MIT OR Apache-2.0
"""From a VM's number of segments to its mode, and from its mode to a program's time: natively, EPT, shadow, DS-n."""

from __future__ import annotations

import pytest

from nestwalk import reproduce as papers
from nestwalk.conduct import Means
from nestwalk.errors import NestwalkError
from nestwalk.pool import Silent
from nestwalk.reproduce import compromis, compromis_mmu
from nestwalk.reproduce.compromis_mmu import ProgramTime, mode_of
from nestwalk.reproduce.plan import Results, execute

MODES = ("native", "ept", "shadow", "ds1")


@pytest.fixture(scope="module")
def results() -> Results:
    """gcc and mcf in each mode, quickly."""
    plan = papers.plan("compromis-mmu", quick=True)
    wanted = {f"{preset}-{mode}" for preset in ("gcc", "mcf") for mode in MODES}
    return execute([run for run in plan.experiment.runs if run.name in wanted], Means(jobs=2), Silent())


@pytest.mark.parametrize(
    ("segments", "registers", "fallback", "mode"),
    [
        (1, 1, "ept", "ds1"),
        (2, 1, "ept", "ept"),
        (2, 1, "shadow", "shadow"),
        (2, 2, "shadow", "ds2"),
        (1, 3, "ept", "ds3"),
        (4, 3, "shadow", "shadow"),
        (5, 8, "ept", "ds3"),
        # Memory in no segment is not known to be in one.
        (0, 1, "ept", "ept"),
    ],
)
def test_the_mode_follows_from_the_segments(segments: int, registers: int, fallback: str, mode: str) -> None:
    assert mode_of(segments, registers, fallback) == mode
    assert mode in compromis_mmu.KERNELS


def test_another_fallback_is_refused() -> None:
    with pytest.raises(NestwalkError, match="did you mean 'shadow'"):
        mode_of(2, fallback="shadw")


def test_shadow_paging_pays_while_memory_is_filled(results: Results) -> None:
    """Its walks are native ones; its exits, each with its cost in the cost file, come with each page."""
    times = {mode: ProgramTime.of(results[f"mcf-{mode}"]) for mode in MODES}
    shadow = results["mcf-shadow"]
    costs = shadow.configuration["costs"]["events"]
    counters = shadow.statistics["kernels"][0]["counters"]
    by_hand = sum(count * costs[name]["cycles"] for name, count in counters.items() if name.startswith("shadow_"))
    assert times["shadow"].fill_exits == pytest.approx(by_hand, rel=0.01)
    assert times["shadow"].fill_exits / times["shadow"].pages > 10_000
    # EPT: one exit for each frame of the host; none natively; none under DS-1, whose memory is there from the start.
    assert times["ept"].fill_exits == results["mcf-ept"].whole_run["cycles"]["exits"]
    assert times["native"].fill_exits == times["ds1"].fill_exits == 0
    assert times["ds1"].fill < times["ept"].fill < times["shadow"].fill
    assert times["shadow"].walks == pytest.approx(times["native"].walks, rel=0.05)
    assert times["native"].walks < times["ds1"].walks < times["ept"].walks
    for time in times.values():
        assert time.run(0) == time.fill
        assert time.run(1e6) == time.fill + 1e6 * time.steady


def test_a_run_s_time_has_one_fill(results: Results) -> None:
    accesses = compromis_mmu.run_accesses(results, "gcc")
    assert accesses is not None
    # The paper's DS seconds are walks: those of filling memory, and those of the run.
    base = results["gcc-ds1"].statistics
    hertz = results["gcc-ds1"].configuration["machine"]["frequency_mhz"] * 1e6
    walked = base["walk_cycles"] / base["accesses"] * accesses
    walked += base["populated_pages"] * results["gcc-ds1"].row["walk_latency_cycles"]
    assert walked / hertz == pytest.approx(compromis_mmu.DS_SECONDS["gcc"])
    shadow, native = (ProgramTime.of(results[f"gcc-{mode}"]) for mode in ("shadow", "native"))
    above = compromis_mmu.above_native(results, "gcc", "shadow")
    assert above == pytest.approx(100 * (shadow.run(accesses) / native.run(accesses) - 1))
    # Without its exits it would be less.
    without = shadow.run(accesses) - shadow.fill_exits
    assert 100 * (without / native.run(accesses) - 1) < above
    # mcf's length is not given: what is left is the steady part.
    assert compromis_mmu.run_accesses(results, "mcf") is None
    row = {mode: results[f"mcf-{mode}"].row["cycles_per_access"] for mode in ("ept", "native")}
    assert compromis_mmu.above_native(results, "mcf", "ept") == pytest.approx(100 * (row["ept"] / row["native"] - 1))


def test_shadow_paging_is_even_with_ept_where_it_is_said(results: Results) -> None:
    for preset in ("gcc", "mcf"):
        even = compromis_mmu.even_accesses(results, preset)
        assert even is not None
        shadow, ept = (ProgramTime.of(results[f"{preset}-{mode}"]) for mode in ("shadow", "ept"))
        accesses = even * shadow.pages
        assert shadow.run(accesses) == pytest.approx(ept.run(accesses))
        assert shadow.run(accesses / 2) > ept.run(accesses / 2)
        assert shadow.run(accesses * 2) < ept.run(accesses * 2)
    # The other way round, it never is.
    turned = {"gcc-ept": results["gcc-shadow"], "gcc-shadow": results["gcc-ept"]}
    assert compromis_mmu.even_accesses(Results(turned), "gcc") is None


def test_the_mean_over_vms_is_weighted_by_their_modes(results: Results) -> None:
    above = {mode: compromis_mmu.above_native(results, "mcf", mode) for mode in MODES}
    histogram = {1: 6, 2: 3, 70: 1}
    for fallback in ("ept", "shadow"):
        expected = 0.6 * above["ds1"] + 0.4 * above[fallback]
        assert compromis.mean_above(results, "mcf", histogram, fallback) == pytest.approx(expected)
    assert compromis.mean_above(results, "mcf", {}, "ept") is None
