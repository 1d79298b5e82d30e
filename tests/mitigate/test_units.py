"""Ranks that meet in every micro-batch are resized together, and nobody else is."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from support.places import MEGATRON, SAMPLES

from kair_capture.agent.step_rows import ROW, Rows
from kair_capture.coordinator.status import Remembered
from kair_capture.coordinator.step_log import StepLog
from kair_capture.places import JobPlaces
from kair_capture.wire import Communication
from kair_engine.recording.opening import open_trace
from kair_engine.results.mitigate import MitigationProposal
from kair_engine.store.jobs import Store
from kair_engine.trace.loading import load_step
from kair_engine.trace.operations import COLLECTIVE, PHASE_NAMES
from kair_mitigate.controller import Controller, NewSteps, stepped
from kair_mitigate.job_state import JobState, StateWriter
from kair_mitigate.known_units import found_units, keep_units, kept_units
from kair_mitigate.plans import Plan, State
from kair_mitigate.policy.loading import Guarded
from kair_mitigate.policy.policies import Action, Continuous, Policy, View
from kair_mitigate.policy.table import POLICIES
from kair_mitigate.policy.units import Units, from_text, joined, of_size, tied_in, tied_in_all
from kair_mitigate.records import Records
from kair_tui.render.mitigate import proposal_line

Computed = npt.NDArray[np.float64]
PAIRS = ((0, 1), (2, 3), (4, 5), (6, 7))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recording", "units"),
    [
        ("slow_operator", ((0,), (1,), (2,), (3,))),  # DDP
        ("slow_host", tuple((rank,) for rank in range(8))),  # gradients are summed over hosts after the backward pass
        ("pipeline_slow_operator", ((0, 3), (1, 4), (2, 5))),  # a pipeline's stages
    ],
)
def test_a_recorded_step_tells_who_meets_in_every_micro_batch(recording: str, units: object, tmp_path: Path) -> None:
    trace = open_trace(SAMPLES / recording, cache=tmp_path)
    tied = tied_in(load_step(trace, trace.steps[-1]))
    assert tied is not None
    assert joined(trace.job.world_size, tied) == units


@pytest.mark.slow
def test_what_all_ranks_add_up_after_the_backward_pass_ties_nobody(tmp_path: Path) -> None:
    """As the mean of the losses, which the phase that it is recorded in calls a part of the forward pass."""
    trace = open_trace(SAMPLES / "slow_operator", cache=tmp_path)
    ops = load_step(trace, trace.steps[-1])
    rows = np.flatnonzero(ops.kind == COLLECTIVE)
    last = rows[np.flatnonzero(np.diff(ops.rank[rows], append=-1))]
    phase, start = ops.phase.copy(), ops.start_ns.copy()
    phase[last] = PHASE_NAMES.index("forward")
    early = tied_in(replace(ops, phase=phase, remembered=None))
    start[last] = ops.end_ns.max() + 1
    late = tied_in(replace(ops, phase=phase, start_ns=start, remembered=None))
    assert early is not None
    assert late is not None
    assert joined(4, early) == ((0, 1, 2, 3),)
    assert joined(4, late) == ((0,), (1,), (2,), (3,))


@pytest.mark.slow
def test_who_meets_in_one_step_of_several_is_not_tied(tmp_path: Path) -> None:
    """As ranks that agree on a plan, now and then, while others have begun the forward pass."""
    trace = open_trace(SAMPLES / "slow_operator", cache=tmp_path)
    *others, ops = (load_step(trace, step) for step in trace.steps[-3:])
    phase = np.where(ops.kind == COLLECTIVE, PHASE_NAMES.index("forward"), ops.phase)
    once = replace(ops, phase=phase, remembered=None)
    assert joined(4, tied_in_all([once]) or ()) == ((0, 1, 2, 3),)
    assert joined(4, tied_in_all([*others, once]) or ()) == ((0,), (1,), (2,), (3,))
    assert tied_in_all([]) is None


@pytest.mark.slow
def test_ranks_stay_tied_where_no_backward_pass_is_recorded(tmp_path: Path) -> None:
    """As of devices alone: everything then counts as the forward pass."""
    trace = open_trace(SAMPLES / "slow_operator", cache=tmp_path)
    ops = load_step(trace, trace.steps[-1])
    forward = np.full_like(ops.phase, PHASE_NAMES.index("forward"))
    tied = tied_in(replace(ops, phase=forward, remembered=None))
    assert tied is not None
    assert joined(4, tied) == ((0, 1, 2, 3),)


@pytest.mark.slow
def test_tensor_parallel_ranks_of_a_real_recording_are_one_unit(tmp_path: Path) -> None:
    if not MEGATRON.exists():
        pytest.skip("the real recording is absent")
    trace = open_trace(MEGATRON, cache=tmp_path)
    tied = tied_in(load_step(trace, trace.steps[-1]))
    assert tied is not None
    assert joined(8, tied) == (tuple(range(8)),)


def test_a_person_says_units() -> None:
    assert from_text("0-1,2-3", 6) == ((0, 1), (2, 3), (4,), (5,))
    assert from_text("0+2,1+3", 4) == ((0, 2), (1, 3))
    assert of_size(4, 2) == ((0, 1), (2, 3))


@pytest.mark.parametrize("text", ["", "x", "0-", "3-1", "0-1,1-2", "0-9", "-1", "0,,1"])
def test_what_is_no_unit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--units"):
        from_text(text, 4)
    with pytest.raises(ValueError, match="does not divide"):
        of_size(4, 3)


def test_a_unit_is_as_slow_as_its_slowest_rank_and_its_ranks_take_the_same() -> None:
    units = Units(((0, 2), (1, 3)), "told", micro_batch=4)
    assert units.compute_s(np.array([0.1, 0.2, 0.3, 0.1])).tolist() == [0.3, 0.2]
    assert units.micro_batches((16, 8, 16, 8)).tolist() == [4, 2]
    assert units.sizes(np.array([3, 3])) == (12, 12, 12, 12)
    assert units.slowest(np.array([0.1, 0.2, 0.3, 0.1]), 0) == 2


@pytest.mark.parametrize(
    ("units", "sizes", "says"),
    [
        (Units(((0,), (1,)), "assumed"), (8, 8), "ranks are taken to be independent"),
        (Units(((0, 1),), "recorded"), (8, 8), "all 2 ranks meet in every micro-batch"),
        (Units(((0, 1), (2,)), "told", 4), (8, 8, 8), "different numbers of ranks, 1 to 2"),
        (Units(((0, 1), (2, 3)), "recorded"), (8, 8, 8, 8), "--micro-batch"),
        (Units(((0, 1), (2, 3)), "told", 3), (8, 8, 8, 8), "in whole micro-batches of 3"),
        (Units(((0, 1), (2, 3)), "told", 1), (8, 4, 8, 8), "do not take the same now"),
        (Units(((0,), (1,)), "in part"), (8, 8), "not yet who is in them"),
        (
            Units(((0, 1), (2, 3)), "told", 2),
            (8, 8, 16, 16),
            "4 micro-batches or more: a change of one is up to 25%",
        ),
    ],
)
def test_a_sentence_says_what_the_units_mean(units: Units, sizes: tuple[int, ...], says: str) -> None:
    assert says in (units.sentence(sizes) or "")
    assert (units.why_fixed(sizes) or "").startswith("sizes stay") is ("sizes stay" in (units.sentence(sizes) or ""))


def test_ranks_that_are_known_to_meet_once_a_step_need_no_words() -> None:
    assert Units(((0,), (1,)), "recorded").sentence((8, 8)) is None


def test_units_come_of_what_capture_keeps(tmp_path: Path) -> None:
    places = JobPlaces(tmp_path, "job7")
    places.capture.mkdir(parents=True)
    assert found_units(places, 4, None).known == "assumed"

    def told(groups: tuple[tuple[int, int], ...], **more: Any) -> Units:  # noqa: ANN401
        memory = Remembered(communication=[Communication(0, 4, groups=groups, **more)])
        (places.capture / "memory.json").write_bytes(msgspec.json.encode(memory))
        return found_units(places, 4, None)

    assert told(((4, 10),)) == Units(((0,), (1,), (2,), (3,)), "assumed")
    assert told(((2, 80), (4, 10))).known == "in part"
    assert told(((4, 10),), sends=(1,)) == Units(((0, 1), (2,), (3,)), "in part")


@pytest.mark.slow
def test_units_come_of_what_was_imported(tmp_path: Path) -> None:
    Store(tmp_path / "store").import_traces([SAMPLES / "pipeline_slow_operator"], "job7", cache=tmp_path / "cache")
    places = JobPlaces(tmp_path / "store", "job7")
    assert found_units(places, 6, 2) == Units(((0, 3), (1, 4), (2, 5)), "recorded", 2)
    assert found_units(places, 4, None).known == "assumed"  # of another number of ranks


def test_damaged_units_are_none(tmp_path: Path) -> None:
    units = Units(((0, 2), (1, 3)), "told", 4)
    keep_units(tmp_path, units)
    assert kept_units(tmp_path, 4) == units
    assert kept_units(tmp_path, 5) is None
    good = json.loads((tmp_path / "units.json").read_text())
    for change in (
        {"known": 1},
        {"members": [[0, 0]]},
        {"members": [[0], [], [1]]},
        {"micro_batch": -1},
        {"members": 3},
    ):
        (tmp_path / "units.json").write_text(json.dumps(good | change))
        assert kept_units(tmp_path, 4) is None
    (tmp_path / "units.json").write_text("[" * 100_000)
    assert kept_units(tmp_path, 4) is None


class Watched:
    """A job under a controller; steps take 20 ms besides computing."""

    def __init__(
        self,
        store: Path,
        sizes: tuple[int, ...],
        policy: Callable[[], Policy] = Continuous,
        *,
        is_uneven: bool = False,
        has_rate: bool = False,
        **told: Any,  # noqa: ANN401
    ) -> None:
        self.places, self.sizes, self.step, self.is_uneven = JobPlaces(store, "job7"), sizes, 0, is_uneven
        self.has_rate = has_rate
        self.records = Records(self.places.folder / "mitigate")
        self.log = StepLog(self.places.steps)
        self.controller = Controller(self.places, self.records, policy, **told)

    def look(self, self_s: Computed, samples: int = 0, *, claims: bool = False) -> list[MitigationProposal]:
        """What is proposed once the ranks have computed so long (steps × ranks), the last step now."""
        steps, ranks = self_s.shape
        number = np.repeat(np.arange(self.step, self.step + steps), ranks)
        self.step += steps
        rows = np.zeros(self_s.size, ROW)
        rows["rank"], rows["step"], rows["self_us"] = np.tile(np.arange(ranks), steps), number, 1e6 * self_s.ravel()
        rows["step_us"] = np.repeat(1e6 * (self_s.max(axis=1) + 0.02), ranks)
        rows["begin_us"], rows["samples"] = 1e6 * time.time() - 100_000 * (self.step - 1 - number), samples
        self.log.append(rows)
        version = max((one.plan.version for one in self.records.history()), default=0)
        now = State(1, 0, 0, self.step - 1, Plan(version, 0, self.sizes, claims=claims))
        can = {"is_uneven": self.is_uneven, "has_rate": self.has_rate}
        StateWriter(self.records.folder, 0, **can).write(now, 100_000, 0)
        self.controller.look()
        return self.records.proposals()


def watched(store: Path, self_s: Computed, sizes: tuple[int, ...], **told: Any) -> list[MitigationProposal]:  # noqa: ANN401
    return Watched(store, sizes, **told).look(self_s)


def one_slow(ranks: int, steps: int = 60, slow: float = 0.24) -> Computed:
    """80 ms a step, and rank 3 longer."""
    result = np.full((steps, ranks), 0.08)
    result[:, 3] = slow
    return result


def test_the_ranks_of_a_slow_unit_are_resized_together(tmp_path: Path) -> None:
    [proposal] = watched(tmp_path, one_slow(8), (16,) * 8, units="0-1,2-3,4-5,6-7", micro_batch=4)
    sizes = proposal.sizes
    assert sum(sizes) == 128
    assert sizes[2] == sizes[3] < 16
    assert all(sizes[a] == sizes[b] and sizes[a] % 4 == 0 for a, b in PAIRS)


def test_independent_ranks_are_resized_one_by_one(tmp_path: Path) -> None:
    [proposal] = watched(tmp_path, one_slow(8), (16,) * 8)
    assert proposal.sizes[3] < min(proposal.sizes[:3])
    assert kept_units(tmp_path / "job7" / "mitigate", 8) == Units(tuple((rank,) for rank in range(8)), "assumed")


def test_a_proposal_for_units_that_turn_out_others_is_replaced_with_a_reason_and_made_again(tmp_path: Path) -> None:
    said: list[str] = []
    job = Watched(tmp_path, (16,) * 4, say=said.append, in_words=proposal_line)
    job.places.capture.mkdir(parents=True)

    def learn(*groups: tuple[int, int]) -> None:
        memory = Remembered(communication=[Communication(0, 4, groups=groups)])
        (job.places.capture / "memory.json").write_bytes(msgspec.json.encode(memory))

    [first] = job.look(one_slow(4))
    assert said[-2].startswith("proposal 1: resize to ") and " saves " in said[-2]
    assert said[-1] == "kair mitigate approve job7 1 carries it out"
    learn((2, 80), (4, 10))
    [replaced] = job.look(one_slow(4, 1))
    assert (first.decision, replaced.decision, replaced.decided_by) == ("open", "replaced", None)
    assert (replaced.why or "").startswith("sizes stay: capture reports process groups, but not yet who is in them")
    learn((4, 10))
    second, _ = job.look(one_slow(4, 30))
    assert (second.decision, second.sizes) == ("open", first.sizes)


@pytest.mark.parametrize("told", [{"unit_size": 8}, {"units": "0-1,2-3,4-5,6-7"}])
def test_sizes_stay_where_they_cannot_change(told: dict[str, Any], tmp_path: Path) -> None:
    assert watched(tmp_path, one_slow(8), (16,) * 8, **told) == []


def test_one_unit_is_restarted_where_that_pays(tmp_path: Path) -> None:
    job = Watched(tmp_path, (16,) * 4, unit_size=4, restart_s=5.0)
    assert job.look(one_slow(4, 200, 0.08)) == []
    proposals = job.look(one_slow(4, 100))
    assert [(one.action, one.sizes, one.figures["rank"]) for one in proposals] == [("kill_restart", (16,) * 4, 3.0)]


class TakesHalf:
    """A policy that takes half of the slowest rank's batch away, and gives it to nobody."""

    def decide(self, view: View) -> Action:
        sizes = view.sizes.copy()
        sizes[view.compute_s.argmax()] //= 2
        return Action("adjust_lr", sizes=sizes, learning_rate="sqrt")


