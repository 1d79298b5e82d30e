"""Of two ranks nobody knows which one is as usual: each is compared with its past, and with who waits for whom."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.captured import rows_for
from support.cli_samples import kair
from support.live_status import write_status

from kair_capture.coordinator.endpoint import Hosts
from kair_capture.coordinator.sampling import Budget, Sampler
from kair_capture.coordinator.status import Remembered, status_of
from kair_capture.coordinator.step_table import Roles, StepTable
from kair_capture.coordinator.watching import Watching
from kair_engine.results.watch import WatchResult

pytestmark = pytest.mark.slow

STEPS = 400


def job(
    seed: int, *, slow_by: float = 0.0, slow_from: int = 200, seen: bool = True, tells_cpu: bool = False
) -> tuple[set[int], WatchResult]:
    """Return the ranks that an alert names, and the last status: from some step on rank 1 is slow, by a share.

    Ranks differ by a tenth of the step, as data and hosts make them; each seed has its own noise, pauses and drift.
    Where waiting is not `seen`, the own times are those of the step but for what the two clocks differ by.
    """
    chance = np.random.default_rng(seed)
    usual = 10_000 * 2 ** chance.uniform(0, 3)
    own = usual * (1 + chance.uniform(-0.02, 0.02, (2, 1)))
    own = own * (1 + np.abs(chance.normal(0, chance.uniform(0.005, 0.06), (2, STEPS))))
    own += (chance.random((2, STEPS)) < 0.02) * chance.exponential(0.5 * usual, (2, STEPS))
    own *= 1 + chance.uniform(-0.05, 0.05) * np.linspace(0, 1, STEPS)
    own[1, slow_from:] += slow_by * usual
    step = own.max(axis=0) + 0.05 * usual * (1 + np.abs(chance.normal(0, 0.1, STEPS)))
    # What little is seen of it is chance.
    little = np.abs(chance.normal(0, 0.01, (2, STEPS))) + (chance.random((2, STEPS)) < 0.2) * chance.uniform(
        0, 0.3, (2, STEPS)
    )
    told = own if seen else step * (1 - little)
    table, hosts, sampler = StepTable(), Hosts(), Sampler(Budget(0.01))
    watching = Watching(table, hosts, sampler, Roles())
    rows = [rows_for(rank, range(STEPS)) for rank in range(2)]
    for rank, of in enumerate(rows):
        of["step_us"], of["self_us"] = step, told[rank]
        # Who waits in a compiled step may do so busily: that looks like work.
        of["cpu_us"] = (told[rank] if rank == 0 else 0.2 * told[rank]) if tells_cpu else 0
        of["begin_us"] = 10**15 + np.concatenate(([0], np.cumsum(step[:-1]).astype(np.uint64)))
    for first in range(0, STEPS, 20):
        for of in rows:
            table.add(of[first : first + 20])
        watching.turn(0.0)
    named = {rank for alert in watching.alerts if alert.kind == "slow_rank" for rank in alert.ranks}
    return named, status_of("job", table, hosts, watching, sampler=sampler, memory=Remembered(), refused={}, now=0.0)


def lines_of_ranks(status: WatchResult, store: Path) -> tuple[str, list[str]]:
    """Return what `kair watch` writes of the ranks: the head of the table, and a line for each."""
    write_status(store, status)
    told = kair("watch", "job", "--once", "--store", str(store)).out.splitlines()
    return next(line for line in told if "self time" in line), [line for line in told if re.match(r" +\d+ ", line)]


def named_in(jobs: range, **made: float | bool) -> Counter[int]:
    """Return how many of the jobs name each rank."""
    return Counter(rank for seed in jobs for rank in job(seed, **made)[0])  # type: ignore[arg-type]


@pytest.mark.parametrize(("jobs", "seen"), [(140, True), (60, False)])
def test_healthy_jobs_accuse_nobody(jobs: int, *, seen: bool) -> None:
    assert not named_in(range(jobs), seen=seen)


def test_a_rank_that_becomes_slow_is_named_and_the_other_is_not() -> None:
    """20 to 100 % of the step; what is slow by next to nothing is not worth a window."""
    found = Counter[int]()
    for at, slow_by in enumerate((0.2, 0.4, 1.0)):
        found += named_in(range(1000 + at * 20, 1020 + at * 20), slow_by=slow_by)
    assert found[1] >= 0.95 * 60
    assert found[0] == 0


@pytest.mark.parametrize("tells_cpu", [False, True])
@pytest.mark.parametrize("slow_from", [80, 130])
@pytest.mark.parametrize("slow_by", [1.0, 25.0])
def test_where_waiting_is_not_seen_nobody_is_named(slow_by: float, slow_from: int, *, tells_cpu: bool) -> None:
    """By so much a job of short steps is, that sleeps 20 ms in each."""
    jobs = range(15)
    assert not named_in(jobs, slow_by=slow_by, slow_from=slow_from, seen=False, tells_cpu=tells_cpu)


def test_the_watch_says_what_two_ranks_are_compared_with(tmp_path: Path) -> None:
    """Not with each other: so rank 0 may be above its own past, and no rank seems faster than the one that is slow."""
    named, status = job(1, slow_by=0.4)
    assert named == {1}
    head, lines = lines_of_ranks(status, tmp_path)
    assert "than its own past" in head
    assert "than peers" not in head
    assert "slow" in lines[0]
    assert re.search(r"\+\d\d\.\d % ", lines[0])
    innocent = next(one for one in status.ranks if one.rank == 0)
    assert innocent.self_time_excess == pytest.approx(0, abs=0.03)
    assert innocent.excess_us == pytest.approx(0, abs=0.03 * (innocent.step_time_us or 0))
    three = replace(status, ranks=tuple(replace(one, peers=2) for one in status.ranks))
    assert "than peers" in lines_of_ranks(three, tmp_path)[0]
    mixed = replace(status, ranks=(status.ranks[0], replace(status.ranks[1], peers=2)))
    head, lines = lines_of_ranks(mixed, tmp_path)
    assert "than peers" in head
    assert [" % of its past" in line for line in lines] == [False, True]


@pytest.mark.parametrize("seed", range(5))
def test_what_is_shown_in_a_step_is_no_more_than_others_wait(seed: int) -> None:
    """Own times that grew 25-fold, on two ranks alike: a ratio of ratios of them can be any number."""
    for made in ({"seen": False, "slow_from": 130}, {"slow_from": 130}):
        ranks = job(seed, slow_by=25.0, **made)[1].ranks  # type: ignore[arg-type]
        assert all(abs(one.excess_of_step or 0) <= 1 for one in ranks)
        assert all((one.excess_of_step or 0) > -0.05 for one in ranks)
