"""What a recording can show: the smallest faults that are found, and what limits them."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.excess_builder import COMPUTE, HOST, INPUT, STEP_NS, Percents, job, quiet

from kair_engine.errors import UsageError
from kair_engine.localize.excess import JobExcess
from kair_engine.localize.excess_table import table_of
from kair_engine.localize.links import Link, OwnTime
from kair_engine.localize.localization import conclude
from kair_engine.results.sensitivity import DetectableFault, InjectedFault, SensitivityResult
from kair_engine.sensitivity import analysis as detection
from kair_engine.sensitivity.analysis import FAULTS, FEWEST_DRAWS, sensitivity_of, sizes, smallest_found
from kair_engine.sensitivity.injection import (
    Draw,
    draw_steps,
    finds,
    finds_slow_link,
    healthy_links,
    in_blocks,
    rank_faults,
    source_of,
    take_apart,
    with_slow_rank,
    with_stalls,
    without_faults,
)
from kair_tui.render.sensitivity import reason_in_words

ONE = (1,)
"""As long as the recording: without longer ones nothing is said of what limits it."""


def asked(
    made: JobExcess,
    *of: InjectedFault,
    draws: int = FEWEST_DRAWS,
    probability: float = 0.95,
    seed: int = 0,
    multiples: tuple[int, ...] = (1, 2),
) -> SensitivityResult:
    """Of recordings up to twice as long: what ten times the steps show takes most of the time, and few tests ask."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(detection, "MULTIPLES", multiples)
        if multiples == ONE:
            patch.setattr(detection, "limit_of", lambda *_: "steps")
            patch.setattr(detection, "reason_of", lambda *_, **__: None)
        return sensitivity_of(made, draws=draws, probability=probability, seed=seed, chosen=of or FAULTS)


@cache
def of_a_healthy_job() -> SensitivityResult:
    return asked(job(quiet(12, 8)))


def of(result: SensitivityResult, kind: InjectedFault) -> DetectableFault:
    return next(fault for fault in result.faults if fault.fault == kind)


def share(result: SensitivityResult, kind: InjectedFault) -> float:
    found = of(result, kind).smallest_share_of_step
    assert found is not None
    return found


# The search.


@given(st.lists(st.integers(0, 60), min_size=1, max_size=40), st.sampled_from([0.5, 0.9, 0.95]))
def test_the_smallest_size_is_the_one_that_is_enough_in_that_share_of_the_recordings(
    needed: list[int], probability: float
) -> None:
    draws = range(len(needed))
    found, hardest_first = smallest_found(range(50), lambda draw, size: size >= needed[draw], draws, probability)
    middle = sorted(needed)[math.ceil(probability * len(needed)) - 1]
    assert found == (middle if middle < 50 else None)
    assert sorted(hardest_first) == list(draws)


def test_candidates_are_3_percent_apart_and_reach_the_end() -> None:
    tried = sizes(1, 10)
    assert tried[0] == 1
    assert tried[-2] < 10 <= tried[-1]
    assert tried[1] == pytest.approx(1.03)


# Recordings that could have been made.


def test_what_lasts_stays_and_what_changes_is_drawn_again() -> None:
    values = np.array([[0.0, 10.0, 20.0], [2.0, 12.0, 22.0]])
    parts = take_apart(values, np.zeros(3, int), np.ones(3, bool), np.random.default_rng(0), trim=0.0)
    again = parts.drawn(Draw(np.array([1, 1, 0]), np.arange(3)), 2)
    assert np.diff(again, axis=1) == pytest.approx(10)
    # Two steps' deviations from their own mean are √2 too small.
    assert again[:, 1] == pytest.approx([11 + math.sqrt(2)] * 2)


def test_noise_of_a_short_recording_does_not_last() -> None:
    noise = np.random.default_rng(1).normal(0, 1, (10, 200))
    parts = take_apart(noise, np.zeros(200, int), np.ones(200, bool), np.random.default_rng(0), trim=0.0)
    assert noise.mean(axis=0).std() > 0.28
    assert parts.lasting.std() < 0.15


def in_spells(steps: int, ranks: int, seed: int, rho: float = 0.8) -> Percents:
    """Compute that varies from step to step, each like the one before it, by 1 % of the step in all."""
    random = np.random.default_rng(seed)
    percents = quiet(steps, ranks, seed, percent=0.05)
    now = random.normal(0, 1, ranks)
    for step in range(steps):
        now = rho * now + math.sqrt(1 - rho**2) * random.normal(0, 1, ranks)
        percents[step, COMPUTE] += now
    return percents


