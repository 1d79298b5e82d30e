"""What a log of steps says: changes with their onset, periods, spikes, ranks, and what to record next."""

from pathlib import Path

import numpy as np
import pytest

from kair_engine.arrays import Floats
from kair_engine.results.steplog import LogOfSteps
from kair_engine.steplog.analysis import judge
from kair_engine.steplog.next_recording import steps_needed
from kair_engine.steplog.reading import pattern_of, read_steps


def _seconds(count: int = 600, noise: float = 0.02) -> Floats:
    return np.asarray(np.exp(noise * np.random.default_rng(7).standard_normal(count)))


def _megatron(seconds: Floats, *, every: int = 1, ranks: int = 64) -> str:
    return f"using world size: {ranks}, data-parallel size: 1\n" + "".join(
        f" iteration {at:8d}/  5000 | elapsed time per iteration (ms): {1e3 * seconds[at - every : at].mean():.1f} |\n"
        for at in range(every, len(seconds) + 1, every)
    )


def _judged(folder: Path, text: str, pattern: str | None = None) -> LogOfSteps:
    log = folder / "train.log"
    log.write_text(text)
    lines = read_steps([log], None if pattern is None else pattern_of(pattern))
    assert lines is not None
    return judge(lines)


def test_says_since_when_steps_are_slower_and_what_that_costs(tmp_path: Path) -> None:
    seconds = _seconds()
    seconds[:6] *= 4
    seconds[300:] *= 1.1
    found = _judged(tmp_path, _megatron(seconds))
    (change,) = found.changes
    assert change.kind == "slower"
    assert change.until is None
    assert abs(change.since - 301) <= 1
    assert change.since_range[0] <= 301 <= change.since_range[1]
    assert change.extra_us_per_step == pytest.approx(100_000, rel=0.05)
    assert change.gpu_hours == pytest.approx(300 * 0.1 * 64 / 3600, rel=0.05)
    assert change.p_value < 1e-6
    assert found.attempts[0].warm_up_steps == 6
    assert found.next.reason == "standing"
    assert found.next.steps == steps_needed(found.attempts[0].noise, change.share, 64)


def test_says_when_it_was_over(tmp_path: Path) -> None:
    seconds = _seconds()
    seconds[200:400] *= 1.2
    found = _judged(tmp_path, _megatron(seconds))
    (change,) = found.changes
    assert (abs(change.since - 201) <= 1, abs((change.until or 0) - 400) <= 1) == (True, True)
    assert found.next.reason == "ended"
    assert found.next.trigger_us == pytest.approx(1.1e6, rel=0.02)


def test_finds_periods_and_how_to_record_them(tmp_path: Path) -> None:
    seconds = _seconds(800)
    seconds[31::32] *= 1.3
    seconds[99::100] += 5
    found = _judged(tmp_path, _megatron(seconds))
    assert {(one.every, one.first) for one in found.periods} == {(32, 32), (100, 100)}
    assert found.changes == ()
    by_length = {one.every: one for one in found.periods}
    assert by_length[32].extra_us == pytest.approx(300_000, rel=0.1)
    assert by_length[100].extra_us == pytest.approx(5e6, rel=0.1)
    assert found.next.reason == "period"
    assert found.next.every == 100
    assert "wait=97, warmup=1, active=2" in found.next.commands[0]


def test_means_of_several_steps_say_how_far_the_onset_is_known(tmp_path: Path) -> None:
    seconds = _seconds(2000)
    seconds[1004:] *= 1.1
    found = _judged(tmp_path, _megatron(seconds, every=10))
    (change,) = found.changes
    assert found.attempts[0].steps_per_line == 10
    assert change.since_range[0] <= 1005 <= change.since_range[1]
    assert change.steps == pytest.approx(996, abs=10)


def test_drift_is_no_moment(tmp_path: Path) -> None:
    seconds = _seconds(1500, 0.005) * np.linspace(1, 1.15, 1500)
    found = _judged(tmp_path, _megatron(seconds))
    assert {one.kind for one in found.changes} == {"drift"}


