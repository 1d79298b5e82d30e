"""Triage by the history of steps: tables of three ranks that take 10 ms by themselves of a step of 14 ms."""

import re
import signal
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from history_made import made

from kair_engine.arrays import Floats
from kair_engine.ranks import Rank
from kair_engine.results.step_bar import StepBar
from kair_engine.results.triage import Finding
from kair_engine.results.warning_kinds import NobodyWaits, SlowMoment, TooFewSteps
from kair_engine.results.watch import StandingRank
from kair_engine.stats import TRIM, trimmed_mean
from kair_engine.steplog.analysis import changes_of
from kair_engine.trace.model import Job, KairWarning, StepTimes, Trace
from kair_engine.triage.hangs.standing import beside, standing_verdict
from kair_engine.triage.history.analysis import joined, judge, triage_of_rows
from kair_engine.triage.history.rows import COLUMNS, COMPILE, StepHistory, step_history
from kair_engine.triage.history.schedules import _grid
from kair_engine.views.scope_changes import passage
from kair_tui.render.oneline import oneline
from kair_tui.render.triage import facts, suggestion_of, triage_in_words, triage_totals
from kair_tui.render.units import percent
from kair_tui.render.verdict import step_us_of
from kair_tui.render.within_rank import when_in_words

RANKS, STEPS, ONSET = 3, 200, 120


def job(ranks: int = RANKS) -> Job:
    return Job(
        name="job",
        source="job",
        format="steps",
        world_size=ranks,
        ranks=tuple(range(ranks)),  # type: ignore[arg-type]
        hosts=dict.fromkeys(range(ranks), "node-1"),
        layout=None,
        device=None,
        has_device=False,
        absolute_time=True,
        steps=(),
        step_times=StepTimes((), (), (), (), ()),
        operations=0,
        warnings=(),
    )


def history(ranks: int = RANKS, onset: int = ONSET, rank: int = 1, *, alone: bool = True, **more: float) -> StepHistory:
    """What `rank` takes more of each column from `onset` on; `self` is more of the rank's own time, in no column.

    `alone`: the others wait for it. Else they are stages, which wait for one another.
    """
    random = np.random.default_rng(1)
    noise = random.normal(0, 100, (STEPS, ranks))
    us: dict[str, Floats] = {name: np.zeros((STEPS, ranks)) for name in COLUMNS}
    usual = {"forward": 4000, "optimizer": 1000, "input": 500, "cpu": 8000, "delay": 200, "samples": 8}
    for name, value in usual.items():
        us[name] += value
    us["self"] += 10_000 + noise
    us["forward"] += noise
    later = np.arange(STEPS) >= onset
    for name, value in more.items():
        us[name][later, rank] += value
        if name in ("forward", "optimizer", "input", "gc"):
            us["self"][later, rank] += value
    us["step"] += (us["self"].max(axis=1) if alone else us["self"].sum(axis=1))[:, None] + 4000
    us["waited"] = us["step"] - us["self"]
    us["backward"] = us["waited"] + 3000
    step, of_rank = np.indices((STEPS, ranks))
    return step_history(
        of_rank.ravel(), step.ravel(), {name: of.ravel() for name, of in us.items()}, host_of=job(ranks).hosts
    )


def the_finding(of: StepHistory) -> Finding:
    (found,) = judge(of, job(len(of.ranks)))[0]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "cause", "scope", "evidence"),
    [
        ({"self": 3000}, "host", "loop", "asleep"),
        ({"forward": 3000, "cpu": 3000}, "compute", "forward", "computes_more"),
        ({"optimizer": 3000, "cpu": 3000}, "compute", "optimizer", "computes_more"),
        ({"gc": 3000, "cpu": 3000}, "garbage_collection", "loop", "collects_garbage"),
        ({"input": 3000}, "input", "input", "asleep"),
        ({"forward": 3000, "delay": 3000}, "contention", "forward", "no_core"),
    ],
)
def test_a_fault_is_named_with_its_first_step_its_part_and_its_cause(
    more: dict[str, float], cause: str, scope: str, evidence: str
) -> None:
    found = the_finding(history(**more))
    assert (found.ranks, found.since, found.cause, found.scope) == ((1,), ONSET, cause, scope)
    assert evidence in {one.kind for one in found.evidence}
    # All wait for whoever is last: without the fault the step is 3 ms shorter, but for the noise of the others.
    assert found.time_lost_us_per_step == pytest.approx(3000, abs=150)
    assert found.priced_by == "growth"


