"""Jobs whose ranks are given different numbers of samples: who is slow is told by what a sample takes."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.captured import rows_for
from support.cli_samples import kair
from support.kineto_builder import trace, training_steps, write
from support.live_status import write_status

from kair_capture.agent.spool import named
from kair_capture.agent.step_rows import ROW, Rows
from kair_capture.agent.windows import HostOfWindow, convert, window_files
from kair_capture.coordinator.committing import Committer
from kair_capture.coordinator.endpoint import Hosts
from kair_capture.coordinator.sampling import Budget, Sampler
from kair_capture.coordinator.status import Remembered, lines_of, status_of
from kair_capture.coordinator.step_log import StepLog, read_all, scope_series
from kair_capture.coordinator.step_table import Roles, StepTable
from kair_capture.coordinator.watching import Watching
from kair_capture.places import JobPlaces
from kair_engine.recording.job_file import open_job_folder
from kair_engine.results.watch import WatchResult
from kair_engine.timeline.batch_sizes import lasting_changes
from kair_engine.timeline.inputs import samples_of
from kair_engine.views.scope_changes import scope_times

EVEN, FITTED = (16, 16, 16, 16), (20, 20, 6, 18)
STEPS = 600
Sizes = Callable[[int], tuple[int, ...]]


def steps_of(
    sizes: Sizes, *, slow: Mapping[int, float] | None = None, fixed_us: float = 2000.0, seed: int = 1
) -> tuple[Rows, ...]:
    """Rows of four ranks: a sample takes 1 ms, or so many times as long on `slow` ones, and each step `fixed_us`.

    What compiles after other sizes takes twenty times as long.
    """
    chance, found = np.random.default_rng(seed), []
    taken = np.array([sizes(step) for step in range(STEPS)])
    anew = [step for step in range(1, STEPS) if step > 1 and tuple(taken[step]) != tuple(taken[step - 1])]
    own = fixed_us + taken * [1000.0 * (slow or {}).get(rank, 1.0) for rank in range(4)]
    own *= 1 + np.abs(chance.normal(0, 0.02, own.shape))
    for step in anew:
        own[step : step + 2, 1] *= 20
    for rank in range(4):
        rows = rows_for(rank, range(STEPS))
        rows["self_us"], rows["step_us"], rows["samples"] = own[:, rank], own.max(axis=1) + 500, taken[:, rank]
        rows["begin_us"] = 10**15 + np.concatenate(([0], np.cumsum(rows["step_us"][:-1], dtype=np.uint64)))
        found.append(rows)
    return tuple(found)


def watched(rows: tuple[Rows, ...]) -> tuple[Watching, WatchResult]:
    """As a coordinator hears of it, 20 steps at a time."""
    table, hosts = StepTable(), Hosts()
    sampler = Sampler(Budget(0.01))
    watching = Watching(table, hosts, sampler, Roles())
    for first in range(0, STEPS, 20):
        for of in rows:
            table.add(of[first : first + 20])
        watching.turn(0.0)
    status = status_of("job", table, hosts, watching, sampler=sampler, memory=Remembered(), refused={}, now=0.0)
    return watching, status


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "fixed_us"), [((8, 24, 24, 24), 6000.0), ((8, 24, 8, 24), 6000.0), ((32, 16, 16, 16), 0.0)]
)
def test_ranks_that_are_given_more_or_less_and_are_equally_fast_are_left_alone(
    sizes: tuple[int, ...], fixed_us: float
) -> None:
    """Also where a part of the step takes as long for few samples as for many."""
    watching, status = watched(steps_of(lambda _: sizes, fixed_us=fixed_us))
    assert not watching.alerts
    assert [row.samples for row in status.ranks] == list(sizes)


@pytest.mark.slow
def test_a_rank_that_is_slow_for_its_samples_and_is_waited_for_is_named(tmp_path: Path) -> None:
    """It takes 31 ms a step for half of the samples that the others are done with in 22 ms."""
    watching, status = watched(steps_of(lambda _: (20, 20, 10, 18), slow={2: 2.9, 3: 1.1}))
    assert [(alert.kind, alert.ranks, alert.per_sample) for alert in watching.alerts] == [("slow_rank", (2,), True)]
    rank = status.ranks[2]
    assert rank.slow
    assert not rank.evened_out
    assert rank.self_time_us == pytest.approx(31_000, rel=0.05)
    assert rank.sample_time_us == pytest.approx(3100, rel=0.05)
    assert rank.excess_us == pytest.approx(31_000 - 22_000, rel=0.1)
    write_status(tmp_path, status)
    told = kair("watch", "job", "--once", "--store", str(tmp_path)).out
    head = next(line for line in told.splitlines() if "self time" in line)
    assert re.search(r"self time +samples +a sample +than peers", head)
    assert re.search(r"^ +2 .* 10 +3\.\d\d? ms +\+1\d\d\.\d % .*slow", told, re.MULTILINE)
    assert re.search(r"rank 2 is slow: its own time is \S+ ms longer \(1\d\d% a sample, ", told)
    document = json.loads(kair("watch", "job", "--json", "--store", str(tmp_path)).out)["data"]
    assert [row["samples"] for row in document["ranks"]] == [20, 20, 10, 18]
    assert any(re.fullmatch(r'kair_sample_seconds\{.*rank="2".*\} 0\.0031\d+', line) for line in lines_of(status))


@pytest.mark.slow
def test_a_rank_that_a_plan_gives_so_few_samples_that_nobody_waits_for_it_is_evened_out(tmp_path: Path) -> None:
    """Three times as slow from step 100 on, and from step 300 on all take 21 ms a step."""
    rows = steps_of(lambda step: EVEN if step < 300 else FITTED, slow={2: 3.1, 3: 1.1})
    rows[2]["self_us"][:100] = rows[1]["self_us"][:100]
    watching, status = watched(rows)
    of_rank_2 = [(alert.kind, alert.over) for alert in watching.alerts if alert.ranks == (2,)]
    assert of_rank_2 == [("slow_rank", False), ("slow_rank", True)]
    assert [row.evened_out for row in status.ranks] == [False, False, True, False]
    assert not any(row.slow for row in status.ranks)
    assert all(abs(row.excess_of_step or 0) < 0.08 for row in status.ranks)
    write_status(tmp_path, status)
    told = kair("watch", "job", "--once", "--store", str(tmp_path)).out
    assert re.search(r"^ +2 .* 6 +3\.4\d ms +\+2\d\d\.\d % .*evened out$", told, re.MULTILINE)
    assert "is slow" not in told.splitlines()[0]


@pytest.mark.slow
def test_what_changes_where_a_plan_begins_is_the_plan_s() -> None:
    """Steps become half as long again, ranks compile, epochs end every 37 steps; nobody is slower than before."""

    def sizes(step: int) -> tuple[int, ...]:
        of = (16, 16, 16, 16) if step < 300 else (12, 13, 13, 26)
        return tuple(one // 2 for one in of) if step % 37 == 36 else of

    watching, _ = watched(steps_of(sizes))
    assert not watching.alerts
    assert watching.usual_us == pytest.approx(2000 + 26 * 1000 + 500, rel=0.06)
    # Without sizes nobody could know.
    untold = steps_of(sizes)
    for of in untold:
        of["samples"] = 0
    assert {alert.kind for alert in watched(untold)[0].alerts} == {"slow_rank", "longer_steps"}


@pytest.mark.slow
def test_a_rank_that_becomes_slow_after_a_plan_is_noticed() -> None:
    rows = steps_of(lambda step: EVEN if step < 200 else (8, 18, 12, 26))
    for of, name in ((rows[2], "self_us"), (rows[2], "step_us")):
        of[name][400:] = of[name][400:] * 2
    (alert,) = watched(rows)[0].alerts
    assert (alert.kind, alert.ranks) == ("slow_rank", (2,))
    assert 400 < alert.step <= 435


def test_sizes_change_where_they_last() -> None:
    even, other, tail = [16.0, 16.0], [20.0, 12.0], [3.0, 3.0]
    untold = [np.nan, np.nan]
    assert lasting_changes(np.array([even, even, tail, even, even])).tolist() == []
    assert lasting_changes(np.array([even, even, untold, tail, untold, even, even])).tolist() == []
    assert lasting_changes(np.array([even, even, other, [20.0, np.nan], other, tail, other, even, even])).tolist() == [
        2,
        7,
    ]


def test_over_steps_no_part_of_a_step_becomes_longer_by_a_plan(tmp_path: Path) -> None:
    """From step 300 on rank 3 is given more; what it takes before is told as if it had been given as much."""
    log = StepLog(tmp_path)
    for of in steps_of(lambda step: EVEN if step < 300 else (16, 16, 8, 24)):
        log.append(of)
    log.close()
    rows = scope_times(*scope_series(read_all(tmp_path), tmp_path / "none"))
    assert not [row for row in rows if row.since_step is not None]
    (own,) = (row for row in rows if row.scope == "self" and row.rank == 3)
    assert own.median_us == pytest.approx(26_000, rel=0.1)


def test_a_job_in_the_store_tells_what_its_windows_did(tmp_path: Path) -> None:
    for rank in range(2):
        document = trace(training_steps(4, first=5), rank=rank, world=2)
        document["kair"] = {"samples": [[5, 16 + rank], [6, 20], [7, "x"], [8, -1], ["x"], 3]}
        write(tmp_path / f"rank-{rank}-5-8.json", document)
    (made,), _ = convert(window_files(tmp_path), tmp_path, HostOfWindow("node-1", 2, None, 0))
    places, key = JobPlaces(tmp_path / "store", "job"), b"k" * 32
    target = places.delivered / "host=node-1" / named(made.path, "node-1", 5, 8, key).text
    target.parent.mkdir(parents=True)
    made.path.rename(target)
    Committer(places, key).round()
    found = samples_of(open_job_folder(places.folder), np.array([5, 6, 7, 8]), np.array([0, 1]))
    np.testing.assert_equal(found, [[16, 17], [20, 20], [np.nan] * 2, [np.nan] * 2])


def test_parts_of_earlier_versions_which_told_less_are_read(tmp_path: Path) -> None:
    rows = rows_for(2, range(10))
    names = (ROW.names or ())[: (ROW.names or ()).index("samples")]
    pq.write_table(
        pa.table({name: np.ascontiguousarray(rows[name]) for name in names}), tmp_path / "part-00000001.parquet"
    )
    assert read_all(tmp_path)["step"].tolist() == list(range(10))
