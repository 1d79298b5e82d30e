"""The views beside the three stages: frequency, steps, info; and the fields that every answer has by contract."""

import dataclasses
from pathlib import Path
from statistics import median

import pytest
from support.trace_builder import trace

from kair_engine.errors import UsageError
from kair_engine.results.blame import BlamePath, BlameResult, PathNode, RootCause
from kair_engine.results.evidence_kinds import Evidence
from kair_engine.results.localize import LocalizeResult, RankScore
from kair_engine.results.pinpoint import Outlier, PinpointResult
from kair_engine.results.triage import Finding, RankedRank, TriageResult
from kair_engine.results.views import FrequencyResult
from kair_engine.trace.model import Trace
from kair_engine.views.frequency import frequency
from kair_engine.views.overview import info, steps


def regular(folder: Path, rank_3: str) -> Trace:
    """Ranks 0 to 2 run four operations in each tenth of the step; rank 3 what it is given."""
    often = " | ".join(f"op {at}+5" for at in range(0, 1000, 25))
    return trace(folder, f"step 0: 0+1000\n0-2 gpu7 | {often}\n3 gpu7 | {rank_3}")


def test_frequency_counts_what_began_in_each_window(tmp_path: Path) -> None:
    made = trace(
        tmp_path, "step 0: 0+100\n0 gpu7 | a 0+5 | a 12+5 | b 15+5 | a 99+1\n1 gpu7 | a 50+5 | layer 0+99 :scope"
    )
    every = frequency(made, windows=10)
    assert (every.operator, every.window_us, every.windows) == ("*", 10, 10)
    assert [(row.rank, row.counts) for row in every.counts] == [
        (0, (1, 2, 0, 0, 0, 0, 0, 0, 0, 1)),
        (1, (0, 0, 0, 0, 0, 1, 0, 0, 0, 0)),
    ]
    assert [row.counts for row in frequency(made, operator="b", windows=2).counts] == [(1, 0), (0, 0)]


def test_a_window_without_its_operators_is_missing(tmp_path: Path) -> None:
    # It pauses from 300 to 600, and makes up for it.
    some = " | ".join(f"op {at}+5" for at in (*range(0, 300, 25), *range(605, 997, 14)))
    result = frequency(regular(tmp_path, some), windows=10)
    missing = [window for window in result.degraded if window.state == "missing"]
    assert [(window.rank, window.window, window.start_us, window.count, window.expected) for window in missing] == [
        (3, 4, 400, 0, 4)
    ]
    assert {window.rank for window in result.degraded} == {3}