def lag_one(values: Percents) -> float:
    """The mean over ranks of the correlation of (steps × ranks) from one step to the next."""
    return float(np.mean([np.corrcoef(of_rank[1:], of_rank[:-1])[0, 1] for of_rank in values.T]))


def test_slowness_that_comes_in_spells_does_so_in_what_is_drawn() -> None:
    table = table_of(job(in_spells(60, 8, seed=1)))
    everyone, random = np.ones(8, bool), np.random.default_rng(0)
    source = source_of(table, everyone, random)
    # Autocorrelation beyond 0.6 is held for 0.6: (1 + 0.6) / (1 - 0.6).
    assert source.block == 4
    draw = draw_steps(60, 600, table.role, everyone, block=source.block, random=random)
    recorded, drawn = lag_one(table.by_step_ns[:, COMPUTE]), lag_one(source.recording(draw, 600).by_step_ns[:, COMPUTE])
    assert recorded > 0.6
    # Three of four steps follow the one that they followed.
    assert drawn == pytest.approx(0.75 * recorded, abs=0.12)


def test_steps_of_a_block_follow_each_other_around_the_end() -> None:
    drawn = in_blocks(10, 11, 4, np.random.default_rng(3))
    assert len(drawn) == 11
    for first in (0, 4, 8):
        of_block = drawn[first : first + 4]
        assert of_block.tolist() == [(of_block[0] + at) % 10 for at in range(len(of_block))]


@pytest.mark.slow
def test_spells_hide_more_than_noise_that_changes_with_every_step() -> None:
    """In the mean of three recordings: each is one draw."""

    def mean_share(recordings: list[Percents]) -> float:
        of_each = (asked(job(one), "slow_device", draws=60, multiples=ONE) for one in recordings)
        return float(np.mean([share(one, "slow_device") for one in of_each]))

    spells = [in_spells(24, 8, seed) for seed in range(3)]
    mixed = [one[np.random.default_rng(0).permutation(24)] for one in spells]
    assert mean_share(spells) > 1.1 * mean_share(mixed)


def test_a_rank_that_was_at_fault_differs_as_one_of_its_peers_does() -> None:
    family, known = np.array([0, 0, 0, 1]), np.array([True, True, False, False])
    draws = [draw_steps(5, 5, family, known, block=1, random=np.random.default_rng(seed)) for seed in range(20)]
    like = {tuple(draw.like) for draw in draws}
    assert like == {(0, 1, 0, 3), (0, 1, 1, 3)}


# Taking out what stands out.


def test_what_stands_out_is_taken_out_first() -> None:
    percents = quiet(20, 8)
    percents[:, COMPUTE, 3] += 9
    percents[[2, 7, 9, 12], HOST, 5] += 30
    made = job(percents)
    table = without_faults(table_of(made), conclude(made).anomalies)
    assert conclude(made).anomalies
    assert np.abs(table.by_step_ns[:, COMPUTE, 3].mean()) < 0.001 * STEP_NS
    assert table.by_step_ns[:, HOST, 5].max() < 0.01 * STEP_NS
    healthy = [at for at in range(8) if at not in (3, 5)]
    assert np.array_equal(table.by_step_ns[:, :, healthy], table_of(made).by_step_ns[:, :, healthy])


# A fault is found where the verdict would find it.


def longer(made: JobExcess, more_ns: float) -> JobExcess:
    return replace(made, steps=tuple(replace(one, step_time_ns=one.step_time_ns + more_ns) for one in made.steps))


def blames(made: JobExcess, rank: int, row: int) -> bool:
    anomalies = conclude(made).anomalies
    alone = any(one.positions == (rank,) and one.class_index == row for one in anomalies)
    return alone and not any(
        rank in one.positions and len(one.positions) > 1 and one.class_index == row for one in anomalies
    )


def uneven(seed: int, ranks: int, steps: int = 12) -> tuple[Percents, Percents]:
    """A healthy job whose ranks differ for good, and an operator's part of that."""
    random = np.random.default_rng(seed)
    percents = quiet(steps, ranks, seed, percent=0.5)
    percents[:, COMPUTE] += random.normal(0, 0.4, ranks)
    return percents, percents[:, COMPUTE] / 8


