"""Who has more to compute is accused in steps of which times alone show nothing; figures in percent of the step."""

from dataclasses import replace

import numpy as np
import pytest
from support.excess_builder import COMPUTE, Percents, job, nothing

from kair_engine.localize.excess import JobExcess
from kair_engine.localize.localization import conclude
from kair_engine.localize.signals import Measured
from kair_engine.triage.ranks.more_work import more_work_ns

STEPS, MORE = 8, 1
LARGER, ALIKE = np.array([100.0, 200]), np.array([100.0, 100])


def of_two(
    lost: float = 4.0,
    steps: int = STEPS,
    given: dict[str, Percents] | None = None,
    calls: dict[str, Percents] | None = None,
) -> JobExcess:
    """Two ranks that take turns at being 12 % slower; one of them takes `lost` longer besides. Operators take 5 %."""
    percents = nothing(steps, 2)
    percents[:, COMPUTE, MORE] = lost / 2 + np.where(np.arange(steps) % 2, 6, -6)
    percents[:, COMPUTE, 1 - MORE] = -percents[:, COMPUTE, MORE]
    names = {**(given or {}), **(calls or {})}
    return job(percents, operators=dict.fromkeys(names, percents[:, COMPUTE]), given=given, calls=calls)


def accused(of: JobExcess, given: Percents | None = None) -> list[tuple[tuple[int, ...], int | None]]:
    assert conclude(of).anomalies == ()  # times alone accuse nobody
    found = conclude(of, Measured(work=more_work_ns(of, given)))
    return [(one.positions, one.since) for one in found.anomalies]


@pytest.mark.parametrize(
    "more", [{"given": {"mm": LARGER}}, {"calls": {"mm": np.array([2.0, 4])}}], ids=["larger inputs", "more calls"]
)
def test_a_rank_with_more_work_is_accused_though_noise_hides_it(more: dict[str, dict[str, Percents]]) -> None:
    """The usual is halfway: 150 bytes, or 3 calls. A third more of 5 % on one rank, a third less on the other."""
    of = of_two(**more)
    assert more_work_ns(of)[0] / of.step_time_ns == pytest.approx([-0.05 / 3, 0.05 / 3])
    (anomaly,) = conclude(of, Measured(work=more_work_ns(of))).anomalies
    assert (anomaly.kind, anomaly.positions, anomaly.class_index) == ("persistent", (MORE,), COMPUTE)


@pytest.mark.parametrize(
    "of",
    [
        of_two(given={"mm": ALIKE}),
        of_two(given={"mm": np.array([100.0, 100.5])}),
        of_two(given={"mm": np.array([0.0, 200])}),
        of_two(given={"mm": LARGER, "relu": LARGER[::-1]}),
        of_two(lost=0.5, given={"mm": LARGER}),
    ],
    ids=["as much", "hardly more", "told of one", "another kernel for the same", "no slower"],
)
def test_nobody_is_accused(of: JobExcess) -> None:
    assert accused(of) == []


def test_a_rank_that_gives_its_model_more_is_accused_though_noise_hides_it() -> None:
    """No shapes are recorded: 150 bytes are usual, a third more of passes that take 12 % of the step."""
    of, batches = with_passes(of_two()), np.tile(LARGER, (STEPS, 1))
    assert more_work_ns(of, batches)[0] / of.step_time_ns == pytest.approx([-0.04, 0.04])
    assert accused(of, batches) == [((MORE,), None)]
    assert accused(of, np.tile(ALIKE, (STEPS, 1))) == []
    assert accused(of, np.full((STEPS, 2), np.nan)) == []


def test_what_shapes_tell_goes_before_what_the_model_is_given() -> None:
    of, batches = with_passes(of_two(given={"mm": ALIKE})), np.tile(LARGER, (STEPS, 1))
    assert more_work_ns(of, batches).tolist() == more_work_ns(of).tolist()


def with_passes(of: JobExcess) -> JobExcess:
    """Forward and backward take 6 % of the step each."""
    passes = np.full((2, 2), 0.06 * of.step_time_ns)
    return replace(of, steps=tuple(replace(step, passes_ns=passes) for step in of.steps))


def joined(*parts: JobExcess) -> JobExcess:
    """The steps of one after those of another."""
    steps = [step for part in parts for step in part.steps]
    return replace(parts[0], steps=tuple(replace(step, step=at) for at, step in enumerate(steps)))


def test_many_small_calls_count_for_what_they_take() -> None:
    """Two calls take 3 % of the step on one rank, 22 that are mostly small take 7 % on the other."""
    of = of_two(calls={"mm": np.array([2.0, 22])})
    marginal = (0.05 + 0.02) / 22
    assert more_work_ns(of)[0] / of.step_time_ns == pytest.approx([-10 * marginal, 10 * marginal])
    assert accused(of) == [((MORE,), None)]


def test_who_has_the_larger_batch_in_turn_is_not_accused() -> None:
    one, other = of_two(steps=2, given={"mm": LARGER}), of_two(steps=2, given={"mm": LARGER[::-1]})
    assert accused(joined(one, other, one, other, one, one)) == []


@pytest.mark.slow
@pytest.mark.parametrize(("alike", "larger"), [(8, 12), (16, 14), (1100, 1100)])
def test_work_that_becomes_more_is_told_from_there_on(alike: int, larger: int) -> None:
    before = of_two(lost=0, steps=alike, given={"mm": ALIKE})
    after = of_two(lost=3, steps=larger, given={"mm": LARGER})
    assert accused(joined(before, after)) == [((MORE,), alike)]


def test_the_last_batches_of_an_epoch_accuse_nobody() -> None:
    before, after = of_two(lost=0, steps=16, given={"mm": ALIKE}), of_two(steps=3, given={"mm": LARGER})
    assert accused(joined(before, after)) == []


def test_in_a_job_of_batches_of_any_length_nobody_is_accused() -> None:
    """Of 64 ranks each gives what chance has it, in each of twelve steps anew."""
    chance = np.random.default_rng(5)
    parts = []
    for _ in range(12):
        given = chance.lognormal(0, 0.5, 64) * 100
        percents = nothing(1, 64)
        percents[:, COMPUTE] = 5 * (given / np.median(given) - 1)
        parts.append(job(percents, operators={"mm": percents[:, COMPUTE]}, given={"mm": given}))
    of = joined(*parts)
    assert more_work_ns(of).any()
    assert accused(of) == []


def test_of_many_ranks_the_others_tell_what_is_usual() -> None:
    percents = nothing(4, 6)
    noise = np.random.default_rng(3).normal(0, 8, (4, 6))
    percents[:, COMPUTE] = noise - noise.mean(axis=0) + 3 * np.eye(6)[MORE]
    given = np.full(6, 100.0)
    given[MORE] = 160
    of = job(percents, operators={"mm": percents[:, COMPUTE]}, given={"mm": given})
    assert more_work_ns(of)[0] / of.step_time_ns == pytest.approx(0.6 * 0.05 * np.eye(6)[MORE])
    assert accused(of) == [((MORE,), None)]