@pytest.mark.parametrize("has_rate", [True, False])
def test_a_policy_changes_the_global_batch_where_the_learning_rate_can_follow(has_rate: bool, tmp_path: Path) -> None:
    reports: list[str] = []
    policy = partial(Guarded, TakesHalf(), "my:TakesHalf", reports.append)
    job = Watched(tmp_path, (16,) * 4, policy, has_rate=has_rate, auto=True)
    proposals = job.look(one_slow(4))
    if not has_rate:
        assert proposals == []
        assert "the job's loader was given no optimizer=" in reports[0]
        return
    [proposal] = proposals
    assert (proposal.action, proposal.sizes, proposal.decided_by) == ("adjust_lr", (16, 16, 16, 8), "auto")
    assert proposal.figures["learning_rate"] == pytest.approx((56 / 64) ** 0.5)
    [ordered] = job.records.history()
    assert (ordered.plan.sizes, ordered.plan.learning_rate) == ((16, 16, 16, 8), "sqrt")
    assert job.look(one_slow(4)) == proposals  # once, however often it decides so


def short_spells() -> Computed:
    """80 ms a step, and now one rank, now another takes 300 for a step or two."""
    computed = np.full((100, 4), 0.08)
    computed[np.arange(2, 100, 5), np.arange(20) % 4] = 0.3
    return computed