def about_the_median(values: Percents, healthy: Percents) -> Percents:
    """Excesses lie about the median of the role, which a slow rank moves: of two ranks halfway towards it."""
    return values - (np.median(values, axis=-1) - np.median(healthy, axis=-1))[..., None]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4, 8, 24])
@pytest.mark.parametrize("size", [0.0, 0.01, 0.02, 0.03, 0.045, 0.07, 0.12, 0.5])
def test_an_injected_fault_is_found_exactly_when_the_verdict_finds_it(ranks: int, size: float) -> None:
    victim = 1
    for seed in range(2):
        percents, operator = uneven(seed, ranks)
        healthy = table_of(job(percents, operators={"gemm": operator}))
        # 80 % of the step is compute, 5 % of it one operator.
        costs = ((COMPUTE, 80, 5), (COMPUTE, 5, 5), (INPUT, 100, 0), (HOST, 100, 0))
        for fault, (row, cost, of_operator) in zip(rank_faults(healthy), costs, strict=True):
            in_ns = STEP_NS if fault.own_ns is None or row == INPUT else 1
            faulty, slower = percents.copy(), operator.copy()
            faulty[:, row, victim] += size * cost
            slower[:, victim] += size * of_operator
            faulty, slower = about_the_median(faulty, percents), about_the_median(slower, operator)
            real = longer(job(faulty, operators={"gemm": slower}), size * cost / 100 * STEP_NS)
            injected = with_slow_rank(healthy, fault, victim, size * in_ns)
            assert finds(injected, victim, row) == blames(real, victim, row), (fault.fault, seed)


@pytest.mark.parametrize("stalled", range(0, 13, 2))
def test_stalls_are_found_exactly_when_the_verdict_finds_them(stalled: int) -> None:
    percents, hit = quiet(12, 4), np.arange(stalled)
    faulty = percents.copy()
    faulty[hit, HOST, 2] += 25
    made = job(about_the_median(faulty, percents))
    steps = tuple(
        replace(one, step_time_ns=one.step_time_ns * (1.25 if at < stalled else 1)) for at, one in enumerate(made.steps)
    )
    assert finds(with_stalls(table_of(job(percents)), 2, hit), 2, HOST) == blames(replace(made, steps=steps), 2, HOST)


def linked(ratios: dict[int, float], steps: int = 6) -> JobExcess:
    """Six groups of two; each spends about 10 % of the step in transfers."""
    random = np.random.default_rng(3)
    made = job(quiet(steps, 12))

    def of_step() -> dict[Link, OwnTime]:
        return {
            Link(f"dp{at}", (2 * at, 2 * at + 1)): OwnTime(
                random.normal(1, 0.02) * ratios.get(at, 1) * 0.1 * STEP_NS, 0.1 * STEP_NS, 5, "allreduce", (2, 0, 0)
            )
            for at in range(6)
        }

    return replace(made, steps=tuple(replace(one, links=of_step()) for one in made.steps))


@pytest.mark.parametrize("size", [0.05, 0.1, 0.2, 0.3, 0.6])
def test_a_slow_link_is_found_exactly_when_the_verdict_names_it(size: float) -> None:
    links = healthy_links(linked({}), (), np.random.default_rng(0))
    assert links is not None
    as_recorded = Draw(np.arange(6), np.arange(6))
    named = [slow.link.name for slow in conclude(linked({4: 1 + size})).links]
    assert finds_slow_link(links, as_recorded, 6, 4, size) == (named == ["dp4"])


# The answer.


@pytest.mark.slow
def test_faults_of_the_answer_are_found_in_other_recordings_of_the_job() -> None:
    random = np.random.default_rng(5)
    lasting = random.normal(0, 0.5, 8)

    def recorded(seed: int) -> Percents:
        percents = quiet(20, 8, seed, percent=1.0)
        percents[:, COMPUTE] += lasting
        return percents

    smallest = 100 * share(asked(job(recorded(0)), "slow_device", draws=100, multiples=ONE), "slow_device")
    found = {}
    for factor in (0.6, 1.0, 1.3):
        hits = 0
        for seed in range(1, 25):
            percents, victim = recorded(seed), seed % 8
            percents[:, COMPUTE, victim] += factor * smallest
            hits += blames(longer(job(percents), factor * smallest / 100 * STEP_NS), victim, COMPUTE)
        found[factor] = hits / 24
    assert found[0.6] < 0.7
    assert found[1.0] > 0.85
    assert found[1.3] > 0.95


