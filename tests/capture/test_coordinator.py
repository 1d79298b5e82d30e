"""What a coordinator sees and keeps: who is slow, step times counted once, the store whole."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.captured import fragment_of, rows_for

from kair_capture.agent.spool import Spool, named
from kair_capture.agent.step_rows import ROW, ScopeSum, ScopeSums
from kair_capture.coordinator import step_log
from kair_capture.coordinator.committing import Committed, Committer
from kair_capture.coordinator.detection import STEPS, When, Who
from kair_capture.coordinator.endpoint import Hosts
from kair_capture.coordinator.sampling import Budget, Sampler
from kair_capture.coordinator.step_log import ScopeLog, StepLog, read_all, write_part
from kair_capture.coordinator.step_table import Recent, Roles, StepTable, role_names
from kair_capture.coordinator.watching import Watching
from kair_capture.places import JobPlaces
from kair_capture.ring import StepFlag
from kair_capture.wire import Communication
from kair_engine.recording.job_file import open_job_folder
from kair_engine.recording.opening import state_of
from kair_engine.triage.analysis import triage

KEY = b"k" * 32


# What is slow.


def recent_of(self_us: "np.ndarray[tuple[int, int], np.dtype[np.float64]]") -> Recent:
    ranks, count = self_us.shape
    step_us = np.broadcast_to(self_us.max(axis=0), self_us.shape)
    return Recent(np.arange(ranks), np.arange(count), step_us, self_us, self_us * np.nan, self_us)


def noticed(
    ranks: int, slow_by: float, *, steps: int = 400, slow_from: int = 200, seed: int = 1, stages: int = 1
) -> dict[int, int]:
    """rank → the first step at which it counts as slow; times with 3 % noise, spikes, and lasting differences.

    Stages of a pipeline are unequally long, by a third each.
    """
    chance = np.random.default_rng(seed)
    own = (1 + chance.normal(0, 0.005, ranks)) * (1 + np.arange(ranks) * stages // ranks / 3)
    times = own[:, None] * (1 + np.abs(chance.normal(0, 0.03, (ranks, steps))))
    times += (chance.random((ranks, steps)) < 0.005) * chance.exponential(0.3, (ranks, steps))
    times[ranks // 2, slow_from:] *= 1 + slow_by
    who, found = Who(), {}
    role = pipelines(ranks, stages).codes(np.arange(ranks))
    for until in range(STEPS, steps, 5):
        recent = recent_of(times[:, until - STEPS : until] * 1e5)
        _, slow = who.look(recent, role, whole_block=until % STEPS == 0)
        for rank in slow:
            found.setdefault(rank, until)
    return found


def pipelines(ranks: int, stages: int) -> Roles:
    """What such ranks tell: each sends to the same place of the next stage and of the one before."""
    wide = ranks // stages
    roles = Roles()
    for rank in range(ranks):
        others = tuple(one for one in (rank - wide, rank + wide) if stages > 1 and 0 <= one < ranks)
        roles.add(Communication(rank, ranks, others, others, ((wide, 15),)))
    return roles


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [4, 8, 2048])
def test_a_rank_that_becomes_slow_is_noticed_within_30_steps_and_no_other(ranks: int) -> None:
    found = noticed(ranks, 0.2, steps=300)
    assert list(found) == [ranks // 2]
    assert found[ranks // 2] <= 230


def noticed_on_a_busy_host(seed: int, *, held_up: float, waiting: float, slow_by: float = 0.2) -> list[tuple[int, int]]:
    """(step, rank) as eight ranks become slow, the fifth at step 100; `held_up`: in many steps all of them are, by a
    time of that mean; `waiting`: so is each by itself.
    """
    chance, steps = np.random.default_rng(seed), 400
    times = 1 + np.abs(chance.normal(0, 0.03, (8, steps)))
    times += (chance.random(steps) < 0.4) * chance.exponential(held_up, steps)
    times += (chance.random((8, steps)) < 0.4) * chance.exponential(waiting, (8, steps))
    times[4, 100:] *= 1 + slow_by
    who, found, told = Who(), [], set[int]()
    for until in range(STEPS, steps, 5):
        recent = recent_of(times[:, until - STEPS : until] * 1e5)
        _, slow = who.look(recent, np.zeros(8, np.int64), whole_block=until % STEPS == 0)
        found += [(until, rank) for rank in set(slow) - told]
        told = set(slow)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("held_up", "waiting"), [(0.3, 0.1), (0.0, 0.2)])
def test_a_slow_rank_is_noticed_within_36_steps_on_a_busy_host_and_a_healthy_job_is_left_alone(
    held_up: float, waiting: float
) -> None:
    for seed in range(8):
        first = noticed_on_a_busy_host(seed, held_up=held_up, waiting=waiting)[0]
        assert first[1] == 4
        assert 100 < first[0] <= 136
        assert not noticed_on_a_busy_host(seed, held_up=held_up, waiting=waiting, slow_by=0)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [4, 256])
def test_healthy_jobs_are_left_alone(ranks: int) -> None:
    assert not noticed(ranks, 0.0, steps=2000)


@pytest.mark.parametrize(("ranks", "stages"), [(4, 4), (8, 4), (16, 4)])
def test_a_slow_rank_is_slow_for_its_stage_and_long_stages_are_not(ranks: int, stages: int) -> None:
    found = noticed(ranks, 0.2, steps=650, slow_from=600, stages=stages)
    assert list(found) == [ranks // 2]
    assert 600 < found[ranks // 2] <= 630


@pytest.mark.parametrize(("ranks", "slow"), [(16, 5), (64, 24)])
def test_ranks_that_become_slow_together_do_not_hide_one_another(ranks: int, slow: int) -> None:
    chance, who, found = np.random.default_rng(1), Who(), set[int]()
    times = chance.normal(1, 0.01, ranks)[:, None] * np.abs(chance.normal(1, 0.03, (ranks, 260)))
    times[:slow, 200:] *= 1.25
    for until in range(STEPS, 260, 5):
        recent = recent_of(times[:, until - STEPS : until] * 1e5)
        found |= set(who.look(recent, np.zeros(ranks, np.int64), whole_block=until % STEPS == 0)[1])
    assert found == set(range(slow))


def test_what_all_ranks_of_a_pipeline_do_slower_is_nobodys_fault() -> None:
    chance, who = np.random.default_rng(3), Who()
    times = np.arange(1, 5)[:, None] * (1 + np.abs(chance.normal(0, 0.03, (4, 400))))
    times[:, 200:] *= 1.4
    for until in range(STEPS, 400, 5):
        recent = recent_of(times[:, until - STEPS : until] * 1e5)
        assert who.look(recent, np.arange(4), whole_block=until % STEPS == 0)[1] == []


def told(ranks: int, **of: Callable[[int], tuple[int, ...]]) -> dict[int, Communication]:
    sends, receives = of["sends"], of.get("receives", of["sends"])
    return {rank: Communication(rank, ranks, sends(rank), receives(rank), ((ranks, 10),)) for rank in range(ranks)}


def test_roles_are_told_by_who_communicates_how() -> None:
    first, second = pipelines(8, 4), {0: 0, 1: 0, 6: 3, 7: 3}
    assert {rank: first.name(rank) for rank in second} == {rank: f"stage {at} of 4" for rank, at in second.items()}
    alike = dict.fromkeys(range(8), "all")
    assert role_names(told(8, sends=lambda _: ())) == alike
    # Keys and values passed round a ring, and everybody to everybody, are no pipelines; one that begins anew is.
    assert role_names(told(8, sends=lambda at: ((at + 1) % 8,), receives=lambda at: ((at - 1) % 8,))) == alike
    assert role_names(told(8, sends=lambda at: tuple({*range(8)} - {at}))) == alike
    again = role_names(told(8, sends=lambda at: ((at + 1) % 8, (at - 1) % 8)))
    assert len(set(again.values())) == 8
    # Groups of other sizes are another program; one call more in a hundred is not.
    mixed = {rank: Communication(rank, 8, groups=((2, 100),) if rank < 4 else ((4, 100),)) for rank in range(8)}
    assert len(set(role_names(mixed).values())) == 2
    mixed = {rank: Communication(rank, 8, groups=((8, 100), *(((2, 1),) if rank < 2 else ()))) for rank in range(8)}
    assert role_names(mixed) == alike


def test_longer_steps_are_told_once() -> None:
    chance, when, told = random.Random(1), When(), []
    for until in range(STEPS, 800, 5):
        base = 1000 if until < 500 else 1300
        steps = np.array([[base * (1 + abs(chance.gauss(0, 0.03))) for _ in range(STEPS)]])
        *_, is_longer = when.look(recent_of(steps), whole_block=until % STEPS == 0)
        if is_longer:
            told.append(until)
            when.accept()
    assert len(told) == 1
    assert 500 <= told[0] <= 530


# Step times.


def test_steps_are_counted_once_in_whatever_order_they_come(tmp_path: Path) -> None:
    rows = np.concatenate([rows_for(rank, range(1, 101)) for rank in range(4)])
    parts = np.array_split(rows, 40)
    random.Random(1).shuffle(parts)
    table, log = StepTable(), StepLog(tmp_path)
    for part in [*parts, *parts[:20]]:
        new = table.unknown(part)
        log.append(new)
        table.add(new)
    assert table.last_common_step == 100
    kept = read_all(tmp_path)
    assert len(kept) == 400
    assert len(np.unique(kept[["rank", "step"]])) == 400
    again = StepTable()
    again.add(StepLog(tmp_path).recover())
    assert not len(again.unknown(rows))
    # Back to a checkpoint: the same numbers later.
    later = rows_for(2, range(90, 95), begin_us=2 * 10**15)
    assert len(again.unknown(later)) == 5
    again.add(later)
    assert again.latest.tolist() == [100, 100, 94, 100]


def test_a_row_that_comes_again_after_more_steps_than_are_remembered_counts_once(tmp_path: Path) -> None:
    """Its answer was lost, and the coordinator had no core for as long as its host took 600 steps."""
    rows, (table, log) = rows_for(0, range(600)), (StepTable(), StepLog(tmp_path))
    for part in [*np.array_split(rows, 30), rows[:20]]:
        log.append(new := table.unknown(part))
        table.add(new)
    (journal,) = tmp_path.glob("*.journal")
    assert journal.stat().st_size == 620 * ROW.itemsize
    assert read_all(tmp_path)["step"].tolist() == list(range(600))
    write_part(tmp_path / "elsewhere.parquet", np.concatenate((rows, rows[:20])))
    assert len(pq.read_table(tmp_path / "elsewhere.parquet")) == 600
    # The same steps of a later attempt are other steps.
    log.append(rows_for(0, range(20), begin_us=2 * 10**15))
    assert len(read_all(tmp_path)) == 620


def test_a_coordinator_killed_between_a_part_and_its_journal_counts_nothing_twice(tmp_path: Path) -> None:
    log = StepLog(tmp_path)
    log.append(rows_for(0, range(10)))
    (journal,) = tmp_path.glob("*.journal")
    from kair_capture.coordinator.step_log import write_part

    write_part(tmp_path / "part-00000001.parquet", read_all(tmp_path))
    assert len(read_all(tmp_path)) == 10
    again = StepLog(tmp_path)
    again.append(rows_for(0, range(10, 15)))
    assert not journal.exists()
    assert read_all(tmp_path)["step"].tolist() == list(range(15))


def test_a_journal_that_is_full_while_the_store_is_away_goes_on_and_counts_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_log, "ROWS_A_PART", 10)
    folder, away = tmp_path / "steps", tmp_path / "away"
    log = StepLog(folder)
    folder.rename(away)
    # What is open stays open: these rows are written, though no next journal can be made.
    log.append(rows_for(0, range(12)))
    away.rename(folder)
    log.append(rows_for(0, range(12, 14)))
    log.append(rows_for(0, range(14, 16)))
    log.pack()
    assert len(list(folder.glob("*.parquet"))) == 1
    assert read_all(folder)["step"].tolist() == list(range(16))


def test_a_rank_that_is_heard_for_the_first_time_late_is_no_return_to_a_checkpoint() -> None:
    table, hosts = StepTable(), Hosts()
    watching = Watching(table, hosts, Sampler(Budget(0.01)), Roles())
    for first in range(0, 240, 20):
        for rank in range(4):
            table.add(rows_for(rank, range(first, first + 20), self_us=900 if rank == 2 else 700))
        watching.turn(0.0)
    table.add(rows_for(4, range(200), self_us=700))
    watching.turn(0.0)
    assert [(alert.kind, alert.ranks, alert.over) for alert in watching.alerts] == [("slow_rank", (2,), False)]


@pytest.mark.parametrize(("sleep_us", "delay_us", "noticed_as"), [(0, 8000, [2]), (40_000, 0, [])])
def test_who_computes_more_is_noticed_among_ranks_that_wait_for_cores(
    sleep_us: int, delay_us: int, noticed_as: list[int]
) -> None:
    table, chance = StepTable(), np.random.default_rng(4)
    watching = Watching(table, Hosts(), Sampler(Budget(0.01)), Roles())
    for first in range(0, 300, 20):
        for rank in range(4):
            rows = rows_for(rank, range(first, first + 20), step_us=100_000)
            cpu = 2000 * (1.25 if rank == 2 and first >= 160 else 1) * (1 + chance.normal(0, 0.01, 20))
            # Waiting for a core takes as long as it likes, other than a device's work.
            delay = chance.exponential(delay_us, 20) if delay_us else np.zeros(20)
            rows["cpu_us"], rows["delay_us"] = cpu, delay
            rows["self_us"] = cpu + delay + sleep_us
            table.add(rows)
        watching.turn(0.0)
    assert sorted(watching.slow) == noticed_as


def test_cpu_time_that_stands_for_many_steps_is_one_measurement() -> None:
    table, chance = StepTable(), np.random.default_rng(1)
    watching = Watching(table, Hosts(), Sampler(Budget(0.01)), Roles())
    for first in range(0, 640, 16):
        for rank in range(3):
            rows = rows_for(rank, range(first, first + 16), step_us=20_000, self_us=3500)
            rows["self_us"] += chance.exponential(3000, 16).astype(np.uint32)
            rows["delay_us"] = rows["self_us"] - 2500
            # Two measurements in a row are longer.
            rows["cpu_us"] = 1500 * (1.3 if rank == 2 and first in (480, 496) else 1 + chance.normal(0, 0.03))
            rows["flags"][1:] = int(StepFlag.THINNED)
            table.add(rows)
        watching.turn(0.0)
    assert not watching.alerts


# The store.


def delivered(places: JobPlaces, work: Path, host: str, ranks: range, first: int, *, later_s: float = 0.0) -> Path:
    """A fragment as an agent leaves it in the store."""
    made = fragment_of(work, ranks, host=host, first=first, later_s=later_s)
    target = places.delivered / f"host={host}" / named(made, host, first, first + 3, KEY).text
    target.parent.mkdir(parents=True, exist_ok=True)
    made.rename(target)
    return target


def test_what_agents_deliver_becomes_a_job_that_can_be_read_at_any_time(tmp_path: Path) -> None:
    places, work = JobPlaces(tmp_path / "store", "job"), tmp_path / "work"
    committer = Committer(places, KEY)
    assert committer.round() == Committed()
    one = delivered(places, work, "node-1", range(2), 5)
    copy = one.with_name(named(one, "node-1", 5, 8, KEY).text)
    shutil.copy(one, copy)  # a second delivery of the same steps
    stranger = one.with_name(one.name.replace(one.name[-40:-8], "0" * 32))
    shutil.copy(one, stranger)
    no_file = one.with_name(named(one, "node-1", 5, 8, KEY).text)
    no_file.mkdir()
    done = committer.round()
    assert [window[:2] for window in done.windows] == [(5, 8)]
    assert (done.refused, done.duplicates) == (2, 1)
    trace = open_job_folder(places.folder)
    assert (trace.job.ranks, trace.job.steps) == ((0, 1), (5, 6, 7, 8))
    before = triage(trace).verdict
    for first in (20, 30):
        delivered(places, work, "node-1", range(2), first)
    seen = state_of(places.folder)
    assert len(committer.round().windows) == 2
    assert state_of(places.folder) != seen  # who follows the job reads it again
    assert open_job_folder(places.folder).job.steps == (*range(5, 9), *range(20, 24), *range(30, 34))
    assert committer.compact(least=2)
    committer.tidy()
    assert one.exists()  # `trace` still reads it
    compacted = open_job_folder(places.folder)
    assert compacted.job.operations == 3 * trace.job.operations
    assert len(compacted.fragments) == 1
    assert not any(warning.code == "unreadable_file" for warning in compacted.job.warnings)
    assert triage(compacted.select((5, 6, 7, 8))).verdict == before
    del trace
    committer.tidy()
    assert list(places.delivered.glob("host=*/*")) == [no_file]
    assert committer.round() == Committed()
    no_file.rmdir()
    assert len(open_job_folder(places.folder).job.steps) == 12
    assert Committer(places, KEY).round() == Committed()


@pytest.mark.parametrize("at_once", [True, False])
def test_steps_that_are_trained_again_are_shown_as_they_were_last(tmp_path: Path, *, at_once: bool) -> None:
    """Three ranks went back to a checkpoint, and go on as two: what was sampled of all three counts no more."""
    places, work = JobPlaces(tmp_path / "store", "job"), tmp_path / "work"
    committer = Committer(places, KEY)
    delivered(places, work, "node-1", range(2), 5)
    delivered(places, work, "node-2", range(2, 3), 5)
    kept = delivered(places, work, "node-1", range(2), 1)
    if not at_once:
        committer.round()
    again = delivered(places, work, "node-1", range(2), 7, later_s=60)
    committer.round()
    job = open_job_folder(places.folder).job
    assert (job.ranks, job.steps) == ((0, 1), (1, 2, 3, 4, 7, 8, 9, 10))
    committer.tidy()
    assert sorted(places.delivered.glob("host=*/*")) == sorted([kept, again])
    delivered(places, work, "node-2", range(2, 3), 5)  # an agent tells of the earlier attempt once more
    assert committer.round() == Committed(duplicates=1)


def test_sums_of_scopes_are_kept_once_and_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kair_capture.coordinator.step_log.JOIN_FROM", 3)
    places, log = JobPlaces(tmp_path / "store", "job"), ScopeLog(JobPlaces(tmp_path / "store", "job"), KEY)
    spool = Spool(tmp_path / "spool", 1 << 20, places.delivered, "node-1")

    def delivered_sums(step: int) -> None:
        sums = ScopeSums(tmp_path)
        sums.add([ScopeSum(0, step, 10**15 + step, "augment", 70, 2), ScopeSum(1, step, 10**15 + step, "x", 5, 1)])
        sums.deliver(spool, tmp_path, KEY, at_once=True)
        spool.deliver_waiting()

    delivered_sums(1)
    (path,) = places.delivered.glob("host=*/*")
    path.with_name(path.name.replace(path.name[-40:-8], "0" * 32)).write_bytes(path.read_bytes())
    log.round()
    assert log.refused == 1
    for step in (2, 3):
        delivered_sums(step)
        kept = {one.name: one.read_bytes() for one in places.scopes.iterdir()}
        log.round()
    assert [one.name.partition("-")[0] for one in places.scopes.iterdir()] == ["joined"]
    # Killed before what was joined had gone.
    for name, content in kept.items():
        (places.scopes / name).write_bytes(content)
    # Of a bucket that others write to.
    (victim := tmp_path / "store" / "job.json").touch()
    empty = pa.table({}).replace_schema_metadata({b"kair.sources": b"../../job.json\n..\n."})
    pq.write_table(empty, places.scopes / "joined-evil.parquet")
    delivered_sums(4)
    log.round()
    assert victim.exists()
    (places.scopes / "joined-evil.parquet").unlink(missing_ok=True)
    rows = pq.read_table(places.scopes).to_pylist()
    assert sorted((one["step"], one["scope"]) for one in rows) == [
        (step, scope) for step in range(1, 5) for scope in ("augment", "x")
    ]
