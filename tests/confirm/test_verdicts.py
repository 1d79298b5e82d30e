"""What delays prove of simulated jobs whose slow rank, slack and worth are known."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from simulate import STEP_US, Job, Noise, Shape, run, true_effects, worth_us

from kair_capture.delays import DEFAULT_SHARES, Mode, Order, Place
from kair_engine.confirm.decide import FIRST_LOOK, LEVEL, decided, looks, noise_us, which_rank
from kair_engine.confirm.estimate import Recorded, arms_of
from kair_engine.confirm.worth import swept
from kair_engine.results.confirm import ConfirmResult, ConfirmVerdict, DelayPlace

QUIET = Noise(white=0.01, drift=0.02, network=0.004)
SLOW = Job(excess={2: 0.1}, noise=QUIET)


def order(
    *doses: float, accused: tuple[int, ...] = (2,), mode: Mode = Mode.ARMS, place: Place = Place.BEFORE_FORWARD
) -> Order:
    """Doses are shares of the step."""
    return Order(
        generation=1,
        seed=3,
        first_step=100,
        last_step=163,
        place=place,
        mode=mode,
        doses_ns=tuple(round(dose * STEP_US * 1e3) for dose in doses or (0.04,)),
        accused=accused,
        shares=DEFAULT_SHARES[mode],
    )


@cache
def recorded(job_name: str, accused: int = 2, steps: int = 300) -> Recorded:
    jobs = {"slow": SLOW, "healthy": Job(noise=replace(QUIET, white=0.03))}
    return run(jobs[job_name], order(accused=(accused,)), steps, seed=5)


def said(
    job: Job, accused: int, *, dose: float = 0.04, steps: int = 300, place: Place = Place.BEFORE_FORWARD
) -> ConfirmResult:
    return decided(run(job, order(dose, accused=(accused,), place=place), steps, seed=5), place.value)


def test_the_slow_rank_is_confirmed_and_costs_what_its_own_delays_cost() -> None:
    result = decided(recorded("slow"), "before_forward")
    assert (result.verdict, result.held_up_by, result.steps_needed) == ("confirmed", (2,), 0)
    assert result.p is not None and result.p < LEVEL
    accused, others, every = result.effects
    assert accused.low is not None and accused.low > 0.5
    assert others.high is not None and others.high < 0.5
    assert every.effect == pytest.approx(1, abs=0.3)
    # All others lost nothing by waiting: they have all of the dose as slack, and perhaps more.
    assert others.slack_us == pytest.approx(0.04 * STEP_US, rel=0.25)
    assert others.slack_high_us is None
    assert result.saving_low_us is not None and result.saving_low_us > 0
    assert result.cost_us < 0.04 * STEP_US * (accused.n + others.n / 2 + every.n)


def test_another_rank_than_the_slow_one_is_withdrawn() -> None:
    result = decided(recorded("slow", 3), "before_forward")
    assert (result.verdict, result.held_up_by) == ("withdrawn", ())
    assert result.effects[0].slack_us == pytest.approx(0.04 * STEP_US, rel=0.25)


def test_a_rank_of_a_healthy_job_is_withdrawn() -> None:
    assert decided(recorded("healthy"), "before_forward").verdict == "withdrawn"


@pytest.mark.parametrize(
    ("job", "accused", "place", "verdict"),
    [
        (Job(excess={1: 0.15, 2: 0.15}, noise=replace(QUIET, white=0.002)), 2, Place.BEFORE_FORWARD, "shared"),
        (Job(Shape.NETWORK_BOUND, noise=QUIET), 2, Place.IN_BACKWARD, "not_here"),
        (Job(Shape.LOADER_BOUND, noise=QUIET), 0, Place.BEFORE_FORWARD, "not_here"),
        (Job(Shape.HOST_AHEAD, excess={2: 0.1}, noise=QUIET), 2, Place.BEFORE_FORWARD, "not_here"),
        (Job(Shape.AFTER_SYNC, excess={2: 0.1}, noise=QUIET), 2, Place.BEFORE_OPTIMIZER, "confirmed"),
        (Job(Shape.AFTER_SYNC, excess={2: 0.1}, noise=QUIET), 3, Place.BEFORE_OPTIMIZER, "withdrawn"),
        (Job(Shape.PIPELINE, 4, {1: 0.25}, QUIET), 1, Place.EACH_MICRO_BATCH, "confirmed"),
        (Job(Shape.PIPELINE, 4, {1: 0.25}, QUIET), 2, Place.EACH_MICRO_BATCH, "withdrawn"),
    ],
)
def test_the_table_of_verdicts(job: Job, accused: int, place: Place, verdict: ConfirmVerdict) -> None:
    assert said(job, accused, place=place).verdict == verdict


def test_effects_are_those_of_the_simulator() -> None:
    job = Job(ranks=4, noise=QUIET)
    data = run(job, order(), 600, seed=5)
    alone, others = true_effects(job, 2, 0.04 * STEP_US, 600, seed=5)
    result = decided(data, "before_forward")
    for effect, truth in zip(result.effects[:2], (alone, others), strict=True):
        assert effect.low is not None and effect.high is not None
        assert effect.low - 0.1 < truth < effect.high + 0.1


def test_too_few_steps_leave_it_open_and_say_what_would_have_been_seen() -> None:
    data = recorded("slow")
    few = looks(data)[0] - 1
    result = decided(data.first(few), "before_forward")
    assert result.verdict == "open"
    assert result.would_see_us is not None and result.would_see_us > 0
    nothing = decided(data.first(5), "before_forward")
    assert (nothing.verdict, nothing.p, nothing.steps_needed, nothing.noise_us) == ("open", None, None, None)
    assert all(effect.effect is None for effect in nothing.effects)


@pytest.mark.slow
def test_noise_that_drowns_the_dose_decides_nothing_and_asks_for_more_steps() -> None:
    loud = replace(QUIET, network=0.15)
    result = said(Job(excess={2: 0.1}, noise=loud), 2, dose=0.01)
    assert result.verdict == "open"
    assert result.steps_needed is None or result.steps_needed > 300


def test_what_was_decided_stays_as_steps_come_in() -> None:
    data = recorded("slow")
    whole = decided(data, "before_forward")
    assert whole.steps_covered < 300
    assert decided(data.first(whole.steps_covered), "before_forward") == whole
    assert decided(data.first(whole.steps_covered + 3), "before_forward") == whole


def test_the_first_look_has_twelve_of_either_arm() -> None:
    data = recorded("slow")
    arms = arms_of(data)[: looks(data)[0] - 1]
    assert min(np.count_nonzero(arms == 0), np.count_nonzero(arms == 1)) == FIRST_LOOK


def test_steps_that_do_not_count_change_nothing() -> None:
    data = recorded("slow")
    usual = decided(data, "before_forward")
    ends, dose, own = data.ends_us.copy(), data.dose_us.copy(), data.self_us.copy()
    out = np.zeros(300, dtype=bool)
    out[20] = True  # profiled: a step that took four times as long
    ends[:, 20:] += 3 * STEP_US
    own[4, 30] = np.nan  # a rank's record is missing
    delayed = int(np.flatnonzero(arms_of(data) == 0)[3])
    dose[2, delayed] = 0  # a rank missed its turn
    result = decided(replace(data, ends_us=ends, self_us=own, dose_us=dose, left_out=out), "before_forward")
    assert result.verdict == usual.verdict
    assert result.steps_used < result.steps_covered - 3


def test_clocks_of_hosts_may_differ() -> None:
    data = recorded("slow")
    shifted = data.ends_us + np.arange(8)[:, None] * 1e9
    other = decided(replace(data, ends_us=shifted), "before_forward")
    assert other.verdict == "confirmed"
    assert other.effects[0].effect == pytest.approx(decided(data, "before_forward").effects[0].effect, abs=1e-3)


def test_a_sweep_finds_what_a_fix_is_worth_and_what_it_is_not() -> None:
    job = Job(excess={2: 0.16, 3: 0.08}, noise=QUIET)
    doses = [0.2 * at / 6 for at in range(1, 7)]
    result = swept(run(job, order(*doses, mode=Mode.SWEEP), 400, seed=5), "before_forward")
    truth = worth_us(job, 2, 400, seed=5)
    assert result.worth is not None and result.worth.high_us is not None
    assert result.worth.worth_us == pytest.approx(truth, rel=0.25)
    assert result.worth.low_us < result.worth.worth_us < result.worth.high_us < 0.16 * STEP_US
    assert [round(one.dose_us / STEP_US, 2) for one in result.worth.doses] == [round(dose, 2) for dose in doses]


def test_a_sweep_of_small_doses_says_at_least() -> None:
    data = run(SLOW, order(0.01, 0.02, 0.03, mode=Mode.SWEEP), 400, seed=5)
    worth = swept(data, "before_forward").worth
    assert worth is not None
    assert worth.high_us is None
    assert 0.01 * STEP_US < worth.low_us <= 0.03 * STEP_US * 1.05
    assert swept(data.first(10), "before_forward").worth is None


def test_halves_name_the_slow_rank_and_nobody_in_a_healthy_job() -> None:
    halves = order(mode=Mode.HALVES, accused=())
    slow = which_rank(run(SLOW, halves, 300, seed=5), "before_forward")
    assert (slow.verdict, slow.held_up_by, slow.effects[0].ranks) == ("confirmed", (2,), (2,))
    healthy = which_rank(run(Job(noise=QUIET), halves, 300, seed=5), "before_forward")
    assert healthy.verdict in ("open", "shared")
    ahead = which_rank(run(Job(Shape.HOST_AHEAD, noise=QUIET), halves, 600, seed=5), "before_forward")
    assert ahead.verdict == "not_here"
    assert which_rank(run(SLOW, halves, 12, seed=5), "before_forward").effects[0].effect is None


def test_the_noise_of_a_job_without_delays() -> None:
    noise = noise_us(run(SLOW, None, 200, seed=5), "before_forward")
    # The network's is what no rank's own time explains.
    assert noise == pytest.approx(0.004 * STEP_US, rel=0.5)


@pytest.mark.parametrize("place", ["before_forward", "before_optimizer"])
def test_an_order_that_nobody_followed_proves_nothing(place: DelayPlace) -> None:
    data = recorded("slow")
    result = decided(replace(data, dose_us=np.zeros(data.dose_us.shape)), place)
    assert (result.verdict, result.p) == ("open", None)


@pytest.mark.parametrize(
    "changes",
    [
        {"ranks": (0,)},
        {"self_us": np.zeros((8, 3))},
        {"accused": tuple(range(8))},
        {"accused": (9,)},
        {"left_out": np.zeros(4, dtype=bool)},
        {"planned_us": np.full((8, 300), np.nan)},
    ],
)
def test_what_does_not_fit_together_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        replace(recorded("slow"), **changes)  # type: ignore[arg-type]


def test_without_an_accused_rank_there_is_nothing_to_confirm() -> None:
    for ask in (decided, swept):
        with pytest.raises(ValueError, match="nobody is accused"):
            ask(replace(recorded("slow"), accused=()), "before_forward")
