"""Recordings that do not belong together: they are told and left out, and those that belong stay."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support import kineto_builder as kb
from support.altered import Content, altered, nothing
from support.places import CASES
from support.several_runs import mixed, write_run

from kair_engine.errors import InputError
from kair_engine.recording.opening import open_trace
from kair_engine.results.triage import Finding, TriageResult
from kair_engine.trace.model import Trace
from kair_engine.triage.analysis import triage

pytestmark = pytest.mark.slow

MS = 1000


def opened(folder: Path) -> Trace:
    return open_trace(folder, cache=folder.parent / "cache")


def answer(folder: Path) -> TriageResult:
    return triage(opened(folder))


def codes(trace: Trace) -> set[str]:
    return {warning.code for warning in trace.job.warnings}


def told(trace: Trace, code: str) -> str:
    (message,) = (warning.message for warning in trace.job.warnings if warning.code == code)
    return message


def culprit(result: TriageResult) -> Finding:
    (finding,) = (one for one in result.findings if one.ranks)
    return finding


steps = st.lists(st.integers(900, 1300), min_size=8, max_size=8)
once = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@once
@given(
    lengths=steps,
    others=steps,
    stale=st.integers(0, 3),
    ahead_ms=st.lists(st.sampled_from([0.0, 0.3, 7.0, 600.0, 86_400_000.0]), min_size=4, max_size=4),
    names=st.permutations(["a.json", "node7_1.json", "z_3.pt.trace.json", "host=x/1.json"]),
)
def test_a_file_of_another_run_lowers_no_price_unseen(
    lengths: list[int],
    others: list[int],
    stale: int,
    ahead_ms: list[float],
    names: list[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Whatever the steps of the other run take; and clocks, names and hosts of those that belong change nothing."""
    folder = tmp_path_factory.mktemp("runs")
    ahead = {rank: ms * MS for rank, ms in enumerate(ahead_ms)}
    own = [rank for rank in range(4) if rank != stale]
    plain = answer(write_run(folder / "plain", lengths, ranks=own, slow=(stale + 1) % 4))
    made = write_run(
        folder / "mixed",
        lengths,
        ranks=own,
        slow=(stale + 1) % 4,
        ahead_us=ahead,
        host="localhost",
        names=dict(enumerate(names)),
    )
    write_run(made, others, ranks=[stale], ahead_us=ahead, names=dict(enumerate(names)))
    trace = opened(made)
    result = triage(trace)
    if codes(trace) & {"other_run"}:
        assert trace.job.ranks == tuple(own)
        assert culprit(result).ranks == culprit(plain).ranks
        assert culprit(result).time_lost_us_per_step == pytest.approx(culprit(plain).time_lost_us_per_step, rel=0.01)
    elif result.verdict != "inconclusive":
        # Some clock would make the file one of the run.
        assert culprit(result).time_lost_us_per_step >= 0.9 * culprit(plain).time_lost_us_per_step


