"""A fleet put together by hand: the distribution of S, hosts that come up again, and what is kept of a job."""

from dataclasses import replace
from pathlib import Path

import pytest

from kair_engine.fleet import fleet_of, recurring, week_of
from kair_engine.results.store import FleetJob, StragglerCost
from kair_engine.results.triage import Verdict
from kair_engine.store.kept_answers import keep_cost, kept_cost
from kair_tui.render.fleet import COLUMNS, shares_in_words, spread_in_words
from kair_tui.render.verdict import s_of_job


def job(
    name: str,
    slowdown: float | None = 1.0,
    *,
    hosts: tuple[str, ...] = ("a", "b"),
    accused: tuple[str, ...] = (),
    size: int = 4,
    week: str = "2026-W30",
    waste: float = 0.0,
) -> FleetJob:
    verdict: Verdict = "straggler" if accused else "no_straggler"
    return FleetJob(
        verdict=verdict,
        cause="compute" if accused else None,
        accused_ranks=(),
        accused_hosts=accused,
        job_hosts=hosts,
        slowdown=slowdown,
        waste=waste,
        gpu_hours_per_day=waste * size * 24,
        recorded_at=None,
        name=name,
        world_size=size,
        ranks=size,
        steps=10,
        week=week,
        cost_per_day=None,
    )


def test_the_spread_of_s_is_over_the_jobs_that_can_be_replayed() -> None:
    jobs = [
        job("x", 1.25, accused=("a",), waste=0.1),
        job("y", 1.0),
        job("z", 1.0, size=9),
        job("w", None, week="2025-W01"),
    ]
    fleet = fleet_of("store", jobs, ())
    assert [(point.slowdown, point.share) for point in fleet.distribution] == [(1.0, pytest.approx(2 / 3)), (1.25, 1.0)]
    assert (fleet.replayed, fleet.slow, fleet.with_straggler) == (3, 1, 1)
    assert [one.name for one in fleet.jobs if one.slow] == ["x"]
    assert (fleet.median_slowdown, fleet.slowdown_90, fleet.worst_slowdown) == (1.0, 1.25, 1.25)
    assert fleet.waste == pytest.approx(0.1 * 4 / 21), "each of the 21 devices counts alike"
    assert fleet.gpu_hours_per_day == pytest.approx(9.6)
    assert [one.name for one in fleet.jobs] == ["x", "w", "y", "z"]
    assert [(group.group, group.jobs) for group in fleet.groups] == [
        ("1-8", 3),
        ("9-64", 1),
        ("2025-W01", 1),
        ("2026-W30", 3),
        ("compute", 1),
        ("none", 3),
    ]


def test_sizes_are_those_of_the_paper_s_order_of_magnitude() -> None:
    fleet = fleet_of("store", [job(str(size), size=size) for size in (1, 8, 9, 64, 65, 512, 513, 4096)], ())
    sizes = [(group.group, group.jobs) for group in fleet.groups if group.by == "size"]
    assert sizes == [("1-8", 2), ("9-64", 2), ("65-512", 2), (">512", 2)]


def test_a_job_is_slow_by_what_triage_found_and_else_its_s_is_noise() -> None:
    faulty = job("faulty", 1.3, accused=("a",), waste=0.2)
    barely = job("barely", 1.13, accused=("a",), waste=0.09)
    fleet = fleet_of("store", [faulty, barely, job("healthy", 1.15)], ())
    assert {one.name: (one.slow, one.within_noise) for one in fleet.jobs} == {
        "faulty": (True, False),
        "barely": (False, False),
        "healthy": (False, True),
    }
    assert [point.slowdown for point in fleet.distribution] == [1.0, 1.13, 1.3], "S of a healthy job counts 1"
    healthy = fleet.jobs[-1]
    assert (healthy.slowdown, s_of_job(healthy.slowdown, healthy.verdict)) == (1.15, "1.1500 within noise")
    assert "1 for 1 job without a straggler, whose S is noise" in spread_in_words(fleet)


@pytest.mark.slow
def test_shares_have_ranges_that_grow_narrow_with_the_number_of_jobs() -> None:
    few, many = (
        fleet_of("store", [job(f"{at}", 1.3, waste=0.2 if at % 4 == 0 else 0.0) for at in range(jobs)], ())
        for jobs in (8, 800)
    )
    assert few.slow_share == many.slow_share == 0.25 and few.waste == pytest.approx(0.05)
    assert (many.slow_share_least, many.slow_share_most) == pytest.approx((0.2212, 0.2811), abs=1e-4)
    assert (few.slow_share_least, few.slow_share_most) == pytest.approx((0.0715, 0.5907), abs=1e-4)
    assert many.waste_least == pytest.approx(0.2 * 0.2212, abs=0.001), "of jobs of one size the waste is binomial, too"
    assert few.waste_least is not None and few.waste_least < 0.01
    assert shares_in_words(many).startswith(
        "jobs slowed by 10 % or more: 25 % (22 to 28); GPU time wasted: 5.0 % (4 to 6)"
    )
    (alone,) = (fleet_of("store", [job("x")], ()),)
    assert (alone.waste, alone.waste_least, alone.waste_most) == (0.0, None, None)


