"""What ordinary noise would cost on more ranks: expected maxima by hand, and what must not grow with the ranks."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.captured import rows_for
from support.cli_samples import assert_valid, kair, store_variables
from support.live_status import STATUS, write_status
from support.places import SAMPLES

from kair_capture.coordinator.step_log import write_part
from kair_engine.arrays import Floats, Ints
from kair_engine.errors import UsageError
from kair_engine.forecast.analysis import Study, forecast
from kair_engine.forecast.growth import Noise
from kair_engine.forecast.meetings import Meetings
from kair_engine.forecast.parts_of_noise import taken_apart
from kair_engine.forecast.tails import fitted
from kair_engine.recording.opening import open_trace
from kair_engine.results.forecast import NoiseForecast, NoiseKind
from kair_engine.trace.model import Job, StepTimes, Trace
from kair_engine.triage.analysis import triage
from kair_engine.triage.history.rows import StepHistory, step_history

STEP_NS = 100e6
LEVELS = (np.arange(4000) + 0.5) / 4000


def exponential(scale: float = 1.0) -> Floats:
    return -scale * np.log(1 - LEVELS)


def harmonic(n: int) -> float:
    return sum(1 / one for one in range(1, n + 1))


def meetings(late_ns: Floats, host: Ints | None = None, parts: dict[NoiseKind, Floats] | None = None) -> Meetings:
    """One a step, of (steps × ranks)."""
    return Meetings(
        np.arange(late_ns.shape[1]), late_ns[:, None, :], STEP_NS, parts or {"compute": late_ns}, host, "step"
    )


def on(of: Meetings, ranks: int, per_host: float = 4) -> NoiseForecast:
    return Study(of, taken_apart(of), per_host, 40, np.random.default_rng(1)).on(ranks)


def part(of: NoiseForecast, kind: NoiseKind) -> float:
    return sum(one.lost_share for one in of.causes if one.kind == kind)


@pytest.mark.slow
def test_without_the_slow_rank_a_step_is_as_long_as_replayed_without_its_fault(tmp_path: Path) -> None:
    """Of a job whose host computes while it communicates."""
    trace = open_trace(SAMPLES / "slow_operator", cache=tmp_path)
    replayed = triage(trace).findings[0]
    shorter = forecast(trace).step_time_us
    assert shorter == pytest.approx(95_000 - replayed.time_lost_us_per_step, rel=0.05)


@pytest.mark.parametrize("ranks", [1, 2, 4, 64, 1024])
def test_the_last_of_n_exponential_times_is_a_harmonic_number_late(ranks: int) -> None:
    noise = Noise(fitted([exponential()])[0])
    assert noise.waiting(np.zeros(ranks), 8) == pytest.approx(harmonic(ranks) - 1, rel=0.02, abs=1e-6)


def test_a_power_tail_is_told_from_an_exponential_one() -> None:
    # P(X > t) = (1 + t / 4)^-4 has the shape 1 / 4.
    power = 4 * ((1 - LEVELS) ** -0.25 - 1)
    assert fitted([power])[0].shape == pytest.approx(0.25, abs=0.05)
    assert fitted([exponential()])[0].shape == pytest.approx(0.0, abs=0.02)


def test_without_any_noise_the_latest_rank_is_as_late_as_it_always_is() -> None:
    noise = Noise(fitted([np.zeros(100)])[0])
    assert noise.waiting(np.array([0.0, 0.0, 0.0, 8.0]), 8) == pytest.approx(6.0, abs=0.1)


def test_what_a_host_shares_grows_with_hosts_alone() -> None:
    shared = Noise(fitted([np.zeros(100)])[0], fitted([exponential()])[0])
    assert shared.waiting(np.zeros(8), 8) == pytest.approx(0.0, abs=0.05)
    assert shared.waiting(np.zeros(64), 8) == pytest.approx(harmonic(8) - 1, rel=0.05)
    assert shared.waiting(np.zeros(64), 1) == pytest.approx(harmonic(64) - 1, rel=0.05)


def test_what_all_ranks_share_makes_nobody_wait() -> None:
    random = np.random.default_rng(0)
    alone = random.exponential(1e6, (200, 4))
    both = alone + random.exponential(20e6, (200, 1))
    assert on(meetings(both), 64).lost_share == pytest.approx(on(meetings(alone), 64).lost_share, rel=1e-6)


def test_independent_noise_is_forecast_as_it_was_drawn() -> None:
    of = meetings(np.random.default_rng(2).exponential(1e6, (300, 4)))
    found = on(of, 64)
    # STEP_NS has what 4 ranks wait in it already.
    waited = (harmonic(64) - 1) * 1e6
    expected = waited / (STEP_NS - (harmonic(4) - 1) * 1e6 + waited)
    assert found.least_share is not None and found.most_share is not None
    assert found.least_share < expected < found.most_share
    assert found.lost_share == pytest.approx(expected, rel=0.15)
    assert part(found, "lasting") < 0.1 * expected


@pytest.mark.slow
def test_what_differs_for_good_is_no_noise_of_steps() -> None:
    random = np.random.default_rng(3)
    of = meetings(np.array([0.0, 1e6, 2e6, 3e6]) + random.normal(0, 1e4, (100, 4)))
    found = on(of, 8)
    assert found.lost_share is not None
    assert part(found, "lasting") > 0.9 * found.lost_share


def test_noise_of_hosts_is_told_where_several_were_recorded() -> None:
    random = np.random.default_rng(4)
    host = np.repeat(np.arange(4), 4)
    late = random.normal(0, 1e5, (200, 16)) + np.repeat(random.exponential(3e6, (200, 4)), 4, axis=1)
    found = on(meetings(late, host), 64)
    assert found.lost_share is not None
    assert part(found, "shared_by_host") > 0.7 * found.lost_share
    assert found.lost_share * STEP_NS < 0.9 * (harmonic(64) - 1) * 3e6
    alone = on(meetings(random.exponential(3e6, (200, 16)), host), 64)
    assert part(alone, "shared_by_host") == 0.0


def test_ranks_of_unknown_hosts_that_are_late_together_are_told() -> None:
    random = np.random.default_rng(9)
    late = np.repeat(random.normal(0, 3e6, (200, 3)), 2, axis=1) + random.normal(0, 3e5, (200, 6))
    assert taken_apart(meetings(late)).recorded_together == 2
    assert taken_apart(meetings(random.normal(0, 3e6, (200, 6)))).recorded_together == 1


def test_the_interval_has_room_for_delays_that_few_steps_did_not_show() -> None:
    late = np.random.default_rng(10).exponential(1e6, (400, 4))
    few, many = on(meetings(late[:20]), 64), on(meetings(late), 64)
    assert few.least_share is not None and few.most_share is not None and few.lost_share is not None
    assert many.least_share is not None and many.most_share is not None and many.lost_share is not None
    assert few.most_share - few.lost_share > 2 * (many.most_share - many.lost_share)


def test_one_rank_waits_for_nobody() -> None:
    alone = on(meetings(np.random.default_rng(11).exponential(1e6, (50, 4))), 1)
    assert (alone.lost_share, alone.most_share) == (0.0, 0.0)


def test_the_cause_of_rare_pauses_is_named() -> None:
    random = np.random.default_rng(5)
    compute, garbage = random.normal(50e6, 1e5, (200, 4)), (random.random((200, 4)) < 0.03) * 8e6
    found = on(meetings(compute + garbage, parts={"compute": compute, "garbage_collection": garbage}), 64)
    assert found.lost_share is not None
    assert part(found, "garbage_collection") > 0.8 * found.lost_share
    assert sum(one.lost_share for one in found.causes) == pytest.approx(found.lost_share)


def test_far_more_ranks_than_were_recorded_have_no_forecast() -> None:
    random = np.random.default_rng(6)
    assert on(meetings(random.exponential(1e6, (200, 4))), 401).why_none == "too_far"
    assert on(meetings(random.exponential(1e6, (8, 10))), 1000).why_none == "few_values"


def test_ranks_that_are_left_out_make_nobody_wait() -> None:
    late = np.random.default_rng(7).exponential(1e6, (50, 5))
    late[:, 4] += 30e6
    fewer = meetings(late).without(np.arange(5) == 4)
    assert fewer.waited_ns == pytest.approx(meetings(late[:, :4]).waited_ns)
    assert fewer.step_ns == pytest.approx(STEP_NS - (late[:, 4] - late[:, :4].max(axis=1)).mean())


UNSAMPLED = Trace(
    Job(
        name="job",
        source="job",
        format="steps",
        world_size=4,
        ranks=(0, 1, 2, 3),
        hosts={},
        layout=None,
        device=None,
        has_device=False,
        absolute_time=True,
        steps=(),
        step_times=StepTimes((), (), (), (), ()),
        operations=0,
        warnings=(),
    ),
    (),
    (),
)


def history_of_job(ranks: int, steps: int) -> StepHistory:
    random = np.random.default_rng(8)
    own = 50e3 + random.exponential(1e3, (steps, ranks))
    step = np.broadcast_to(own.max(axis=1, keepdims=True), own.shape)
    columns = {"step": step.ravel(), "self": own.ravel(), "forward": own.ravel(), "waited": (step - own).ravel()}
    return step_history(np.tile(np.arange(ranks), steps), np.repeat(np.arange(steps), ranks), columns)


def test_a_history_of_steps_is_enough() -> None:
    found = forecast(UNSAMPLED, history_of_job(4, 400), ranks=(64,), draws=40)
    assert found.synchronised_by == "history"
    waited = (harmonic(64) - 1) * 1e3
    assert found.forecasts[0].lost_share == pytest.approx(waited / (51e3 + waited), rel=0.15)


@pytest.mark.slow
def test_one_rank_or_few_steps_have_no_forecast() -> None:
    history = history_of_job(3, 100)
    with pytest.raises(UsageError, match="takes 2 ranks or more: there are 3, 2 of which are left out"):
        forecast(UNSAMPLED, history, left_out=(0, 1))
    with pytest.raises(UsageError, match="rank 7 is not among"):
        forecast(UNSAMPLED, history, left_out=(7,))
    with pytest.raises(UsageError, match="takes 2 ranks"):
        forecast(UNSAMPLED, replace(history, alerts={0: 5, 1: 9}))


@pytest.mark.slow
def test_the_command_says_what_is_lost_and_turns_down_what_tells_nothing() -> None:
    found = kair("forecast", str(SAMPLES / "healthy"), "--ranks", "64", "--draws", "20")
    assert found.status == 0
    assert found.out.startswith("at 64 ranks this job would lose ")
    assert re.search(r"(?m)^ranks +lost +interval +predicted step +by$", found.out)
    assert re.search(r"(?m)^measured step: [\d.]+ ms, mean of 12 steps \(4-15\)", found.out)
    few = kair("forecast", str(SAMPLES / "healthy"), "--step", "4-6")
    assert (few.status, few.out) == (2, "")
    assert "a forecast takes 8 steps or more, recorded of all ranks: there are 3" in few.err
    wrong = kair("forecast", str(SAMPLES / "healthy"), "--ranks", "many")
    assert (wrong.status, wrong.out) == (2, "")


def test_a_watched_job_is_forecast_before_anything_of_it_is_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 2 takes half as long again in all steps."""
    store_variables(monkeypatch, tmp_path)
    own = 20_000 + np.random.default_rng(1).exponential(500, (4, 300)).astype(int)
    own[2] += 10_000
    rows = []
    for rank in range(4):
        of = rows_for(rank, range(300), step_us=25_000, begin_us=10**15)
        of["self_us"] = of["forward_us"] = of["cpu_us"] = own[rank]
        of["step_us"] = own.max(axis=0) + 5000
        of["waited_us"] = of["step_us"] - of["self_us"]
        rows.append(of)
    write_status(tmp_path / "store", replace(STATUS, alerts=()))
    (tmp_path / "store" / "job123" / "steps").mkdir()
    write_part(tmp_path / "store" / "job123" / "steps" / "part-00000001.parquet", np.concatenate(rows))
    found = json.loads(kair("forecast", "job123", "--ranks", "64", "--draws", "20", "--json").out)
    assert_valid(found, "forecast")
    assert (found["data"]["left_out"], found["data"]["recorded_ranks"]) == ([2], 3)
    # Of 64 ranks the last is 3.74 times 0.5 ms late, in a step of 25 ms beside.
    assert found["data"]["forecasts"][0]["lost_share"] == pytest.approx(1.87 / (25.5 + 1.87), rel=0.3)


@pytest.mark.slow
def test_a_slow_rank_is_left_out_and_named() -> None:
    found = kair("forecast", str(SAMPLES / "slow_input"), "--ranks", "8", "--draws", "20")
    assert found.status == 0
    assert "is left out: the cost of a slow rank is not ordinary noise" in found.out
    assert re.search(r"(?m)^measured step without what ranks waited for rank \d: ", found.out)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", ["000000001999999999999", "000000001" + "9" * 5000, "0", "8,,64"])
def test_numbers_of_ranks_that_nobody_has_are_refused(ranks: str) -> None:
    wrong = kair("forecast", str(SAMPLES / "healthy"), "--ranks", ranks)
    assert wrong.status == 2 and "no list of numbers of ranks" in wrong.err
