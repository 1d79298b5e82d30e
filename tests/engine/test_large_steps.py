"""Steps that are too large to be held are read some ranks at a time: what is found is what the whole steps tell."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compute_faults import SlowGpu, SlowHost
from fault_model import Fault
from host_faults import GarbageCollection, SlowInput
from layouts import STANDARD, JobLayout
from network_faults import SlowLink
from support.answers import recorded
from support.places import SAMPLES
from support.simulated_files import simulated

from kair_engine.blame.analysis import blame
from kair_engine.comparison.analysis import compare
from kair_engine.comparison.profile import profile_of
from kair_engine.export.timeline import Item, Mark, Slice, Track
from kair_engine.export.timeline import timeline as exported
from kair_engine.localize.analysis import localize
from kair_engine.localize.excess import JobRoles, StepExcess, job_excess
from kair_engine.pinpoint import pinpoint
from kair_engine.results.fixes import parse_fix
from kair_engine.results.triage import TriageResult
from kair_engine.timeline.clocks import synchronise
from kair_engine.trace import large_steps
from kair_engine.trace.large_steps import each_part
from kair_engine.trace.loading import each_step, load_step, read_rows
from kair_engine.trace.model import Trace
from kair_engine.triage.analysis import triage
from kair_engine.views.frequency import frequency
from kair_engine.views.operator_times import operator_times
from kair_engine.views.overview import info, steps
from kair_engine.views.rank_profile import rank_profile
from kair_engine.views.timeline import View, covers, timeline
from kair_engine.views.timeline_prepared import prepare
from kair_engine.whatif import analysis as rank_sampling
from kair_engine.whatif.analysis import model_asked_of, units, whatif
from kair_tui.render.sentences import sentence_of

pytestmark = pytest.mark.slow

THREE_DIMENSIONS = JobLayout("3d", dp=4, pp=2, tp=2, microbatches=4)


@dataclass
class Limits:
    """What may be held of a step, as a share of it."""

    patched: pytest.MonkeyPatch

    def set(self, job: Trace, *, replayed: float = 0.5) -> None:
        operations = job.job.operations // len(job.steps)
        self.patched.setattr(large_steps, "LARGE", operations // 2)
        self.patched.setattr(large_steps, "AT_A_TIME", operations // 5)
        self.patched.setattr(large_steps, "CLOSE_UP", operations // 2)
        self.patched.setattr(rank_sampling, "OPERATIONS", int(replayed * operations))


@pytest.fixture
def limits() -> Iterator[Limits]:
    with pytest.MonkeyPatch.context() as patched:
        yield Limits(patched)


def verdict(result: TriageResult) -> Any:  # noqa: ANN401
    """What a person acts on."""
    findings = [(one.cause, one.pattern, one.ranks, one.seen_on, one.operator, one.steps) for one in result.findings]
    return result.verdict, findings, [(one.rank, one.flagged) for one in result.ranking]


@pytest.mark.parametrize(
    ("layout", "fault"),
    [
        (STANDARD["dp16"], None),
        (STANDARD["dp16"], SlowGpu(5, 1.1)),
        (STANDARD["dp16"], GarbageCollection(0.1, 20.0, visible=True)),
        (STANDARD["dp16"], SlowHost("node1", 1.1)),
        (THREE_DIMENSIONS, SlowInput(6, 0.2)),
        (JobLayout("3d", dp=4, pp=2, tp=4, microbatches=4), SlowLink(9, 4.0)),
    ],
    ids=["healthy", "GPU", "garbage", "host", "input", "link"],
)
def test_the_verdict_is_that_of_the_whole_steps(
    layout: JobLayout, fault: Fault | None, tmp_path: Path, limits: Limits
) -> None:
    job = simulated(tmp_path, layout, *([fault] if fault else []))
    whole = triage(job)
    limits.set(job)
    some = triage(job)
    assert verdict(some) == verdict(whole)
    assert (whole.verdict == "no_straggler") == (fault is None)
    assert some.waiting_us_per_step == pytest.approx(whole.waiting_us_per_step)
    imposed, of_whole = ({one.rank: one.wait_imposed_us for one in of.ranking} for of in (some, whole))
    most = max(of_whole.values())
    assert max(abs(imposed[rank] - of_whole[rank]) for rank in imposed) < 0.4 * most
    for one, other in zip(some.findings, whole.findings, strict=True):
        if one.priced_by == other.priced_by == "replay":
            told = next(shown for shown in one.evidence if shown.kind == "replayed")
            assert told.figures["replayed_ranks"] < told.figures["ranks"] == layout.ranks
            assert " ranks were replayed" in sentence_of(told)
            assert one.time_lost_us_per_step == pytest.approx(other.time_lost_us_per_step, rel=0.25)


def test_ranks_that_cannot_stand_for_all_are_not_replayed(tmp_path: Path, limits: Limits) -> None:
    job = simulated(tmp_path, THREE_DIMENSIONS, SlowGpu(6, 1.2))
    whole = triage(job)
    limits.set(job, replayed=0.3)
    some = triage(job)
    assert verdict(some) == verdict(whole)
    assert [one.priced_by for one in some.findings] == ["excess"]
    assert {warning.code for warning in some.warnings} - {warning.code for warning in whole.warnings} == {
        "not_replayed"
    }


def test_other_questions_are_answered_alike_stage_1_to_the_last_bit(tmp_path: Path, limits: Limits) -> None:
    job = simulated(tmp_path, THREE_DIMENSIONS, SlowGpu(6, 1.2))
    whole, answer, waiting, outliers = job_excess(job), localize(job), blame(job), pinpoint(job, rank=6)
    inventory, lengths, of_rank = info(job), steps(job), rank_profile(job, rank=6)
    operators, counts = operator_times(job, by_rank=True), frequency(job)
    limits.set(job)
    some = job_excess(job)
    for one, other in zip(some.steps, whole.steps, strict=True):
        for field in fields(StepExcess):
            assert_equal(getattr(one, field.name), getattr(other, field.name))
    assert localize(job) == answer
    assert (info(job), steps(job)) == (inventory, lengths)
    assert frequency(job) == counts
    assert operator_times(job, by_rank=True) == operators
    assert rank_profile(job, rank=6) == of_rank
    again = blame(job)
    assert (again.waiting_us, again.waiting, again.collectives) == (
        waiting.waiting_us,
        waiting.waiting,
        waiting.collectives,
    )
    assert again.by_rank[0].rank == waiting.by_rank[0].rank
    some_outliers = pinpoint(job, rank=6)
    assert {one.operator for one in some_outliers.outliers[:5]} == {one.operator for one in outliers.outliers[:5]}


def test_a_rank_is_held_against_some_peers(tmp_path: Path, limits: Limits) -> None:
    job = simulated(tmp_path, STANDARD["dp16"], SlowGpu(5, 1.1))
    limits.set(job)
    job = job.select([1, 2])
    limits.patched.setattr(large_steps, "LARGE", job.job.operations)
    whole = rank_profile(job, rank=5)
    limits.patched.setattr(large_steps, "LARGE", 1)
    some = rank_profile(job, rank=5)
    assert some.step_time_us == whole.step_time_us
    for mine, other in ((some.parts, whole.parts), (some.subgraphs, whole.subgraphs)):
        assert [one.own_us for one in mine] == [one.own_us for one in other]
    assert some.typical_step_time_us == pytest.approx(whole.typical_step_time_us, rel=0.01)
    assert (some.peers, whole.peers) == (7, 15)
    for found in (some, pinpoint(job, rank=5)):
        (warning,) = found.warnings
        assert (warning.code, "7 of its peers" in warning.message) == ("some_peers", True)


def test_an_exported_timeline_has_all_of_a_step_some_ranks_at_a_time(tmp_path: Path, limits: Limits) -> None:
    job = simulated(tmp_path, STANDARD["dp16"], SlowGpu(5, 1.2))
    found, paths = triage(job).findings, blame(job).paths
    assert found and paths
    whole = drawn(exported(job, found, paths))
    limits.set(job)
    assert [len(part) for part in each_part(job)] != [len(ops) for ops in each_step(job)]
    some = drawn(exported(job, found, paths))
    assert some == whole
    assert sum(len(item.leaves) for item in exported(job, found, paths) if isinstance(item, Slice)) > 0


def drawn(items: Iterable[Item]) -> list[Any]:
    """What is seen of a timeline, whichever of its tracks came first."""
    items = list(items)
    tracks = {item.number: (item.rank, item.name) for item in items if isinstance(item, Track)}
    seen = (
        (tracks[item.track], *(getattr(item, one.name) for one in fields(item) if one.name != "track"))
        if isinstance(item, Slice)
        else (item.rank, item.name, *((item.kind, item.time_ns, item.step) if isinstance(item, Mark) else ()))
        for item in items
    )
    return sorted(seen, key=repr)


def test_what_runs_in_a_scope_is_counted_alike(limits: Limits) -> None:
    job = recorded(SAMPLES / "slow_input")
    asked: list[dict[str, Any]] = [{"scope": "Optimizer"}, {"scope": "Parallel.forward", "operator": "mm"}]
    whole = [frequency(job, windows=20, **one) for one in asked]
    limits.set(job)
    assert {len(part.ranks) for part in each_part(job)} != {len(job.job.ranks)}
    assert [frequency(job, windows=20, **one) for one in asked] == whole


def test_some_ranks_are_replayed_in_place_of_all(tmp_path: Path, limits: Limits) -> None:
    job = simulated(tmp_path, STANDARD["dp16"], SlowGpu(5, 1.1))
    fix = parse_fix("rank=5")
    whole = whatif(job, [fix])
    limits.set(job)
    some = whatif(job, [fix])
    assert (some.slowdown, some.slowest_ranks[0]) == (pytest.approx(whole.slowdown, rel=0.01), 5)
    saved, of_whole = (one.fixes[0].saved_us for one in (some, whole))
    assert saved == pytest.approx(of_whole, rel=0.25)
    assert set(some.by_rank) < set(whole.by_rank)
    (warning,) = {*some.warnings} - {*whole.warnings}
    assert (warning.code, f"{len(some.by_rank)} of 16 ranks" in warning.message) == ("some_replayed", True)
    (missing, *_) = set(whole.by_rank) - set(some.by_rank)
    assert missing in model_asked_of(job, named=[missing]).job.ranks


def test_runs_are_compared_alike(tmp_path: Path, limits: Limits) -> None:
    (tmp_path / "healthy").mkdir()
    (tmp_path / "slow").mkdir()
    base = simulated(tmp_path / "healthy", STANDARD["dp16"])
    new = simulated(tmp_path / "slow", STANDARD["dp16"], SlowGpu(5, 1.2))
    profile, whole = profile_of(new), compare(base, new)
    limits.set(new)
    found, some = profile_of(new), compare(base, new)
    for one, other in zip(found.operators, profile.operators, strict=True):
        assert (one.operator, one.kind, one.calls, one.amount) == (
            other.operator,
            other.kind,
            other.calls,
            other.amount,
        )
        assert one.place == pytest.approx(other.place)
    assert (found.phases, found.step_times_us) == (profile.phases, profile.step_times_us)
    unpriced = ([replace(one, step_us=None, share_of_step=None) for one in of.changes] for of in (some, whole))
    assert next(unpriced) == next(unpriced)
    assert {one.ranks for one in some.changes} == {(5,)}
    added, of_whole = (sum(one.step_us or 0.0 for one in of.changes) for of in (some, whole))
    assert added == pytest.approx(of_whole, rel=0.25)


def test_a_timeline_shows_some_ranks(tmp_path: Path, limits: Limits) -> None:
    job = simulated(tmp_path, STANDARD["dp16"], SlowGpu(5, 1.1))
    limits.set(job)
    job = job.select([2])
    limits.patched.setattr(large_steps, "LARGE", job.job.operations)
    whole = timeline(job, View(unfold=(14,)))
    limits.patched.setattr(large_steps, "LARGE", 1)
    some = timeline(job, View(unfold=(14,)))
    assert (some.around.operation.rank, some.around.operation.operator) == (5, whole.around.operation.operator)
    assert (some.around.waited_us, some.collectives, some.step_us) == (
        whole.around.waited_us,
        whole.collectives,
        whole.step_us,
    )
    drawn = {(row.rank, row.lane): (row.windows, row.arrivals, row.imposed_us) for row in whole.rows}
    ranks = {row.rank for row in some.rows}
    assert {5, 14} < ranks < set(job.job.ranks)
    assert all(drawn[row.rank, row.lane] == (row.windows, row.arrivals, row.imposed_us) for row in some.rows)
    assert [one.rank for one in some.path][-1] == 5
    (warning,) = some.warnings
    assert (warning.code, f"{len(ranks)} of 16 ranks" in warning.message) == ("some_ranks", True)
    prepared = prepare(job, 2)
    for view, there in ((View(rank=5), True), (View(ranks=(0, 15)), True), (View(rank=99), True)):
        assert covers(prepared, view) == there
    (missing, *_) = set(job.job.ranks).difference(prepared.ops.ranks[prepared.held].tolist())
    assert not covers(prepared, View(cursor=(missing, 0.0)))
    assert not covers(prepared, View(ranks=(missing, missing)))
    (row,) = timeline(job, View(ranks=(missing, missing))).rows
    assert (row.rank, row.windows) == (missing, drawn[missing, None][0])


def assert_equal(one: object, other: object) -> None:
    if hasattr(one, "__dataclass_fields__"):
        for field in fields(one):  # type: ignore[arg-type]
            assert_equal(getattr(one, field.name), getattr(other, field.name))
    elif isinstance(one, dict) and isinstance(other, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, np.ndarray):
        np.testing.assert_array_equal(one, other)  # type: ignore[arg-type]
    else:
        assert one == other


def test_no_more_is_held_than_was_said(tmp_path: Path, limits: Limits) -> None:
    job = simulated(tmp_path, STANDARD["dp16"], SlowGpu(5, 1.1))
    operations = job.job.operations // len(job.steps)
    limits.set(job)
    held: list[int] = []

    def counted(trace: Trace, chosen: list[int]) -> Any:  # noqa: ANN401
        rows = read_rows(trace, chosen)
        held.append(len(rows))
        return rows

    limits.patched.setattr(large_steps, "read_rows", counted)
    triage(job)
    # A file holds the rows of three ranks, which are a fifth of the step.
    assert max(held) < 0.6 * operations


def test_ranks_that_meet_most_often_are_replayed_together(tmp_path: Path) -> None:
    job = simulated(tmp_path, THREE_DIMENSIONS)
    sync = synchronise(load_step(job, 0))
    ranks = JobRoles.of(job).ranks
    place = {rank: THREE_DIMENSIONS.place(rank)[1] // THREE_DIMENSIONS.tp for rank in ranks.tolist()}
    found = units(sync, ranks, 0.8)
    assert found is not None
    replicas = {unit: {place[rank] for rank in ranks[found == unit].tolist()} for unit in set(found.tolist())}
    assert sorted(map(sorted, replicas.values())) == [[0], [1], [2], [3]]
    # Of four replicas one is not enough to wait for another.
    assert units(sync, ranks, 0.3) is None