def test_a_deadline_is_proposed_where_the_loop_can_leave_off(tmp_path: Path) -> None:
    job = Watched(tmp_path, (16,) * 4, POLICIES["continuous-deadline"], is_uneven=True)
    [proposal] = job.look(short_spells())
    assert (proposal.action, proposal.sizes) == ("backup_workers", (16,) * 4)
    assert proposal.deadline_us == pytest.approx(1.25 * 80_000, rel=0.2)
    plan = job.records.carry_out(proposal, "me")
    assert plan.deadline_us == proposal.deadline_us
    assert job.records.order((20, 12, 16, 16), "me").deadline_us == plan.deadline_us  # other sizes leave it in force


def test_no_deadline_is_proposed_where_all_ranks_have_to_meet(tmp_path: Path) -> None:
    assert Watched(tmp_path, (16,) * 4, POLICIES["continuous-deadline"]).look(short_spells()) == []


def test_claims_are_proposed_once_where_ranks_can_claim(tmp_path: Path) -> None:
    said: list[str] = []
    told = {"say": said.append, "in_words": proposal_line, "auto": True, "restart_s": 2.0}
    job = Watched(tmp_path, (16,) * 4, POLICIES["claims"], is_uneven=True, **told)
    [proposal] = job.look(one_slow(4))
    assert (proposal.action, proposal.sizes, proposal.decided_by) == ("claim", (16,) * 4, "auto")
    assert any(line.startswith("proposal 1: ranks claim their samples while a step runs") for line in said)
    [ordered] = job.records.history()
    assert (ordered.plan.sizes, ordered.plan.claims) == ((16,) * 4, True)
    # Ranks that claim are busy for as long; capture's samples show that rank 3 is slow once it is.
    assert job.look(np.full((200, 4), 0.08), 16, claims=True) == [proposal]
    restart, _ = job.look(np.full((100, 4), 0.1), np.tile([18, 18, 18, 5], 100), claims=True)  # type: ignore[arg-type]
    assert (restart.action, restart.figures["rank"]) == ("kill_restart", 3.0)


