"""What real clusters do, convenient as it were to rule it out: the right rank and cause all the same, or a warning."""

import re
from pathlib import Path

import noise_models
import pytest
from compute_faults import SequenceImbalance, SlowBesideSpinning, SlowGpu, SlowKernel
from costs import Noise
from kineto import write_kineto
from layouts import STANDARD
from simulator import JobSpec, simulate
from support import kineto_builder as kb
from support.broken_assumptions import (
    PIPELINE,
    Edit,
    MoreWork,
    PeriodicPause,
    as_cuda_graph,
    autotuned,
    recorded,
    with_extra_kernels,
    with_ranks_as_peers,
)

from kair_engine.localize.excess import job_excess
from kair_engine.localize.localization import conclude
from kair_engine.recording.opening import open_trace
from kair_engine.recording.step_numbers import counted_differently
from kair_engine.results.triage import Finding, TriageResult
from kair_engine.timeline.collectives import match
from kair_engine.trace.loading import load_step
from kair_engine.trace.model import StepTimes, Trace
from kair_engine.triage.analysis import triage
from kair_tui.render.sentences import sentence_of

pytestmark = pytest.mark.slow


def the_finding(trace: Trace) -> Finding:
    (finding,) = triage(trace).findings
    return finding


def accused(result: TriageResult) -> set[int]:
    return {rank for finding in result.findings for rank in finding.ranks}


def share(result: TriageResult) -> float:
    """What the only finding costs, of the step."""
    (finding,) = result.findings
    return finding.time_lost_us_per_step / result.step_time_us


def test_peers_that_are_ranks_of_the_job_are_not_taken_for_places(tmp_path: Path) -> None:
    places = recorded(tmp_path / "places", SlowGpu(0, 1.3), layout=PIPELINE)
    ranks = recorded(tmp_path / "ranks", SlowGpu(0, 1.3), layout=PIPELINE, edits=[with_ranks_as_peers])
    matched = [match(load_step(trace, 0)) for trace in (places, ranks)]
    assert len(matched[1]) == len(matched[0])
    assert matched[1].rejected == 0
    answers = [triage(trace) for trace in (places, ranks)]
    assert share(answers[0]) > 0.03
    assert share(answers[1]) == pytest.approx(share(answers[0]))


def test_kernels_of_other_names_do_the_same_work(tmp_path: Path) -> None:
    finding = the_finding(recorded(tmp_path, SlowGpu(3, 1.15), edits=[autotuned]))
    assert (finding.ranks, finding.cause, finding.operator) == ((3,), "compute", None)


def test_kernels_of_other_names_are_no_fault(tmp_path: Path) -> None:
    assert triage(recorded(tmp_path, edits=[autotuned])).verdict == "no_straggler"


@pytest.mark.parametrize("edits", [[with_extra_kernels], [autotuned, with_extra_kernels]])
def test_kernels_that_only_one_rank_runs_are_more_work(tmp_path: Path, edits: list[Edit]) -> None:
    finding = the_finding(recorded(tmp_path, SlowKernel(3, "attention", 1.6), edits=edits))
    assert (finding.ranks, finding.cause) == ((3,), "uneven_work")


def test_a_cuda_graph_has_the_price_of_its_kernels(tmp_path: Path) -> None:
    one_by_one = triage(recorded(tmp_path / "one_by_one", SlowGpu(3, 1.1)))
    graph = triage(recorded(tmp_path / "graph", SlowGpu(3, 1.1), edits=[as_cuda_graph]))
    assert accused(graph) == accused(one_by_one) == {3}
    assert share(graph) == pytest.approx(share(one_by_one), rel=0.05)


@pytest.mark.parametrize("labels", [(), ("gemm", "gemm_backward")])
def test_longer_batches_and_hot_experts_are_uneven_work(tmp_path: Path, labels: tuple[str, ...]) -> None:
    finding = the_finding(recorded(tmp_path, MoreWork(3, 1.1, labels)))
    assert (finding.ranks, finding.cause) == ((3,), "uneven_work")


@pytest.mark.parametrize("fault", [SlowGpu(3, 1.1), SlowKernel(3, "attention", 1.5)])
def test_a_slow_device_and_a_slow_kernel_are_not(tmp_path: Path, fault: SlowGpu | SlowKernel) -> None:
    finding = the_finding(recorded(tmp_path, fault))
    assert (finding.ranks, finding.cause) == ((3,), "compute")


def test_pauses_at_equal_distances_are_meant_to_be(tmp_path: Path) -> None:
    finding = the_finding(recorded(tmp_path, PeriodicPause(0, (4, 9, 14, 19), 0.4), steps=20))
    assert (finding.ranks, finding.cause, finding.pattern) == ((0,), "periodic_pause", "intermittent")
    (periodic,) = [one for one in finding.evidence if one.kind == "periodic"]
    assert periodic.figures == {"every": 5, "events": 4}
    assert sentence_of(periodic) == "rank 0's 4 large delays come at regular intervals, every 5 steps"


def test_pauses_at_other_distances_are_the_hosts(tmp_path: Path) -> None:
    finding = the_finding(recorded(tmp_path, PeriodicPause(0, (3, 9, 13, 19), 0.4), steps=20))
    assert (finding.ranks, finding.cause) == ((0,), "host")


@pytest.mark.parametrize("spinning", [0.06, 0.07, 0.08])
def test_a_rank_that_is_waited_for_is_told_though_spinning_slows_the_others(tmp_path: Path, spinning: float) -> None:
    result = triage(recorded(tmp_path, SlowBesideSpinning(3, 1.06, spinning), steps=12))
    told = {rank for item in result.open for rank in item.ranks}
    assert result.verdict in {"straggler", "inconclusive"}
    assert accused(result) | told == {3}