@once
@example(lengths=[900] * 5 + [1053, 900, 900], ahead_ms=[7.0, 0.0, 0.0, 0.0], drift=0.0, set_by_ms=1.0)
@given(
    lengths=steps,
    ahead_ms=st.lists(st.sampled_from([0.0, 0.3, 7.0, 600.0, -3000.0, 86_400_000.0]), min_size=4, max_size=4),
    drift=st.floats(-200e-6, 200e-6),
    set_by_ms=st.sampled_from([0.0, 1.0, 50.0, -3_600_000.0]),
)
def test_a_file_that_belongs_stays_whatever_its_clock(
    lengths: list[int],
    ahead_ms: list[float],
    drift: float,
    set_by_ms: float,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("run")
    ahead = {rank: ms * MS for rank, ms in enumerate(ahead_ms)}
    made = write_run(folder / "job", lengths, slow=1, ahead_us=ahead, drift=drift, set_by_us=set_by_ms * MS)
    trace = opened(made)
    assert (trace.job.ranks, trace.job.warnings) == ((0, 1, 2, 3), ())
    assert culprit(triage(trace)).ranks == (1,)


def test_one_recorded_from_a_later_step_on_belongs(tmp_path: Path) -> None:
    lengths = [1000, 1100, 950, 1200, 1010, 1090, 900, 1300, 1000, 1050]
    write_run(tmp_path / "job", lengths, ranks=[0, 1, 2], slow=1)
    write_run(tmp_path / "late", lengths, ranks=[3], ahead_us={3: 50 * MS})
    text = (tmp_path / "late" / "rank3.json").read_text()
    (tmp_path / "job" / "rank3.json").write_text(text.replace("ProfilerStep#0", "x").replace("ProfilerStep#1", "y"))
    trace = opened(tmp_path / "job")
    assert (trace.job.ranks, "other_run" in codes(trace)) == ((0, 1, 2, 3), False)


SAMPLES = [
    ("slow_operator", "healthy", 3),
    ("slow_input", "slow_operator", 0),
    ("two_hosts_slow_input", "two_hosts_healthy", 1),
]


@pytest.mark.parametrize(("sample", "other", "rank"), SAMPLES)
def test_a_stale_file_among_samples_is_named_and_the_rest_answers(
    sample: str, other: str, rank: int, tmp_path: Path
) -> None:
    folder = mixed(tmp_path / "mixed", sample, other, [rank])
    trace = opened(folder)
    assert rank not in trace.job.ranks
    assert told(trace, "other_run").startswith(f"rank {rank} left out, recorded in another run")
    result = triage(trace)
    ranks = tuple(one for one in (*trace.job.ranks, rank) if one != rank)
    alone = answer(altered(tmp_path / "alone", {}, sample=sample, ranks=ranks))
    assert [(one.ranks, one.cause) for one in result.findings] == [(one.ranks, one.cause) for one in alone.findings]
    assert culprit(result).time_lost_us_per_step == culprit(alone).time_lost_us_per_step


def test_without_the_culprit_s_own_file_nobody_is_cleared(tmp_path: Path) -> None:
    result = answer(mixed(tmp_path / "mixed", "slow_operator", "healthy", [2]))
    assert (result.verdict, result.findings) == ("inconclusive", ())
    assert "other_run" in {warning.code for warning in result.warnings}


def test_of_two_halves_none_is_taken_for_the_run(tmp_path: Path) -> None:
    result = answer(mixed(tmp_path / "mixed", "slow_operator", "healthy", [2, 3]))
    assert (result.verdict, result.findings) == ("inconclusive", ())
    (warning,) = (one for one in result.warnings if one.code == "several_runs")
    assert "the collectives of rank 0, 1 and rank 2, 3 the same" in warning.message
    assert warning.ranks == (0, 1, 2, 3)


def test_of_two_files_of_a_rank_the_run_s_own_is_taken(tmp_path: Path) -> None:
    folder = mixed(tmp_path / "mixed", "slow_operator", "healthy", [1, 2], both=True)
    trace = opened(folder)
    assert "rank 1, 2 has several traces of the same steps" in told(trace, "duplicate_rank")
    alone = answer(altered(tmp_path / "alone", {0: nothing}))
    assert culprit(triage(trace)).time_lost_us_per_step == culprit(alone).time_lost_us_per_step


def test_a_folder_in_which_all_of_a_run_is_there_twice_is_two_runs(tmp_path: Path) -> None:
    folder = mixed(tmp_path / "mixed", "slow_operator", "healthy", range(4), both=True)
    with pytest.raises(
        InputError, match=r"holds 2 runs, which recorded the same steps: ranks 0-3 of 20.*UTC"
    ) as raised:
        opened(folder)
    assert "move one of them into a folder of its own" in (raised.value.hint or "")


@pytest.mark.parametrize("ahead_ms", [60, 300, -1000, 86_400_000])
def test_hosts_of_one_name_need_not_share_a_clock(ahead_ms: int, tmp_path: Path) -> None:
    def in_container(content: Content) -> None:
        content["host_name"] = "localhost"

    def ahead(content: Content) -> None:
        in_container(content)
        content["baseTimeNanoseconds"] += ahead_ms * 1_000_000

    trace = opened(altered(tmp_path / "job", {0: in_container, 1: in_container, 2: ahead, 3: ahead}))
    assert (trace.job.warnings, trace.steps) == ((), tuple(range(4, 16)))
    found = culprit(triage(trace))
    assert (found.ranks, found.cause) == ((2,), "compute")
    assert found.time_lost_us_per_step == pytest.approx(22.3e3, rel=0.01)


@pytest.mark.parametrize("ranks", [(3, 4, 5), (1,)])
def test_stages_that_only_sends_connect_are_put_on_one_clock(ranks: tuple[int, ...], tmp_path: Path) -> None:
    def ahead(content: Content) -> None:
        content["baseTimeNanoseconds"] += 300_000_000

    folder = altered(
        tmp_path / "job", dict.fromkeys(ranks, ahead), sample="pipeline_slow_operator", ranks=tuple(range(6))
    )
    found = culprit(answer(folder))
    assert found.ranks == (1,)
    assert found.time_lost_us_per_step == pytest.approx(10.7e3, rel=0.02)


@pytest.mark.parametrize(
    ("groups", "told"),
    [([(0, 1), (2, 3), (0, 2), (1, 3)], set()), ([(0, 2), (1, 3)], {"several_runs"})],
    ids=["a pair each to reduce in, and one to send in", "one to reduce in that fits none"],
)
def test_stages_that_reduce_at_paces_of_their_own_are_one_job(
    groups: list[tuple[int, int]], told: set[str], tmp_path: Path
) -> None:
    """gloo says of no operation which group it is in."""
    rng = np.random.default_rng(5)
    begins = np.cumsum(rng.integers(20_000, 40_000, (2, 13)), axis=1)
    for rank in range(4):
        mine = begins[rank // 2].tolist()
        events = [
            event
            for number, (begin, end) in enumerate(pairwise(mine))
            for event in (
                kb.step(number, begin, end - begin - 10),
                kb.op("aten::mm", begin + 10, 5_000),
                kb.op("c10d::allreduce_", end - 2_000, 20),
                kb.annotation("gloo:all_reduce", end - 1_900, 1_800, tid=500),
            )
        ]
        content = kb.trace(events, rank=rank, world=4)
        content["distributedInfo"]["pg_config"] = [
            {"pg_name": f"{number}", "pg_desc": "mesh", "pg_size": 2, "ranks": [*group]}
            for number, group in enumerate(groups)
            if rank in group
        ]
        kb.write(tmp_path / "job" / f"{rank}.pt.trace.json", content)
    assert codes(opened(tmp_path / "job")) & {"several_runs", "other_run"} == told


@pytest.mark.skipif(not CASES.is_dir(), reason="the cases are not beside the checkout")
@pytest.mark.parametrize(
    ("case", "lost_us", "left_out"),
    [("stale_rank_file", 980, {"other_run"}), ("same_hostname_clock_600ms", 22_300, set())],
)
def test_the_cases_are_answered(case: str, lost_us: float, left_out: set[str], tmp_path: Path) -> None:
    trace = open_trace(CASES / case / "input", cache=tmp_path)
    found = culprit(triage(trace))
    assert (found.ranks, found.cause, codes(trace)) == ((2,), "compute", left_out)
    assert found.time_lost_us_per_step == pytest.approx(lost_us, rel=0.01)
