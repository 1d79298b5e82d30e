"""The contrast of places: who differs by position in a process group, by device model, host or block."""

from dataclasses import replace

import numpy as np
from support.excess_builder import COMPUTE, Percents, job, quiet

from kair_engine.localize.excess import JobExcess
from kair_engine.localize.localization import conclude, job_patterns
from kair_engine.localize.placement import Placement, partitions, placement
from kair_engine.ranks import Rank
from kair_engine.trace.identity import DeviceIdentity, RankIdentity
from kair_engine.trace.model import Job, StepTimes

OF_FOUR = ("1 [0, 1, 2, 3]", "2 [4, 5, 6, 7]")


def known(ranks: int, *, models: dict[int, str] | None = None, names: dict[str, str] | None = None) -> Job:
    identity = {rank: RankIdentity(rank, device=DeviceIdentity(model=model)) for rank, model in (models or {}).items()}
    return Job(
        name="job",
        source="job",
        format="kineto",
        world_size=ranks,
        ranks=tuple(map(Rank, range(ranks))),
        hosts={},
        layout=None,
        device=None,
        has_device=True,
        absolute_time=True,
        steps=(),
        step_times=StepTimes((), (), (), (), ()),
        operations=0,
        warnings=(),
        identity=identity,
        group_names=names or {},
    )


def with_groups(percents: Percents, *groups: str) -> JobExcess:
    made = job(percents)
    return replace(made, steps=tuple(replace(step, groups=frozenset(groups)) for step in made.steps))


def ladder(steps: int, ranks: int, of_place: list[float]) -> Percents:
    percents = quiet(steps, ranks)
    percents[:, COMPUTE] += np.tile(of_place, ranks // len(of_place))
    return percents


def found_in(made: JobExcess, of: Job) -> Placement:
    found = placement(of, made)
    assert found is not None
    return found


def test_work_that_rises_from_position_to_position_is_the_programs() -> None:
    made, of = with_groups(ladder(8, 8, [0, 10, 20, 30]), *OF_FOUR), known(8, names={OF_FOUR[0]: "mesh_cp"})
    of = replace(of, group_names=dict.fromkeys(OF_FOUR, "mesh_cp"))
    found = found_in(made, of)
    assert (found.partition.kind, found.partition.names, found.slowest.tolist()) == ("group", ("mesh_cp",), [3, 7])
    said = conclude(made, of=of)
    assert said.anomalies == ()
    (pattern,) = job_patterns(said)
    assert (pattern.cause, pattern.ranks, pattern.group) == ("position_imbalance", (3, 7), "mesh_cp")


def test_a_rank_that_is_slower_than_its_position_stays_accused() -> None:
    percents = ladder(8, 16, [0, 10, 20, 30])
    percents[:, COMPUTE, 5] += 12
    groups = [f"{at} {list(range(first, first + 4))}" for at, first in enumerate(range(0, 16, 4))]
    said = conclude(with_groups(percents, *groups), of=known(16))
    assert {rank for one in said.anomalies for rank in one.positions} <= {5}


def test_of_one_group_the_order_of_all_its_ranks_tells() -> None:
    group = "1 [0, 1, 2, 3, 4, 5, 6, 7]"
    rising = with_groups(ladder(8, 8, [0, 4, 8, 12, 16, 20, 24, 28]), group)
    assert found_in(rising, known(8)).slowest.tolist() == [7]
    one_slow = quiet(8, 8)
    one_slow[:, COMPUTE, 7] += 20
    assert placement(known(8), with_groups(one_slow, group)) is None


def test_the_older_half_is_accused_by_its_model() -> None:
    percents = quiet(8, 8)
    percents[:, COMPUTE, 5:] += 40
    of = known(8, models={rank: "A100" if rank >= 5 else "H100" for rank in range(8)})
    found = found_in(job(percents), of)
    assert (found.partition.kind, found.slowest.tolist()) == ("model", [5, 6, 7])
    assert [one.positions for one in conclude(job(percents), of=of).anomalies] == [(5, 6, 7)]


def test_half_of_the_ranks_in_a_row_are_accused_where_nothing_names_a_host() -> None:
    percents = quiet(8, 8)
    percents[:, COMPUTE, 4:] += 20
    assert [one.positions for one in conclude(job(percents), of=known(8)).anomalies] == [(4, 5, 6, 7)]


def test_single_slow_ranks_are_no_place() -> None:
    percents = quiet(8, 8)
    percents[:, COMPUTE, [4, 5, 6]] += 20
    assert placement(known(8), job(percents)) is None


def test_healthy_ranks_have_no_place_and_each_division_is_made_once() -> None:
    made = with_groups(quiet(20, 16), *(f"{at} [{at}, {at + 8}]" for at in range(8)))
    assert placement(known(16), made) is None
    kinds = [one.kind for one in partitions(known(16), made)]
    assert kinds == ["block"]  # positions 0 and 1 of those groups are the halves