@pytest.mark.parametrize(
    ("is_uneven", "told", "why"),
    [
        (False, {}, "uneven_accumulation=True"),
        (True, {"unit_size": 4}, "all 4 ranks meet in every micro-batch"),
        (True, {"units": "0-1", "micro_batch": 4}, "claims: ranks 0+1 meet in every micro-batch"),
    ],
)
def test_claims_are_refused_in_a_line(is_uneven: bool, told: dict[str, Any], why: str, tmp_path: Path) -> None:
    said: list[str] = []
    job = Watched(tmp_path, (16,) * 4, POLICIES["claims"], is_uneven=is_uneven, say=said.append, **told)
    proposals = [*job.look(one_slow(4)), *job.look(one_slow(4, 5))]
    assert [line for line in said if why in line][1:] == []
    assert any(why in line for line in said)
    assert not any(one.action == "claim" for one in proposals)
    assert any(one.action == "adjust_bs" for one in proposals) == (not is_uneven)  # it resizes where it can


@pytest.mark.parametrize("is_uneven", [True, False])
def test_fixed_speeds_are_met_by_sizes_and_batches(is_uneven: bool, tmp_path: Path) -> None:
    job = Watched(tmp_path, (16,) * 4, POLICIES["deterministic"], is_uneven=is_uneven, most=16)
    [proposal] = job.look(np.tile([0.08, 0.08, 0.08, 0.24], (200, 1))) or [None]
    if is_uneven:
        assert proposal is not None
        assert proposal.sizes[3] < 16 < max(proposal.sizes)
        assert proposal.batches is not None
        assert max(proposal.batches) == 2  # two of at most 16 samples
    else:
        assert proposal is None  # nobody has memory for more


