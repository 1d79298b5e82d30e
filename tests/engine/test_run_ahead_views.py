"""Views of jobs whose hosts run ahead of their devices: whose times they show, and how far hosts are ahead."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from support.answers import recorded
from support.places import RUN_AHEAD, SAMPLES
from support.run_ahead_builder import FIRST_STEP, HOST, KERNELS, LEAD, PERIOD, write_run_ahead

from kair_engine.results.sensitivity import InjectedFault
from kair_engine.results.whatif import Fix
from kair_engine.sensitivity.analysis import sensitivity
from kair_engine.trace.model import LaunchQueue, Trace
from kair_engine.triage.analysis import triage
from kair_engine.views.frequency import frequency
from kair_engine.views.overview import info, steps
from kair_engine.views.rank_profile import rank_profile
from kair_engine.views.timeline import View, timeline
from kair_engine.whatif.analysis import whatif, with_absorbed

INPUT_OF_1 = Fix(ranks=(1,), kinds=("input",))
SLACK = PERIOD - HOST + 10
"""µs; marks end 10 before the next step. The first step, with nothing before it, is 5 shorter."""
SLOW_INPUT: tuple[InjectedFault, ...] = ("slow_input",)
same = pytest.approx


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return recorded(write_run_ahead(tmp_path_factory.mktemp("run_ahead") / "job"))


@pytest.fixture(scope="module")
def synchronised() -> Trace:
    return recorded(SAMPLES / "slow_operator")


def case(name: str) -> Trace:
    folder = RUN_AHEAD / name / "input"
    if not folder.exists():
        pytest.skip("the cases are not beside this checkout")
    return recorded(folder)


@pytest.mark.slow
def test_all_views_say_whose_times_they_show(tiny: Trace, synchronised: Trace) -> None:
    views: list[Callable[[Trace], str]] = [
        lambda job: info(job).timed_on,
        lambda job: steps(job).timed_on,
        lambda job: rank_profile(job, rank=1).timed_on,
        lambda job: timeline(job, View()).timed_on,
    ]
    assert [view(tiny) for view in views] == ["device"] * 4
    assert [view(synchronised) for view in views] == ["host"] * 4


def test_a_step_has_the_devices_time_and_beside_it_the_hosts(tiny: Trace, synchronised: Trace) -> None:
    of_rank = [row for row in steps(tiny).steps if row.rank == 1]
    assert [row.duration_us for row in of_rank] == [PERIOD - 5, PERIOD, PERIOD, PERIOD]
    assert [row.host_us for row in of_rank] == [HOST - 10] * 4
    assert [row.begin_us for row in of_rank] == [0, PERIOD - 5, 2 * PERIOD - 5, 3 * PERIOD - 5]
    assert {row.host_us for row in steps(synchronised).steps} == {None}


def test_info_has_the_launch_queues_where_they_are_known(tiny: Trace, synchronised: Trace) -> None:
    assert (info(tiny).launch_queue_depth, info(tiny).launch_queue_per_stream) == ({}, None)
    queues = {1: LaunchQueue(1022, per_stream=True), 0: LaunchQueue(1021, per_stream=True)}
    seen = info(replace(synchronised, job=replace(synchronised.job, launch_queue=queues)))
    assert (seen.launch_queue_depth, seen.launch_queue_per_stream) == ({0: 1021, 1: 1022}, True)


def test_a_rank_is_ahead_by_its_shortest_lead(tiny: Trace, synchronised: Trace) -> None:
    one = rank_profile(tiny, rank=1)
    # Of the first step's first kernel: its launch ends 175 µs after its host began.
    assert one.ahead_us == LEAD - 175
    assert one.slack_us_per_step == same(SLACK - 5 / 4)
    later = rank_profile(tiny.select([FIRST_STEP + 1]), rank=1)
    assert (later.ahead_us, later.slack_us_per_step) == (LEAD - 175 + PERIOD - HOST, SLACK)
    known = rank_profile(synchronised, rank=1)
    assert (known.ahead_us, known.slack_us_per_step) == (None, None)


def test_the_completion_curve_is_the_devices(tiny: Trace) -> None:
    curve = rank_profile(tiny, rank=1).curve
    # Four kernels and an all-reduce of nearly 200 µs each, one after another.
    at = [next(point.completed for point in curve if point.time_us >= time) for time in (100, 300, 500, 700, 900)]
    assert at == [same(number / (KERNELS + 1), abs=0.01) for number in range(KERNELS + 1)]


def test_windows_of_frequency_begin_with_the_hosts(tiny: Trace) -> None:
    found = frequency(tiny, operator="aten::op0", windows=11)
    (counts,) = {row.counts for row in found.counts}
    assert found.window_us == same((LEAD + 4 * PERIOD - 5) / 11)
    # One a step, every HOST µs, and none on the device.
    assert counts == (1, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0)


def test_a_timeline_reaches_back_to_what_hosts_do_for_the_step(tiny: Trace, synchronised: Trace) -> None:
    view = View(unfold=(1,))
    whole = timeline(tiny.select([FIRST_STEP]), replace(view, whole=True))
    assert (whole.begin_us, whole.earliest_us) == (0, -LEAD)
    (thread,) = (row.windows for row in whole.rows if row.lane is not None and row.lane.startswith("thread"))
    assert set(thread) == {"."}
    around = timeline(tiny.select([FIRST_STEP]), replace(view, rank=1, at_us=-LEAD))
    assert around.around.operation.operator.startswith("enumerate(DataLoader)")
    assert around.around.operation.begin_us == around.begin_us == -LEAD
    (thread,) = (row.windows for row in around.rows if row.lane is not None and row.lane.startswith("thread"))
    assert thread.startswith("i")
    assert timeline(synchronised, View()).earliest_us == 0


def test_a_fix_of_a_host_that_is_ahead_is_told_to_be_absorbed(tiny: Trace, synchronised: Trace) -> None:
    of_ranks, of_device = Fix(ranks=(0, 1), kinds=("host", "gc")), Fix(ranks=(1,), kinds=("compute",))
    found = whatif(tiny, [INPUT_OF_1, of_device, of_ranks, Fix(kinds=("input",))])
    assert [(one.fix, one.ranks, one.saved_us) for one in found.absorbed] == [
        ("rank=1+kind=input", (1,), 0),
        ("rank=0-1+kind=host,gc", (0, 1), 0),
    ]
    assert {one.ahead_us for one in found.absorbed} == {LEAD - 175}
    assert [one.slack_us_per_step for one in found.absorbed] == [same(SLACK - 5 / 4)] * 2
    other = whatif(synchronised, [Fix(ranks=(0,), kinds=("input",))])
    assert other.absorbed == ()


def test_nobody_asks_how_far_hosts_are_ahead_where_fixes_save_something(tiny: Trace) -> None:
    found = whatif(tiny, [INPUT_OF_1])
    saving = replace(found, fixes=tuple(replace(one, saved_share=0.01) for one in found.fixes), absorbed=())
    assert with_absorbed(saving, [INPUT_OF_1], tiny.job, lambda: pytest.fail("nobody has to know")) == saving


@pytest.mark.slow
def test_sensitivity_tells_what_the_hosts_lead_absorbs(tiny: Trace, synchronised: Trace) -> None:
    found = sensitivity(tiny, draws=20, chosen=SLOW_INPUT)
    assert found.absorbs_us_per_step == same(SLACK - 5 / 4)
    assert found.absorbs_once_us == LEAD - 175
    other = sensitivity(synchronised, draws=20, chosen=SLOW_INPUT)
    assert (other.absorbs_us_per_step, other.absorbs_once_us) == (None, None)


def test_triage_tells_of_a_slow_input_that_costs_nothing(tiny: Trace) -> None:
    found = triage(tiny)
    (one,) = found.absorbed
    assert (found.verdict, found.findings, one.ranks, one.cause) == ("no_straggler", (), (1,), "input")
    assert one.longer_us_per_step == same(120)
    assert one.ahead_us == LEAD - 175


@pytest.mark.slow
def test_of_a_simulated_job_with_a_slow_device() -> None:
    job = case("gpu_13")
    shown = steps(job)
    assert shown.step_time_us == same(38_200, rel=0.01)
    assert {row.rank for row in shown.steps if row.host_us is not None} == set(job.job.ranks)
    assert set(info(job).launch_queue_depth.values()) == {52}
    slow = rank_profile(job, rank=3)
    assert slow.ahead_us is not None
    assert slow.ahead_us > 25_000
    assert slow.slack_us_per_step is not None
    assert 20_000 < slow.slack_us_per_step < slow.step_time_us
    assert sum(part.share for part in slow.parts) == same(1)
    # Kernels follow one another: at no time is much of a step completed at once.
    assert max(after.completed - before.completed for before, after in pairwise(slow.curve)) < 0.05


@pytest.mark.slow
def test_a_slow_input_of_a_simulated_job_is_absorbed() -> None:
    job = case("input_absorbed")
    (one,) = whatif(job, [INPUT_OF_1]).absorbed
    slow = rank_profile(job, rank=1)
    assert (one.ahead_us, one.slack_us_per_step) == (slow.ahead_us, slow.slack_us_per_step)
    found = sensitivity(job, draws=20, chosen=SLOW_INPUT)
    assert (found.absorbs_us_per_step, found.absorbs_once_us) == (one.slack_us_per_step, one.ahead_us)
