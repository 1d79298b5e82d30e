"""Recordings without marks of steps that begin at other moments on each rank: answered as if they had begun at once."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.windowed_job import WindowedJob, lost_us, write_windows

from kair_engine.recording.opening import open_trace
from kair_engine.trace.model import Trace
from kair_engine.triage.analysis import triage

pytestmark = pytest.mark.slow

OPTIMIZER = "Optimizer.step#AdamW.step"
DECODE = "execute_context_0(0)_generation_8(8)"
PIDS = tuple(f"libkineto_activities_{pid}.json" for pid in (71, 80, 4987, 11002))
WINDOWS = {0: (0.0, 0.8), 1: (0.21, 1.0), 2: (0.1, 0.9), 3: (0.03, 0.77)}
KINDS = {
    "optimizer marks": WindowedJob(marks=OPTIMIZER),
    "optimizer marks, Seq": WindowedJob(marks=OPTIMIZER, numbered=True),
    "annotations": WindowedJob(marks=DECODE, last="void argmax_kernel"),
    "what the host repeats": WindowedJob(),
    "what the device repeats": WindowedJob(host=False),
    "decode steps of a device": WindowedJob(host=False, last="void argmax_kernel"),
    "annotations on the device": WindowedJob(host=False, marks=DECODE),
    "optimizer marks on the device": WindowedJob(host=False, marks=OPTIMIZER),
}
kinds = pytest.mark.parametrize("job", KINDS.values(), ids=KINDS.keys())


def opened(
    folder: Path, job: WindowedJob, windows: dict[int, tuple[float, float]], names: tuple[str, ...] = ()
) -> Trace:
    return open_trace(write_windows(folder / "job", job, windows, names), cache=folder / "cache", workers=1)


def require_rank_1(trace: Trace, job: WindowedJob) -> None:
    result = triage(trace)
    assert result.verdict == "straggler"
    assert [(one.ranks, one.cause) for one in result.findings] == [((1,), "compute")]
    # A few steps of a job that varies stand for all.
    assert result.findings[0].time_lost_us_per_step == pytest.approx(lost_us(job), rel=0.06)
    assert {row.role for row in result.ranking} == {"all"}


@kinds
def test_iterations_are_steps(job: WindowedJob, tmp_path: Path) -> None:
    trace = opened(tmp_path, job, {})
    assert trace.steps == tuple(range(24))
    assert {one.code for one in trace.job.warnings} == {"steps_inferred"}
    require_rank_1(trace, job)


@kinds
def test_windows_are_matched_by_the_collectives_that_ranks_share(job: WindowedJob, tmp_path: Path) -> None:
    trace = opened(tmp_path, job, WINDOWS)
    require_rank_1(trace, job)
    assert not {one.code for one in trace.job.warnings} & {"uneven_steps", "missing_ranks"}
    (told,) = (one.message for one in trace.job.warnings if one.code == "steps_matched")
    by = "the numbers of collectives (Seq)" if job.numbered else "when their collectives end"
    assert told == f"recordings begin at other moments on each rank: their steps are matched by {by}"


@settings(max_examples=8, deadline=None)
@given(
    begins=st.tuples(*[st.floats(0, 0.2)] * 4),
    ahead=st.sampled_from([(0.0, 0.0, 0.0, 0.0), (0.0, 6e5, -3e5, 9e3)]),
    names=st.sampled_from([(), PIDS]),
    kind=st.sampled_from(sorted(KINDS)),
)
def test_the_answer_does_not_depend_on_where_windows_begin(
    begins: tuple[float, ...], ahead: tuple[float, ...], names: tuple[str, ...], kind: str
) -> None:
    of_kind = {**vars(KINDS[kind]), "iterations": 30, "ahead": dict(enumerate(ahead)), "known": not names}
    job = WindowedJob(**of_kind)
    with TemporaryDirectory() as folder:
        trace = opened(Path(folder), job, {rank: (begin, begin + 0.8) for rank, begin in enumerate(begins)}, names)
        assert trace.job.ranks == (0, 1, 2, 3)
        assert len(trace.steps) >= 12
        require_rank_1(trace, job)


def test_ranks_that_have_too_few_steps_in_common_are_not_judged(tmp_path: Path) -> None:
    """Rank 3's window begins when the others' end."""
    windows = {0: (0.0, 0.5), 1: (0.05, 0.5), 2: (0.0, 0.5), 3: (0.4, 1.0)}
    result = triage(opened(tmp_path, WindowedJob(ranks=4, numbered=True, host=False), windows))
    assert not any(3 in one.ranks for one in result.findings)


def test_process_ids_are_no_ranks_and_the_verdict_names_the_file(tmp_path: Path) -> None:
    job = WindowedJob(known=False)
    trace = opened(tmp_path, job, {}, PIDS)
    assert (trace.job.ranks, trace.job.world_size) == ((0, 1, 2, 3), 4)
    (told,) = (one.message for one in trace.job.warnings if one.code == "rank_from_order")
    assert told.startswith("4 files do not say their rank; by the order of their names they count as rank 0-3: ")
    assert f"{PIDS[0]} is rank 0" in told
    (finding,) = triage(trace).findings
    (shown,) = (one for one in finding.evidence if one.kind == "rank_by_order")
    assert (shown.ranks, shown.about) == ((1,), PIDS[1])