def test_single_spikes_are_listed(tmp_path: Path) -> None:
    seconds = _seconds()
    seconds[[150, 420]] *= 5
    found = _judged(tmp_path, _megatron(seconds))
    assert [one.step for one in found.spikes] == [151, 421] or [one.step for one in found.spikes] == [421, 151]
    assert found.changes == found.periods == ()


def test_a_short_log_by_the_order_of_its_times(tmp_path: Path) -> None:
    seconds = _seconds(15)
    seconds[:2] *= 5
    seconds[8:] *= 1.5
    found = _judged(tmp_path, _megatron(seconds))
    (change,) = found.changes
    assert change.independent_only
    assert change.since == 9


def test_a_short_log_whose_first_iterations_are_far_slower_than_its_change(tmp_path: Path) -> None:
    seconds = _seconds(15, 0.002)
    seconds[:2] *= (16.0, 1.3)
    seconds[2] *= 0.93
    seconds[7:] *= (1.24, *[1.06] * 7)
    found = _judged(tmp_path, _megatron(seconds))
    (change,) = found.changes
    assert found.attempts[0].warm_up_steps == 2
    assert change.kind == "slower"
    assert abs(change.since - 8) <= 1


def test_a_short_log_says_no_smaller_change_than_its_test_looks_for(tmp_path: Path) -> None:
    seconds = _seconds(15, 0.001)
    seconds[:2] *= (16.0, 1.3)
    found = _judged(tmp_path, _megatron(seconds))
    assert found.changes == ()
    assert found.smallest_share == pytest.approx(0.05)


def test_nothing_found_is_said_with_what_would_have_been(tmp_path: Path) -> None:
    found = _judged(tmp_path, _megatron(_seconds()))
    assert (found.changes, found.periods, found.ranks) == ((), (), ())
    assert 0.01 <= found.smallest_share < 0.02
    assert found.next.reason == "nothing"
    assert found.next.steps >= 10


OWN = r"rank (?P<rank>\d+) step (?P<step>\d+) forward (?P<ms>[\d.]+)"


def _of_ranks(own: Floats) -> str:
    return "".join(
        f"rank {rank} step {step} forward {1e3 * own[rank, step]:.3f}\n"
        for step in range(own.shape[1])
        for rank in range(own.shape[0])
    )


@pytest.mark.parametrize("ranks", [4, 8, 16])
def test_a_rank_that_became_slower_in_its_own_phase_is_named(ranks: int, tmp_path: Path) -> None:
    chance = np.random.default_rng(ranks)
    own = np.exp(0.03 * chance.standard_normal((ranks, 300))) * np.exp(0.003 * chance.standard_normal((ranks, 1)))
    own[2, 150:] *= 1.3
    own[:, 150:] *= 1.05  # the job's steps
    found = _judged(tmp_path, _of_ranks(own), OWN)
    assert [one.rank for one in found.ranks] == [2]
    assert found.ranks[0].contrast == "past"
    assert found.ranks[0].since is not None


@pytest.mark.slow
def test_total_times_and_healthy_ranks_accuse_nobody(tmp_path: Path) -> None:
    for seed in range(20):
        chance = np.random.default_rng(seed)
        own = np.exp(0.03 * chance.standard_normal((8, 120))) * np.exp(0.01 * chance.standard_normal((8, 1)))
        assert _judged(tmp_path, _of_ranks(own), OWN).ranks == ()
        total = np.repeat(own.max(axis=0)[None], 8, axis=0) + 1e-5 * chance.standard_normal((8, 120))
        total[:, 60:] *= 1.2
        assert _judged(tmp_path, _of_ranks(total), OWN).ranks == ()


def test_the_phase_that_grew_is_said(tmp_path: Path) -> None:
    seconds = _seconds(300)
    lines = [
        f"step:{at} - timing_s/gen:{0.5 + (at > 150) * 0.4:.3f} - timing_s/step:{one + (at > 150) * 0.4:.4f}\n"
        for at, one in enumerate(seconds.tolist(), 1)
    ]
    found = _judged(tmp_path, "".join(lines))
    assert found.changes[0].phase == "gen"
