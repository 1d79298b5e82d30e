"""What holds a rank back and not its peers, by hand: 100 ms a step, four ranks, eight steps."""

from dataclasses import replace

import numpy as np
import pytest
from support.excess_builder import job, quiet

from kair_engine.ranks import Position, Rank
from kair_engine.results.evidence_kinds import Crowded, FewerCores, Halted, LowerPriority, SmallerQuota, Throttled
from kair_engine.timeline.host_time import ProcessorTimes
from kair_engine.trace.model import Job, ProcessorLimits, StepTimes
from kair_engine.triage.ranks.cpu_limits import (
    CpuLimit,
    cpu_limit_evidence,
    cpu_limits,
    is_stopped,
    oversubscribed_evidence,
)

STEPS, RANKS, SLOW = 8, 4, Position(1)
USUAL = ProcessorLimits(0, (0, 1, 2, 3))
EXCESS = job(quiet(STEPS, RANKS, percent=12))


def of_host(*of_ranks: ProcessorLimits | None, hosts: dict[int, str] | None = None) -> Job:
    return Job(
        name="job",
        source="",
        format="kineto",
        world_size=RANKS,
        ranks=tuple(Rank(rank) for rank in range(RANKS)),
        hosts=hosts or {},
        layout=None,
        device=None,
        has_device=False,
        absolute_time=True,
        steps=tuple(range(STEPS)),
        step_times=StepTimes((), (), (), (), ()),
        operations=0,
        warnings=(),
        limits={rank: limits for rank, limits in enumerate(of_ranks) if limits is not None},
    )


def counted(halted: list[float], throttled: list[float] | None = None) -> ProcessorTimes:
    """So many stops of each rank in every step."""

    def matrix(of_rank: list[float]) -> np.ndarray:
        return np.repeat(np.array(of_rank, dtype=float)[:, None], STEPS, axis=1)

    nothing = matrix([0] * RANKS)
    stops = matrix(throttled or [np.nan] * RANKS)
    return ProcessorTimes(np.arange(RANKS), np.arange(STEPS), nothing, nothing, stops, nothing, matrix(halted), nothing)


@pytest.mark.parametrize(("stops", "is_told"), [(1, False), (2, True)])
def test_a_single_stop_by_a_signal_holds_nobody_back(stops: int, is_told: bool) -> None:
    times = counted([0] * RANKS)
    times.halted[SLOW, :stops] = 1
    assert (SLOW in cpu_limits(of_host(*[None] * RANKS), EXCESS, times)) == is_told


@pytest.mark.parametrize(
    ("one", "others", "expected"),
    [
        (replace(USUAL, nice=10), USUAL, [CpuLimit(LowerPriority, 10, 0)]),
        (replace(USUAL, nice=-5), USUAL, []),
        (replace(USUAL, cpus=(0,)), USUAL, [CpuLimit(FewerCores, 1, 4)]),
        (replace(USUAL, cpus=(4, 5, 6, 7)), USUAL, []),
        (replace(USUAL, cpus=(0, 1, 2)), USUAL, []),
        (replace(USUAL, cpus=tuple(range(8))), replace(USUAL, cpus=tuple(range(64))), []),
        (replace(USUAL, quota=0.5), USUAL, [CpuLimit(SmallerQuota, 0.5, None)]),
        (replace(USUAL, quota=0.5), replace(USUAL, quota=2.0), [CpuLimit(SmallerQuota, 0.5, 2.0)]),
        (USUAL, replace(USUAL, quota=2.0), []),
        (replace(USUAL, quota=1.5), replace(USUAL, quota=2.0), []),
        (replace(USUAL, quota=16.0), USUAL, []),
        (ProcessorLimits(), USUAL, []),
        (replace(USUAL, nice=10), ProcessorLimits(None, (), 8.0), []),
        (replace(USUAL, nice=10), None, []),
        (None, USUAL, []),
    ],
)
def test_a_rank_is_held_back_that_may_have_less_than_its_peers(
    one: ProcessorLimits | None, others: ProcessorLimits | None, expected: list[CpuLimit]
) -> None:
    found = cpu_limits(of_host(others, one, others, others), EXCESS, None)
    assert found == ({SLOW: tuple(expected)} if expected else {})


def test_whoever_has_as_much_as_most_is_not_held_back_by_what_one_has_more() -> None:
    low = replace(USUAL, nice=10)
    assert cpu_limits(of_host(USUAL, low, low, low), EXCESS, None) == {}


@pytest.mark.parametrize(
    ("halted", "throttled", "expected"),
    [
        ([0, 2, 0, 0], None, {SLOW: (CpuLimit(Halted, 2, 0),)}),
        ([1, 2, 1, 1], None, {}),
        ([0, 0, 0, 0], [1, 9, 1, 2], {SLOW: (CpuLimit(Throttled, 9, 1),)}),
        ([1, 1, 1, 1], [9, 9, 9, 9], {}),
    ],
)
def test_a_rank_is_held_back_that_is_stopped_far_oftener(
    halted: list[float], throttled: list[float] | None, expected: object
) -> None:
    found = cpu_limits(of_host(), EXCESS, counted(halted, throttled))
    assert found == expected
    assert is_stopped(found.values()) == bool(expected)


def test_of_several_ranks_the_mean_is_told_of_those_that_it_holds_back() -> None:
    known = {
        Position(1): (CpuLimit(LowerPriority, 10, 0), CpuLimit(SmallerQuota, 0.5, None)),
        Position(2): (CpuLimit(LowerPriority, 19, 0),),
    }
    assert list(cpu_limit_evidence(EXCESS, known, [Position(1), Position(2), Position(3)])) == [
        LowerPriority(14.5, 0, ranks=(Rank(1), Rank(2))),
        SmallerQuota(0.5, ranks=(Rank(1),)),
    ]


def test_ranks_that_share_fewer_cores_than_they_are_are_told() -> None:
    """Ranks 0 and 2 share core 0; on another host rank 3 has one of that number for itself."""
    first, second = ProcessorLimits(0, (0,)), ProcessorLimits(0, (1,))
    made = of_host(first, second, first, first, hosts={0: "a", 1: "a", 2: "a", 3: "b"})
    told = Crowded(2, 1, ranks=(Rank(0), Rank(2)))
    assert list(oversubscribed_evidence(made, made.ranks)) == list(oversubscribed_evidence(made, [Rank(2)])) == [told]
    assert not list(oversubscribed_evidence(made, [Rank(1), Rank(3)]))
    assert not list(oversubscribed_evidence(of_host(), made.ranks))