def batches_of(folder: Path, model: str, seed: int) -> bool:
    """Whether batches of different length are seen in a job of eight ranks under this kind of noise."""
    trace = noise_models.write_job(noise_models.healthy(model, 8, 12, seed), folder)
    return conclude(job_excess(trace)).batches is not None


@pytest.mark.parametrize(("model", "uneven"), [("ar8_10", False), ("ar5_3", False), ("dynlen", True)])
def test_a_wobbling_speed_is_no_batch_of_another_length(tmp_path: Path, model: str, uneven: bool) -> None:
    assert [batches_of(tmp_path / str(seed), model, seed) for seed in range(3)] == [uneven] * 3


def test_batches_of_different_length_are_seen_in_a_pipeline(tmp_path: Path) -> None:
    trace = recorded(tmp_path, SequenceImbalance(0.2), layout=STANDARD["3d64"], steps=5)
    assert conclude(job_excess(trace)).batches is not None


@pytest.mark.parametrize("seed", range(3))
def test_nobody_is_accused_of_what_healthy_devices_differ_by(tmp_path: Path, seed: int) -> None:
    assert accused(triage(recorded(tmp_path, noise=Noise(spread=0.08), seed=seed))) == set()


def recorded_files(folder: Path, *faults: SlowGpu, higher: tuple[int, ...] = (), by: int = 1) -> Trace:
    """A job of one host as the profiler's files; some ranks number their steps higher."""
    spec = JobSpec(STANDARD["dp4"], steps=6, seed=1, faults=faults)
    paths = write_kineto(simulate([spec])[0], folder / "job", compress=False)
    for rank in higher:
        text = paths[rank].read_text()
        paths[rank].write_text(re.sub(r"ProfilerStep#(\d+)", lambda step: f"ProfilerStep#{int(step[1]) + by}", text))
    return open_trace(folder / "job", cache=folder / "cache")


@pytest.mark.parametrize(("higher", "by", "how"), [((3,), 1, "1 higher"), ((0, 1, 2), 2, "2 lower")])
def test_steps_that_a_rank_numbers_otherwise_are_matched_by_time(
    tmp_path: Path, higher: tuple[int, ...], by: int, how: str
) -> None:
    alike = recorded_files(tmp_path / "alike", SlowGpu(1, 1.2))
    other = recorded_files(tmp_path / "other", SlowGpu(1, 1.2), higher=higher, by=by)
    (warning,) = other.job.warnings
    assert warning.code == "steps_counted_differently"
    assert warning.message.startswith(f"rank 3: steps are numbered {how} than on the same host's other ranks")
    assert len(other.steps) == len(alike.steps)
    answers = [triage(trace) for trace in (alike, other)]
    assert accused(answers[1]) == {1}
    assert share(answers[1]) == share(answers[0])
    assert triage(other.select(other.steps[2:4])).step_time_us == triage(alike.select(alike.steps[2:4])).step_time_us


def late_files(folder: Path, *, communicating: bool = True) -> Trace:
    """Three ranks meet in every step of 100 ms; then two update for 1 ms, and rank 2 for 60, so that it begins late."""
    for rank in range(3):
        events = []
        for step in range(5):
            meet = 100_000 * step + 99_000
            begin, end = (meet - 40_000, meet + 60_000) if rank == 2 else (meet - 99_000, meet + 1000)
            events.append(kb.step(step, begin, end - begin))
            events.append(kb.op("aten::mm", begin, 40_000))
            if communicating:
                reduced = begin + 40_000
                events.append(kb.annotation("gloo:all_reduce", reduced, meet - reduced + 10, tid=7))
            events.append(kb.op("aten::add_", meet + 20, end - meet - 20))
        content = kb.trace(events, rank=rank, world=3, host_name="a", baseTimeNanoseconds=1_790_000_000_000_000_000)
        kb.write(folder / f"rank{rank}.json", content)
    return open_trace(folder, cache=folder / "cache")


def test_a_rank_that_is_late_by_more_than_half_a_step_numbers_its_steps_as_the_others(tmp_path: Path) -> None:
    """Most of its step goes by during the others' next one, but it meets them in that of its number."""
    made = late_files(tmp_path / "late")
    assert not [one for one in made.job.warnings if one.code == "steps_counted_differently"]
    assert triage(made).findings[0].ranks == (2,)
    # Without anything that they meet in there is only the time.
    silent = late_files(tmp_path / "silent", communicating=False)
    assert "steps_counted_differently" in {one.code for one in silent.job.warnings}


def step_times(begins_ms: dict[int, list[int]]) -> StepTimes:
    """rank → when its steps begin, numbered from 0; each takes 100 ms."""
    cells = [(rank, step, begin) for rank, of_rank in begins_ms.items() for step, begin in enumerate(of_rank)]
    rank, step, begin = zip(*cells, strict=True)
    return StepTimes(rank, step, tuple(1_000_000 * at for at in begin), (100_000_000,) * len(cells), (1,) * len(cells))


def test_a_clock_of_another_host_may_be_a_step_off() -> None:
    times = step_times({0: [0, 100, 200], 1: [5, 105, 205], 2: [100, 200, 300]})
    assert counted_differently(times, {0: "a", 1: "a", 2: "b"}) == {}
    assert counted_differently(times, {}) == {}
    assert counted_differently(times, dict.fromkeys(range(3), "a")) == {2: -1}


def test_steps_that_drift_apart_are_not_renumbered() -> None:
    times = step_times({0: [0, 100, 200, 300, 400], 1: [0, 130, 270, 400, 540]})
    assert counted_differently(times, {0: "a", 1: "a"}) == {}