def test_units_of_another_number_of_ranks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the job has 4"):
        watched(tmp_path, one_slow(4), (16,) * 4, units="0-7")


def on_devices(first: int, steps: int) -> Rows:
    """Hosts are ahead, and alike; the devices tell every fourth step."""
    rows = np.zeros(2 * steps, ROW)
    rows["rank"], rows["step"] = np.tile(np.arange(2), steps), np.repeat(np.arange(first, first + steps), 2)
    rows["begin_us"] = 1 + 30_000 * rows["step"]
    rows["self_us"], rows["step_us"] = 1000, 25_000
    rows["device_us"] = np.where(rows["step"] % 4 == 3, 10_000 * (1 + rows["rank"]), 0)
    return rows


def known_at(step: int) -> JobState:
    return JobState(State(1, 0, 0, step, Plan(0, 0, (16, 16))), 1000, 0, 0, 0.03 * step, ())


def test_on_devices_ranks_compute_what_these_tell(tmp_path: Path) -> None:
    StepLog(tmp_path).append(on_devices(0, 8))
    found = stepped(tmp_path, known_at(7))
    assert found is not None
    assert np.allclose(found[1].T, [0.01, 0.02])


def test_a_later_look_has_the_new_steps_alone_and_what_devices_told_before(tmp_path: Path) -> None:
    log, new = StepLog(tmp_path), NewSteps(tmp_path)
    log.append(on_devices(0, 8))
    assert new.after(-1, known_at(7)) is not None
    log.append(on_devices(8, 3))  # in which no device tells
    found = new.after(7, known_at(10))
    assert found is not None
    assert found[0].tolist() == [8, 9, 10]
    assert np.allclose(found[1].T, [0.01, 0.02])