def test_a_job_whose_simulation_is_far_off_is_in_no_figure_of_s() -> None:
    jobs = [job(name, slowdown, accused=("a",)) for name, slowdown in (("x", 1.25), ("y", 1.1), ("z", 3.0))]
    off = [replace(one, simulation_error=share) for one, share in zip(jobs, (0.05, None, 0.051), strict=True)]
    fleet = fleet_of("store", off, ())
    assert (fleet.replayed, fleet.inexact, fleet.worst_slowdown) == (2, 1, 1.25)
    assert fleet.groups[0].worst_slowdown == 1.25
    assert len(fleet.jobs) == 3, "it is listed, with its S"
    assert spread_in_words(fleet).endswith("; 1 job left out, with a replay error above 5 %")


def test_the_spread_of_one_job_is_its_s() -> None:
    assert spread_in_words(fleet_of("store", [job("x", 1.25, accused=("a",))], ())) == "slowdown S of 1 job: 1.25×"


def test_a_fleet_of_which_nothing_can_be_replayed_has_no_spread() -> None:
    fleet = fleet_of("store", [job("w", None)], ())
    assert (fleet.distribution, fleet.median_slowdown, fleet.waste, fleet.gpu_hours_per_day) == ((), None, 0.0, 0.0)


def test_a_host_that_is_accused_more_often_than_chance_has_it_recurs() -> None:
    four = ("a", "b", "c", "d")
    jobs = [job(str(number), hosts=four, accused=("a",)) for number in range(5)] + [job("calm", hosts=four)]
    first, *others = recurring(jobs)
    assert (first.host, first.jobs, first.accused, first.accused_in) == ("a", 6, 5, ("0", "1", "2", "3", "4"))
    assert first.p_value == pytest.approx(4 * 0.25**5), (
        "one of four hosts in each of five jobs, of four hosts that could"
    )
    assert first.recurs
    assert [(one.accused, one.p_value, one.recurs) for one in others] == [(0, None, False)] * 3


def test_a_host_that_every_job_ran_on_alone_says_nothing_about_it() -> None:
    (only,) = recurring([job(str(number), hosts=("a",), accused=("a",)) for number in range(9)])
    assert (only.accused, only.p_value, only.recurs) == (9, 1.0, False)


def test_weeks_are_those_of_iso() -> None:
    assert (week_of("2026-01-01T00:00:00+00:00"), week_of("2027-01-01T00:00:00+00:00")) == ("2026-W01", "2026-W53")


def test_what_is_kept_is_for_the_same_operations_and_whole(tmp_path: Path) -> None:
    listed = job("x", 1.25, accused=("a",), waste=0.1)
    cost = StragglerCost(**{name: getattr(listed, name) for name in StragglerCost.__dataclass_fields__})
    assert kept_cost(tmp_path, 10) is None
    keep_cost(tmp_path, cost, 10)
    assert kept_cost(tmp_path, 10) == cost
    assert kept_cost(tmp_path, 11) is None, "a part of the recording came or went"
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes().replace(b"1.25", b"9.25"))
    assert kept_cost(tmp_path, 10) is None


def test_a_hang_has_no_price_and_what_the_job_wastes_besides_is_of_its_own_cause() -> None:
    both = replace(job("both", None, accused=("a",), waste=0.36), cause="contention", hangs=True)
    alone = replace(job("alone", None, accused=("a",)), cause="hang", hangs=True)
    fleet = fleet_of("store", [both, alone], ())
    groups = {group.group: (group.jobs, group.waste) for group in fleet.groups if group.by == "cause"}
    assert groups == {"contention": (1, pytest.approx(0.36)), "hang": (2, None)}
    cells = {one.key: [one.show(row) for row in (both, alone)] for one in COLUMNS}
    assert cells["cause"] == ["CPU contention, and a hang", "hang"]
    assert (cells["waste"][1], cells["gpu_hours_per_day"][1]) == ("–", "–")
    open_ = replace(job("open", None), verdict="inconclusive", cause=None)
    assert [one.is_priced for one in (both, alone, open_, job("calm", None))] == [True, False, False, True]