@pytest.mark.slow
def test_noise_hides_faults_and_steps_uncover_them() -> None:
    calm = asked(job(quiet(12, 8, percent=0.2)), "slow_device", multiples=ONE)
    noisy = asked(job(quiet(12, 8, percent=6.0)), "slow_device", multiples=(1, 10))
    assert share(calm, "slow_device") < share(noisy, "slow_device")
    (longest,) = of(noisy, "slow_device").longer
    assert longest.steps == 120
    assert longest.smallest_share_of_step is not None
    assert longest.smallest_share_of_step < 0.7 * share(noisy, "slow_device")
    assert of(noisy, "slow_device").limited_by == "steps"
    assert "record" in reason_in_words(of(noisy, "slow_device"))


@pytest.mark.slow
def test_where_ranks_differ_for_good_more_steps_do_not_help() -> None:
    percents = quiet(20, 24, percent=0.1)
    percents[:, COMPUTE] += np.random.default_rng(2).normal(0, 2, 24)
    device = of(asked(job(percents), "slow_device", multiples=(1, 10)), "slow_device")
    assert device.limited_by == "ranks"
    assert device.spread_us_per_step == pytest.approx(2000, rel=0.3)
    assert "differ for good" in reason_in_words(device)


@pytest.mark.slow
def test_what_is_found_as_soon_as_it_is_reported_says_so() -> None:
    result = asked(job(quiet(20, 24, percent=0.05)), "slow_input")
    assert of(result, "slow_input").limited_by == "smallest_share"
    assert share(result, "slow_input") == pytest.approx(0.01, rel=0.25)
    assert "1 % of the step" in reason_in_words(of(result, "slow_input"))


@pytest.mark.slow
def test_figures_of_one_answer_agree() -> None:
    device = of(of_a_healthy_job(), "slow_device")
    cost, own, slowdown = device.smallest_us_per_step, device.own_us_per_step, device.smallest_own_slowdown
    assert cost is not None
    assert own == pytest.approx(80_000)
    assert slowdown == pytest.approx(1 + cost / own)
    assert device.smallest_share_of_step == pytest.approx(cost / 100_000)


@pytest.mark.slow
def test_a_job_with_a_straggler_is_asked_about_what_is_left() -> None:
    percents = quiet(20, 8, percent=0.5)
    healthy = asked(job(percents), "slow_device", multiples=ONE)
    percents[:, COMPUTE, 3] += 15
    result = asked(job(percents), "slow_device", multiples=ONE)
    assert result.corrected_ranks == (3,)
    assert share(result, "slow_device") == pytest.approx(share(healthy, "slow_device"), rel=0.4)


@pytest.mark.parametrize(("steps", "ranks", "said"), [(20, 1, "one rank only"), (1, 8, "1 step:"), (2, 8, "2 steps:")])
def test_too_little_is_said_and_nothing_else(steps: int, ranks: int, said: str) -> None:
    result = asked(job(quiet(steps, ranks)))
    assert [fault.fault for fault in result.faults] == list(FAULTS)
    assert all(
        reason_in_words(fault).startswith(said) and fault.smallest_us_per_step is None for fault in result.faults
    )


def test_ranks_without_peers_have_none_to_be_compared_with() -> None:
    assert "alone in their role" in reason_in_words(
        of(asked(job(quiet(12, 4), role=[0, 1, 2, 3]), "slow_device"), "slow_device")
    )


@pytest.mark.slow
def test_what_was_not_recorded_cannot_be_slow() -> None:
    result = of_a_healthy_job()
    assert "no compute operator" in reason_in_words(of(result, "slow_operator"))
    assert "siblings" in reason_in_words(of(result, "slow_link"))
    assert of(asked(linked({}), "slow_link"), "slow_link").smallest_own_slowdown == pytest.approx(1.25, abs=0.1)


@pytest.mark.slow
def test_the_seed_alone_decides_what_is_drawn_whatever_else_is_asked() -> None:
    whole, quick = of_a_healthy_job(), asked(job(quiet(12, 8)), "slow_host", "stall")
    assert quick.faults == (of(whole, "slow_host"), of(whole, "stall"))
    assert asked(job(quiet(12, 8)), "slow_host", seed=3).faults != quick.faults[:1]


@pytest.mark.parametrize(("draws", "probability", "said"), [(19, 0.95, "got 19"), (40, 1.0, "got 1")])
def test_what_cannot_be_answered_is_turned_down(draws: int, probability: float, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        asked(job(quiet(12, 8)), draws=draws, probability=probability)