def test_the_peers_are_all_but_the_rank_itself(tmp_path: Path) -> None:
    # Forty operations on every rank, in ten windows as uneven as the rank's number says; rank 5 begins late.
    begins = {rank: [at + (rank * at // 37) % 17 for at in range(0, 960, 24)] for rank in range(5)}
    begins[5] = list(range(600, 1000, 10))
    lines = [f"{rank} gpu7 | " + " | ".join(f"op {at}+1" for at in of_rank) for rank, of_rank in begins.items()]
    result = frequency(trace(tmp_path, "\n".join(["step 0: 0+1000", *lines])), windows=10)
    assert {(window.rank, window.window) for window in result.degraded} == {(5, window) for window in range(5)}
    counts = {row.rank: row.counts for row in result.counts}
    for window in result.degraded:
        others = [counts[rank][window.window] for rank in counts if rank != window.rank]
        assert (window.count, window.expected) == (counts[window.rank][window.window], median(others))


def test_all_ranks_alike_have_no_degraded_window(tmp_path: Path) -> None:
    assert (
        frequency(regular(tmp_path, " | ".join(f"op {at}+5" for at in range(3, 1000, 25))), windows=10).degraded == ()
    )


@pytest.mark.parametrize("windows", [4, 10, 40])
def test_a_region_is_found_whatever_number_of_windows_is_drawn(tmp_path: Path, windows: int) -> None:
    # One long operation, within another one, from 300 to 600; the rest of the step's operations are made up for.
    some = " | ".join(f"op {at}+5" for at in (*range(0, 300, 25), *range(605, 997, 14)))
    made = regular(tmp_path, f"{some} | around 299+305 | long 300+300")
    result = frequency(made, windows=windows)
    (region,) = result.regions
    assert (region.rank, region.operator) == (3, "long")
    assert region.expected - region.count >= 4
    assert 300 <= region.start_us + region.duration_us / 2 <= 600
    low = [window for window in result.degraded if window.rank == 3]
    assert sum(window.expected - window.count for window in low) >= region.expected - region.count
    assert (region.start_us // result.window_us) in {window.window for window in low}


def test_an_operator_that_runs_a_few_times_a_step_has_regions_too(tmp_path: Path) -> None:
    some, late = (" | ".join(f"op {at}+5" for at in of) for of in ((100, 200, 300, 600), (600, 700, 800, 900)))
    result = frequency(
        trace(tmp_path, f"step 0: 0+1000\n0-2 gpu7 | {some}\n3 gpu7 | {late}"), operator="op", windows=40
    )
    assert {region.rank for region in result.regions} == {3}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"operator": "nothing"}, "no operation matches 'nothing'"),
        ({"phase": "warmup"}, "unknown phase 'warmup'"),
        ({"windows": 0}, "at least one window"),
        ({"windows": 10_000_000}, "10000000 windows are too many"),
    ],
)
def test_a_frequency_that_cannot_be_counted_is_turned_down(tmp_path: Path, asked: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        frequency(regular(tmp_path, "op 0+5"), **asked)


def test_steps_are_summed_over_their_ranks(tmp_path: Path) -> None:
    result = steps(
        trace(tmp_path, "step 4: 10+100\n0-1 main | a 10+5\n2 step | 30+120\nstep 5: 200+50\n0-2 main | a 200+5")
    )
    assert [(s.step, s.ranks, s.median_us, s.max_us, s.slowest_rank) for s in result.summary] == [
        (4, 3, 100, 120, 2),
        (5, 3, 50, 50, 0),
    ]
    assert [(s.step, s.rank, s.begin_us, s.duration_us, s.operations) for s in result.steps][:3] == [
        (4, 0, 0, 100, 1),
        (4, 1, 0, 100, 1),
        (4, 2, 20, 120, 0),
    ]


def test_a_step_a_tenth_longer_than_the_median_is_slow(tmp_path: Path) -> None:
    lengths = {4: 100, 5: 111, 6: 100, 7: 109, 8: 100}
    table = "\n".join(
        f"step {step}: {200 * step}+{length}\n0-1 main | a {200 * step}+5" for step, length in lengths.items()
    )
    made = trace(tmp_path, table)
    assert {s.step: s.slow for s in steps(made).summary} == {4: False, 5: True, 6: False, 7: False, 8: False}
    assert not any(s.slow for s in steps(made.select([5])).summary)


def test_info_tells_clocks_roles_and_collectives(tmp_path: Path) -> None:
    table = "step 0: 0+100\n0-2 gpu7 | allreduce@dp#1 10+20 | allreduce@dp#2 40+20\n0-1 gpu7 | allreduce@tp#1 70+5"
    result = info(trace(tmp_path, table, shift={2: 5000}, hosts={0: "a", 1: "a", 2: "b"}))
    assert (result.world_size, result.ranks, result.hosts) == (3, (0, 1, 2), {"a": (0, 1), "b": (2,)})
    assert (result.collectives, result.matched_collectives) == (3, 3)
    assert result.operations_by_kind == {"collective": 8}
    assert (result.clock.source, result.clock.residual_us, result.clock.max_offset_us) == ("collectives", 0, 5000)


def test_info_counts_operators_when_asked(tmp_path: Path) -> None:
    table = "step 0: 0+100\n0-1 main | a 0+5 /forward | b 10+5 | a 20+5 /backward\n0 main | layer 0+99 :scope"
    made = trace(tmp_path, table)
    assert info(made).operators == ()
    assert [(row.operator, row.count, row.phases) for row in info(made, operators=True).operators] == [
        ("a", 4, ("backward", "forward")),
        ("b", 2, ()),
    ]


PROMISED = {
    Evidence: "sentence command figures",
    Finding: "cause pattern ranks hosts operator edge steps p_value time_lost_us_per_step slowdown evidence suggestion",
    RankedRank: "rank host role score flagged self_time_excess_us wait_imposed_us",
    TriageResult: "verdict summary findings ranking",
    LocalizeResult: "method scores",
    RankScore: "rank host role score p_value flagged",
    PinpointResult: "rank method outliers",
    Outlier: "step operator phase occurrence start_z duration_z score start_us duration_us expected_duration_us",
    BlameResult: "step paths root_causes",
    BlamePath: "symptom chain",
    PathNode: "rank operator kind start_us duration_us lateness_us role_in_path",
    RootCause: "rank operator cause is_edge blamed_us share steps",
    FrequencyResult: "operator window_us windows counts degraded",
}


@pytest.mark.parametrize("record", PROMISED)
def test_an_answer_has_the_fields_that_are_promised(record: type) -> None:
    fields = {field.name for field in dataclasses.fields(record)}
    assert set(PROMISED[record].split()) <= fields