@pytest.mark.parametrize("grown", [1500, 6000])
def test_a_fault_costs_what_the_steps_grew_by_where_all_ranks_are_slower_or_faster_at_once(grown: int) -> None:
    """A rank that is late by 3 ms leaves its cores to the others, or takes theirs; what it takes itself is no price."""
    of = history(self=3000)
    later = of.steps >= ONSET
    us = {name: column.copy() for name, column in of.us.items()}
    for name in ("step", "waited", "backward"):
        us[name][later] += grown - 3000
    other = replace(of, us=us)
    found, as_modelled = the_finding(other), the_finding(of)
    assert found.time_lost_us_per_step == pytest.approx(grown, rel=0.1)
    assert as_modelled.time_lost_us_per_step == pytest.approx(3000, abs=150)
    (grew,) = [one for one in found.evidence if one.kind == "grew"]
    assert grew.figures["grown_us"] == pytest.approx(grown, rel=0.1)
    assert 0 < grew.figures["error_us"] < grown / 10


def test_a_stall_of_all_ranks_before_the_onset_is_not_what_steps_shrank_by() -> None:
    of = history(self=3000)
    us = {name: column.copy() for name, column in of.us.items()}
    for name in ("step", "waited", "backward"):
        us[name][ONSET // 2] += 1e6
    assert the_finding(replace(of, us=us)).time_lost_us_per_step == pytest.approx(3000, abs=150)


@pytest.mark.parametrize("every", [1, 4])
def test_a_rank_that_compiles_is_named_with_that_cause(every: int) -> None:
    of = history(onset=STEPS)
    hit = np.flatnonzero(of.steps % every == 0)
    us = {name: column.copy() for name, column in of.us.items()}
    for name in ("self", "forward", "cpu", COMPILE):
        us[name][hit, 1] += 9000
    us["step"] = us["self"].max(axis=1)[:, None] + np.full(len(of.ranks), 4000)
    us["waited"] = us["step"] - us["self"]
    found = the_finding(replace(of, us=us))
    assert (found.ranks, found.cause) == ((1,), "compilation")
    assert "compiles" in {one.kind for one in found.evidence}


def passing(begin: int, end: int, us: float = 3000) -> tuple[StepHistory, float]:
    """Rank 1 takes longer in steps [begin, end); (the history, by how much its mean step is longer for that)."""
    of = history(onset=STEPS)
    within = (of.steps >= begin) & (of.steps < end)
    more = {name: column.copy() for name, column in of.us.items()}
    for name in ("self", "forward", "cpu"):
        more[name][within, 1] += us
    more["step"] = more["self"].max(axis=1)[:, None] + np.full(RANKS, 4000)
    more["waited"] = more["step"] - more["self"]
    return replace(of, us=more), float((more["step"] - of.us["step"]).mean())


@pytest.mark.parametrize(("begin", "end"), [(60, 120), (100, 160), (40, 90)])
def test_a_fault_that_is_over_is_named_with_its_end_and_priced_while_it_lasted_and_over_all_steps(
    begin: int, end: int
) -> None:
    of, longer = passing(begin, end)
    found = the_finding(of)
    since = begin if begin > of.steps[0] else None
    assert (found.ranks, found.since, found.until, found.pattern) == ((1,), since, end - 1, "persistent")
    assert found.steps == tuple(range(begin, end))
    assert found.time_lost_us_per_step == pytest.approx(longer, rel=0.03)
    assert found.time_lost_us_per_slow_step == pytest.approx(longer * len(of.steps) / (end - begin), rel=0.03)
    first = "until step" if since is None else f"from step {begin} to"
    assert when_in_words(found) == f" {first} {end - 1}, over since"
    (sentence,) = [
        one for one in triage_in_words(triage_of_rows(of, job())).findings[0].evidence if one.kind == "since"
    ]
    assert sentence.sentence.startswith(f"{first} {end - 1} 3.0")
    assert "while it lasted" in facts(found)[0]


@pytest.mark.slow
@pytest.mark.parametrize(("begin", "end"), [(100, 130), (100, 196), (100, 200)])
def test_a_short_spell_is_no_fault_and_what_lasts_has_no_end(begin: int, end: int) -> None:
    found, _ = judge(passing(begin, end)[0], job())
    assert [(one.since, one.until) for one in found] == ([] if end == 130 else [(begin, None)])


def test_what_is_left_after_a_fault_decides_whether_it_is_over() -> None:
    """After steps of 9 and before those of 0, 6 is nearer to the fault, and 2 to what was before."""
    series = np.zeros(200) + np.tile([0.1, -0.1, 0.2, -0.2], 50)
    series[50:120] += 9
    for rest, end in ((6, None), (2, 120)):
        later = series.copy()
        later[120:] += rest
        run = passage(later, 1)
        assert (run and run.end) == end
    assert passage(np.zeros(200) + np.tile([0.1, -0.1, 0.2, -0.2], 50), 1) is None


def test_what_samples_say_of_a_fault_that_is_over_is_priced_by_all_steps() -> None:
    of, longer = passing(60, 120)
    whole = triage_of_rows(of, job())
    sampled = replace(
        whole.findings[0], since=None, until=None, time_lost_us_per_slow_step=None, time_lost_us_per_step=2900.0
    )
    (found,) = joined(replace(whole, findings=(sampled,)), of, job()).findings
    assert (found.since, found.until) == (60, 119)
    assert found.time_lost_us_per_step == pytest.approx(longer, rel=0.03)


def scheduled(every: int, *, us: float = 150_000, stalls: int = 0, of_all: bool = False) -> tuple[StepHistory, float]:
    """Rank 1 evaluates after every so-many-th step; (the history, what that costs in the mean of all steps).

    Each rank stalls in so many steps besides, for 5 ms; `of_all`: all ranks evaluate, each somewhat longer or shorter.
    """
    of, random = history(ranks=4, onset=STEPS), np.random.default_rng(3)
    more = {name: column.copy() for name, column in of.us.items()}
    hit = of.steps % every == 0
    for rank in range(4):
        late = random.choice(len(of.steps), stalls, replace=False)
        more["self"][late, rank] += 5000
    without = more["self"].max(axis=1)
    for rank in range(4) if of_all else [1]:
        more["self"][hit, rank] += us * (1 + random.normal(0, 0.1, np.count_nonzero(hit)))
    # It has left the step's own collectives behind: the others wait for it in those of the next step.
    waits = np.roll(more["self"].max(axis=1) - without, 1)
    more["waited"] = 4000 + np.where(np.arange(4) == 1, 0.0, waits[:, None])
    more["step"] = more["self"] + more["waited"]
    return replace(of, us=more), float((more["self"].max(axis=1) - without).mean())


@pytest.mark.parametrize("stalls", [0, 12])
@pytest.mark.parametrize("every", [20, 40])
def test_who_evaluates_alone_is_named_with_the_period_in_these_steps_only_and_priced_once(
    every: int, stalls: int
) -> None:
    of, costs = scheduled(every, stalls=stalls)
    found = the_finding(of)
    assert (found.ranks, found.pattern, found.every) == ((1,), "intermittent", every)
    assert found.steps == tuple(range(40, STEPS, every))
    assert found.time_lost_us_per_step == pytest.approx(costs, rel=0.05)
    # 150 ms beyond the slowest of the others, which take 10 ms each.
    assert found.time_lost_us_per_slow_step == pytest.approx(150_000, rel=0.1)
    assert f"one in {every}" in facts(found)[0]
    assert when_in_words(found) == f" every {every} steps"
    assert "periodic" in found.shows


def test_an_evaluation_of_all_ranks_no_two_of_them_as_long_accuses_nobody() -> None:
    assert judge(scheduled(20, of_all=True, stalls=12)[0], job(4))[0] == ()


def test_collections_at_equal_distances_on_every_rank_at_its_own_moments_accuse_nobody() -> None:
    of = history(ranks=4, onset=STEPS)
    own = of.us["self"].copy()
    for rank in range(4):
        own[(of.steps + 5 * rank) % 20 == 0, rank] += 5000
    step = own.max(axis=1)[:, None] + np.full(4, 4000)
    assert judge(replace(of, us={**of.us, "self": own, "step": step, "waited": step - own}), job(4))[0] == ()


def test_an_evaluation_and_a_checkpoint_of_one_rank_are_one_finding_of_both() -> None:
    of, _ = scheduled(20)
    own = of.us["self"].copy()
    own[of.steps % 33 == 1, 1] += 400_000
    found = the_finding(replace(of, us={**of.us, "self": own, "step": own + of.us["waited"]}))
    assert set(found.steps) == {*range(40, STEPS, 20), *range(67, STEPS, 33)}
    assert found.every == 33  # on which it loses more


def test_the_chance_of_a_grid_is_that_of_the_steps_on_it_times_the_grids_that_were_tried() -> None:
    """Four of 40 steps, ten apart, are one of the 91,390 choices; there are 2 + … + 20 = 209 grids of that many."""
    hit = np.arange(40) % 10 == 3
    grid = _grid(np.arange(40), hit, 1)
    assert grid is not None
    assert (grid.every, np.flatnonzero(grid.on).tolist()) == (10, [3, 13, 23, 33])
    assert grid.chance == pytest.approx(209 / 91_390)


def test_a_rank_that_is_slow_from_the_first_step_on_is_held_against_its_peers() -> None:
    found = the_finding(history(onset=0, forward=3000, cpu=3000))
    assert (found.ranks, found.since, found.cause) == ((1,), None, "compute")


@pytest.mark.parametrize("onset", [0, ONSET])
@pytest.mark.parametrize("often", [2 / 5, 3 / 5])
def test_delays_that_come_in_bursts_are_priced_by_what_all_of_them_cost(onset: int, often: float) -> None:
    of = history(ranks=5, onset=STEPS)
    us: dict[str, Floats] = {name: column.copy() for name, column in of.us.items()}
    hit = np.flatnonzero((of.steps >= onset) & (of.steps % 5 < 5 * often))
    late = of.steps >= onset
    us["self"][hit, 1] += 9000
    us["input"][hit, 1] += 9000
    us["step"] = us["self"].max(axis=1)[:, None] + np.full(5, 4000)
    us["waited"] = us["step"] - us["self"]
    found = the_finding(replace(of, us=us))
    assert (found.ranks, found.cause) == ((1,), "input")
    shorter = (us["step"] - of.us["step"])[:, 0]
    within = late if found.pattern == "persistent" else np.ones_like(late)
    assert found.time_lost_us_per_step == pytest.approx(shorter[within].mean(), rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("ms", [3, 4, 5, 6, 8])
def test_who_is_late_in_every_step_is_so_for_good_though_few_steps_stand_out_of_uneven_batches(ms: int) -> None:
    of, random = history(ranks=8, onset=STEPS), np.random.default_rng(0)
    samples = random.integers(1, 17, (len(of.steps), 8)).astype(float)
    us: dict[str, Floats] = {**of.us, "samples": samples}
    us |= {name: of.us[name] * samples / 8 for name in ("self", "forward")}
    us["step"] = np.repeat(us["self"].sum(axis=1)[:, None] + 4000, 8, axis=1)
    us["waited"] = us["step"] - us["self"]
    us["backward"] = us["waited"] + 3000
    staged = replace(of, us=us, role=np.arange(8) // 4, role_names=("stage 0 of 2", "stage 1 of 2"))
    found = the_finding(staged.slower(2, ms * 1e3))
    assert (found.ranks, found.pattern) == ((2,), "persistent")
    assert found.time_lost_us_per_step == pytest.approx(ms * 1e3, rel=0.3)


def test_a_stage_without_peers_is_held_against_the_other_stages() -> None:
    of = history(ranks=4, rank=2, alone=False, forward=3000, cpu=3000)
    of = replace(of, role=np.arange(4), role_names=tuple(f"stage {at} of 4" for at in range(4)))
    found = the_finding(of)
    assert (found.ranks, found.since, found.priced_by) == ((2,), ONSET, "excess")
    assert found.time_lost_us_per_step == pytest.approx(3000, abs=150)


def test_a_rank_that_is_given_more_samples_is_not_slow() -> None:
    larger = {"samples": 4, "forward": 5000, "cpu": 5000}
    assert judge(history(onset=0, **larger), job())[0] == ()
    found = the_finding(history(onset=0, **{**larger, "forward": 11_000}))
    assert found.ranks == (1,)
    (of_sample,) = [one.figures for one in found.evidence if one.kind == "sample_time"]
    assert (of_sample["samples"], of_sample["usual_samples"]) == (12, 8)
    assert of_sample["us_per_sample"] == pytest.approx(21_000 / 12, rel=0.01)


def test_without_anybody_seen_to_wait_backward_is_where_ranks_wait() -> None:
    of = history(forward=3000, cpu=3000)
    us = {**of.us, "waited": np.zeros_like(of.us["waited"]), "self": of.us["step"]}
    step, rank = np.indices(us["step"].shape)
    flat = {name: one.ravel() for name, one in us.items()}
    waitless = step_history(rank.ravel(), of.steps[step.ravel()], flat)
    found = the_finding(waitless)
    assert (found.ranks, found.cause) == ((1,), "compute")
    result = triage_of_rows(waitless, job())
    assert (result.waiting_us_per_step, result.ranking[0].wait_imposed_us) == (None, None)
    assert "no waiting was recorded" in triage_totals(result)


def test_a_healthy_job_is_told_with_the_smallest_fault_that_would_have_been_seen() -> None:
    of = history()
    result = triage_of_rows(of, job())
    assert (result.verdict, result.findings) == ("no_straggler", ())
    assert result.unseen is not None
    assert 0.01 <= result.unseen.share_of_step < 0.1
    assert judge(of.slower(0, 1.2 * result.unseen.us_per_step), job())[0][0].ranks == (0,)
    assert "would have been seen" in triage_in_words(result).summary


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [3, 24])
def test_of_the_sizes_a_tenth_apart_the_smallest_that_is_seen_on_each_of_the_fastest_is_told(ranks: int) -> None:
    of = history(ranks=ranks, onset=STEPS)
    unseen = judge(of, job(ranks))[1]
    assert unseen is not None
    assert unseen.share_of_step > 0.011
    fastest = np.argsort(trimmed_mean(of.own - np.median(of.own, axis=1, keepdims=True), TRIM))[:4].tolist()

    def are_all_seen(us: float) -> bool:
        return all((rank,) in {one.ranks for one in judge(of.slower(rank, us), job(ranks))[0]} for rank in fastest)

    assert are_all_seen(unseen.us_per_step)
    assert not are_all_seen(unseen.us_per_step / 1.1008)


def test_what_all_ranks_lack_accuses_none() -> None:
    of = history()
    delay = of.us["delay"] + 4000
    delay[:, 1] += 1500
    of = replace(of, us={**of.us, "delay": delay, "self": of.us["self"] + delay, "step": of.us["step"] + delay.max()})
    result = triage_of_rows(of, job())
    assert result.verdict == "job_wide"
    assert [(one.cause, one.ranks, one.seen_on) for one in result.findings] == [("contention", (), (0, 1, 2))]


def longer(of: StepHistory, us: float) -> StepHistory:
    """The same with steps that are longer from the onset on, for what no rank takes by itself: all wait as long."""
    more = np.where(of.steps >= ONSET, us, 0.0)[:, None]
    return replace(of, us={**of.us, **{name: of.us[name] + more for name in ("step", "waited", "backward")}})


def test_steps_that_became_longer_on_all_ranks_alike_are_no_rank_s_fault_and_not_passed_over() -> None:
    found = triage_of_rows(longer(history(), 5000), job())
    (item,) = found.open
    assert (found.verdict, item.kind, item.ranks, item.steps[0]) == ("inconclusive", "changed", (), ONSET)
    assert (item.usual_us, item.took_us) == (pytest.approx(14_000, rel=0.02), pytest.approx(19_000, rel=0.02))
    # 80 of the 160 steps that are judged are longer.
    assert item.us_per_step == pytest.approx(2500, rel=0.05)
    assert "since step 120 a step takes 19" in triage_in_words(found).summary


@pytest.mark.slow
def test_of_very_many_steps_a_change_is_found_as_well() -> None:
    seconds = np.random.default_rng(1).normal(0.02, 0.0005, 70_003)
    seconds[50_000:] += 0.002
    (change,) = changes_of(np.arange(70_003), seconds)
    assert (change.kind, change.until) == ("slower", None)
    assert change.since == pytest.approx(50_000, abs=8)  # of means of four steps
    assert change.share == pytest.approx(0.1, rel=0.02)


def test_what_a_slow_rank_makes_all_steps_longer_by_is_not_open_too() -> None:
    assert triage_of_rows(history(self=5000), job()).open == ()


def sleeping(of: StepHistory, cpu: float) -> StepHistory:
    """The same of a program that XLA compiled: nobody is seen to wait, and each rank computes for `cpu` µs a step."""
    unseen = {"self": of.us["step"], "waited": np.zeros_like(of.us["step"]), "cpu": np.full_like(of.us["cpu"], cpu)}
    return replace(of, us={**of.us, **unseen}, framework="xla")


def test_where_waiting_may_be_unseen_a_slow_rank_may_be_hidden_and_nobody_is_cleared() -> None:
    """All ranks of a compiled program take as long as the slow one, 3 ms more: it is in the step, and in nobody."""
    found = triage_of_rows(sleeping(history(onset=0, self=3000), cpu=2000), job())
    (item,) = found.open
    assert (found.verdict, found.unseen, found.findings) == ("inconclusive", None, ())
    # Of 17 ms they compute for 2 and are without a core for .2.
    assert (item.kind, item.ranks) == ("unseen_waiting", ())
    assert item.us_per_step == pytest.approx(14_800, abs=200)
    assert "ranks may wait for one another for up to 14.8 of the 17" in triage_in_words(found).summary
    assert "would have been seen" not in triage_in_words(found).summary


def test_a_device_s_own_time_hides_no_waiting() -> None:
    """Of hosts that are never seen to wait: the devices do."""
    of = sleeping(history(), cpu=2000)
    assert triage_of_rows(replace(of, us={**of.us, "device": of.us["self"]}), job()).open == ()


def test_of_compiled_programs_that_compute_all_the_time_nobody_waits_unseen() -> None:
    of = history()
    busy = replace(sleeping(of, 0), us={**sleeping(of, 0).us, "cpu": of.us["step"] - 200})
    assert triage_of_rows(busy, job()).open == ()


def test_too_short_a_history_leaves_it_open() -> None:
    of = history()
    of = replace(of, steps=of.steps[:20], us={name: one[:20] for name, one in of.us.items()})
    result = triage_of_rows(of, job())
    assert (result.verdict, result.unseen) == ("inconclusive", None)


def test_sampled_steps_add_their_operator_to_what_all_steps_say() -> None:
    """Their price where the steps before the fault are not known: they have it in all of their own."""
    of = history(gc=3000, cpu=3000)
    whole = triage_of_rows(of, job())
    named: dict[str, Any] = {"cause": "host", "operator": "aten::square", "edge": "idle before aten::square"}
    (finding,) = whole.findings
    of_windows = replace(finding, **named, since=None, scope=None, priced_by="replay", time_lost_us_per_step=2500.0)
    both = joined(replace(whole, findings=(of_windows,), verdict="straggler"), of, job())
    (found,) = both.findings
    assert (found.cause, found.edge, found.since) == ("garbage_collection", None, ONSET)
    assert found.time_lost_us_per_step == finding.time_lost_us_per_step
    always = history(onset=0, gc=3000, cpu=3000)
    both = joined(replace(whole, findings=(of_windows,), verdict="straggler"), always, job())
    assert [(one.time_lost_us_per_step, one.priced_by) for one in both.findings] == [(2500.0, "replay")]
    # Nor is it a part of what several cost by the replay.
    parts = replace(of_windows, least_us_per_step=100.0, most_us_per_step=9000.0)
    other = replace(parts, ranks=(Rank(2),))
    both = joined(replace(whole, findings=(parts, other), verdict="straggler"), of, job())
    assert {(one.ranks, one.priced_by, one.most_us_per_step) for one in both.findings} == {
        ((1,), "growth", None),
        ((2,), "replay", None),
    }
    # What sampled steps blame on nobody, all steps do on one.
    alone = joined(replace(whole, findings=(), verdict="job_wide"), of, job())
    assert (alone.verdict, [one.ranks for one in alone.findings]) == ("straggler", [(1,)])


@pytest.mark.slow
def test_no_warning_of_sampled_steps_contradicts_what_all_steps_say() -> None:
    """And the bar says that ranks wait for a straggler, once one is named."""
    of = history(gc=3000, cpu=3000)
    whole = triage_of_rows(of, job())
    unlike = (
        NobodyWaits(ranks=(Rank(1),), share_of_step=0.1, waited_share=0.01),
        SlowMoment(ranks=(Rank(1),), share_of_step=0.1, steps=3, fewest_steps=5),
        TooFewSteps(steps=3, fewest_steps=5, peers=4),
    )
    alike = (NobodyWaits(ranks=(Rank(2),), share_of_step=0.1, waited_share=0.01), KairWarning("giant_step", ""))
    bar = StepBar(1e4, (), (), "one_program", 3)
    sampled = replace(whole, findings=(), verdict="inconclusive", warnings=(*unlike, *alike), bar=bar)
    found = joined(sampled, of, job())
    assert found.warnings == alike
    assert found.bar is not None
    assert found.bar.names_straggler
    healthy = joined(sampled, history(), job())
    assert (healthy.warnings, healthy.bar) == ((*unlike, *alike), bar)


def test_advice_fits_the_framework() -> None:
    (finding,) = triage_of_rows(history(self=3000), job()).findings
    launches = replace(finding, cause="launch_bound", pattern="job_wide", ranks=(), seen_on=finding.ranks)
    assert "torch.compile" in suggestion_of(replace(launches, framework="torch"))
    assert "torch" not in suggestion_of(replace(launches, framework="xla"))


def test_a_slow_device_is_named_though_its_host_is_far_ahead() -> None:
    """Hosts that read the loss every 10 steps: they are alike, and tell of the device only then."""
    table, random = history().us, np.random.default_rng(2)
    device = 20_000 + random.normal(0, 100, (STEPS, RANKS))
    device[:, 1] += 3000
    # The history leaves the first steps out.
    told = device[-len(table["self"]) :] * (np.arange(len(table["self"])) % 10 == 9)[:, None]
    alike = {"self": np.full_like(told, 2000.0), "step": np.full_like(told, 25_000.0), "waited": np.zeros_like(told)}
    step, of_rank = np.indices(told.shape)
    columns = {name: of.ravel() for name, of in {**table, **alike, "device": told}.items()}
    found = the_finding(step_history(of_rank.ravel(), step.ravel(), columns, host_of=job().hosts))
    assert (found.ranks, found.cause, found.scope) == ((1,), "compute", "device")


@pytest.mark.slow
def test_parts_that_stand_for_many_steps_are_one_measurement() -> None:
    """The last measurement of CPU time, high by chance, stands for the last steps of these healthy jobs."""
    for seed in (8, 18, 71, 85):
        healthy = made(seed, None)
        healthy.thinned = 16
        of = healthy.history()
        assert of.tells_cpu and not judge(of, job(len(of.ranks)))[0]
    slow = made(1, "since")
    slow.thinned = 16
    found = the_finding(slow.history())
    assert found.ranks == (slow.rank,) and abs((found.since or 0) - slow.begin) <= 3


@pytest.mark.parametrize("lacking", [0, 7], ids=["whole", "lacking"])
@pytest.mark.parametrize("apart", [1, 10**7], ids=["steps in a row", "steps far apart"])
def test_rows_in_any_order_and_type_are_the_same_history(lacking: int, apart: int) -> None:
    random, steps, ranks = np.random.default_rng(1), 200, 4
    step, rank = (of.ravel() for of in np.indices((steps, ranks)))
    told = random.permutation(len(step))[lacking:]
    us = {name: random.integers(1, 2**32, len(step), dtype=np.uint32) for name in COLUMNS if name != "gc"}
    us["samples"][:], us["device"][:] = 8, 0
    in_order = np.sort(told)
    first, second, floats = (
        step_history(rank[at], step[at] * apart, {name: of[at].astype(kind) for name, of in us.items()})
        for at, kind in ((in_order, np.uint32), (told, np.uint32), (in_order, np.float64))
    )
    is_told = np.zeros((steps, ranks), np.bool_)
    is_told[step[told], rank[told]] = True
    kept = [at for at in range(40, steps) if is_told[at].all()]
    assert first.steps.tolist() == [at * apart for at in kept] and len(kept) >= steps - 40 - lacking
    for name in COLUMNS:
        wanted = us[name].reshape(steps, ranks)[kept].astype(np.float64) if name in us else np.zeros((len(kept), ranks))
        for of in (first, second, floats):
            assert of.us[name].dtype == np.float64 and (of.us[name] == wanted).all(), name
    some = first.of_steps(first.steps[::3].tolist())
    assert (some.us["self"] == first.us["self"][::3]).all()
    slower = first.slower(2, 5.0)
    assert (slower.us["waited"][:, 0] == first.us["waited"][:, 0] + 5).all()
    assert (slower.us["self"][:, 2] == first.us["self"][:, 2] + 5).all()


def test_nothing_is_judged_before_the_first_step() -> None:
    none = np.zeros(0, np.int64)
    found = triage_of_rows(step_history(none, none, {}), job())
    assert (found.verdict, found.findings, found.history_steps) == ("inconclusive", (), 0)


def test_a_hang_is_told_beside_what_was_proved_before_and_never_in_its_place() -> None:
    slow = triage_of_rows(history(self=3000), job())
    ends = [StandingRank(rank, "vm", "died", 60, signal=signal.SIGTERM) for rank in range(RANKS)]
    segv = replace(ends[2], signal=signal.SIGSEGV)
    found = beside(standing_verdict(Trace(job(), (), ()), [*ends[:2], segv]), slow)
    assert [(one.cause, one.ranks) for one in found.findings] == [("hang", (2,)), ("host", (1,))]
    assert {one.rank for one in found.ranking if one.flagged} == {1, 2}
    assert found.history_steps == slow.history_steps
    summary = triage_in_words(found).summary
    assert summary.startswith("straggler: rank 2 (hang, rank 2 died in step 60 of SIGSEGV); then rank 1 (host")
    ended = beside(standing_verdict(Trace(job(), (), ()), ends), slow)
    assert (ended.verdict, ended.findings) == ("straggler", slow.findings)
    assert triage_in_words(ended).summary.endswith("; the job was ended from outside (SIGTERM on all ranks)")


def test_nothing_costs_more_than_a_hang() -> None:
    slow = triage_of_rows(history(self=3000), job())
    shared = replace(slow.findings[0], ranks=(), pattern="job_wide", cause="contention")
    died = standing_verdict(Trace(job(), (), ()), [StandingRank(0, "vm", "died", 60, signal=signal.SIGSEGV)])
    summary = triage_in_words(beside(died, replace(slow, findings=(shared,)))).summary
    assert "; no rank's fault: CPU contention" in summary


def test_the_share_of_the_step_and_the_slowdown_follow_from_one_another_where_the_price_is_of_part_of_the_job() -> None:
    """The mean step is of all steps: those before the onset have no share in what is lost since then."""
    whole = triage_of_rows(history(forward=6000.0), job())
    sampled = replace(whole, step_time_us=whole.step_time_us * 1.1)
    for result in (whole, sampled):
        finding = result.findings[0]
        lost, step = re.findall(r"(?<=, )([0-9.]+) of the ([0-9.]+) ms step", triage_in_words(result).summary)[0]
        assert float(step) / (float(step) - float(lost)) == pytest.approx(finding.slowdown, rel=0.01)
        share = finding.time_lost_us_per_step / step_us_of(finding, result)
        assert f"({percent(share)})" in oneline(result, "job")
        assert share == pytest.approx(finding.gpu_hours_per_day / (24 * RANKS))
