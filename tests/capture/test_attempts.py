"""Jobs that are started again, with fewer, more or other ranks: attempts are kept apart, and nothing is blind."""

import json
import random
import shlex
import socket
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import fault
import numpy as np
import pytest
from support.captured import rows_for

from kair_capture.agent.step_rows import Rows
from kair_capture.coordinator.attempts import Attempts
from kair_capture.coordinator.endpoint import Hosts
from kair_capture.coordinator.sampling import Budget, Sampler
from kair_capture.coordinator.step_log import StepLog, attempts_in, read_all
from kair_capture.coordinator.step_table import Roles, StepTable
from kair_capture.coordinator.watching import Watching
from kair_capture.wire import Beat, Host

STEP_US = 10_000
BEGUN_S = 10**9


class Job:
    """What a coordinator does with the rows of a job, on a clock of its own."""

    def __init__(self, folder: Path) -> None:
        self.table, self.hosts, self.attempts, self.log = StepTable(), Hosts(), Attempts(), StepLog(folder)
        self.watching = Watching(self.table, self.hosts, Sampler(Budget(0.01)), Roles())
        self.now = 0.0

    def tell(self, rows: Rows) -> None:
        """Rows of one agent come."""
        new = self.table.unknown(rows)
        self.attempts.label(new)
        self.log.append(new)
        self.table.add(new)

    def turn(self, seconds: float) -> None:
        """Time passes, and agents live."""
        self.now += seconds
        for state in self.hosts:
            state.heard_s = self.now
        self.watching.turn(self.now)

    def alerts(self) -> list[tuple[str, tuple[int, ...], bool]]:
        return [(one.kind, one.ranks, one.over) for one in self.watching.alerts]


def rows_of_attempt(ranks: Iterable[int], steps: int, began_s: int, slow: int | None = None) -> dict[int, Rows]:
    """Rank → its rows, of processes that began then: it trains five seconds later."""
    chance, rows = random.Random(began_s), {}
    for rank in ranks:
        rows[rank] = rows_for(rank, range(steps), step_us=STEP_US, begin_us=(began_s + 5) * 10**6)
        own = 1.7 if rank == slow else 1.0
        rows[rank]["self_us"] = [round(4000 * own * (1 + chance.random() / 50)) for _ in range(steps)]
        rows[rank]["process_s"] = began_s + chance.randrange(2)
    return rows


def trains(job: Job, ranks: Iterable[int], steps: int, began_s: int, slow: int | None = None) -> None:
    """20 steps at a time, whichever rank is heard first."""
    rows, chance = rows_of_attempt(ranks, steps, began_s, slow), random.Random(steps)
    for first in range(0, steps, 20):
        for rank in chance.sample(sorted(rows), len(rows)):
            job.tell(rows[rank][first : first + 20])
            job.turn(0.05)


def test_a_restart_with_fewer_ranks_is_watched_as_any_job(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.hosts.introduce(Host("node-1", 4, (0, 1, 2, 3)), 7, 0.0)
    job.hosts.hear(7, Beat(ranks=4), 0.0)
    trains(job, range(4), 150, BEGUN_S)
    job.hosts.introduce(Host("node-1", 3, (0, 1, 2)), 7, job.now)
    trains(job, range(3), 140, BEGUN_S + 60, slow=1)
    assert job.table.last_common_step == 139
    assert job.table.latest.tolist()[:4] == [139, 139, 139, -1]
    assert job.alerts() == [("slow_rank", (1,), False)]
    (alert,) = job.watching.alerts
    assert alert.step <= 100
    assert alert.excess_us == pytest.approx(2800, rel=0.05)
    assert alert.excess_of_step == pytest.approx(0.28, rel=0.05)
    assert job.hosts.world_size == 3
    job.turn(20)
    assert not job.watching.is_stalled
    job.turn(60)
    assert job.watching.is_stalled


@pytest.mark.slow
def test_20_restarts_are_as_many_attempts_and_nothing_stalls(tmp_path: Path) -> None:
    job, chance = Job(tmp_path), random.Random(3)
    job.hosts.introduce(Host("node-1", 4, (0,)), 7, 0.0)
    job.hosts.hear(7, Beat(ranks=1), 0.0)
    began_s, told = BEGUN_S, {}
    for number in range(1, 22):
        ranks = sorted(chance.sample(range(12), chance.randint(1, 12)))
        steps = chance.choice([1, 19, 60, 150])
        trains(job, ranks, steps, began_s)
        told[number] = (ranks, steps)
        assert job.attempts.number == job.table.attempt == number
        assert np.flatnonzero(job.table.latest >= 0).tolist() == ranks
        assert job.table.last_common_step == steps - 1
        began_s += 5 + steps * STEP_US // 10**6 + chance.randint(3, 90)
        job.turn(chance.choice([1, 20]))
        assert not job.watching.is_stalled
        if chance.random() < 0.3:
            # The coordinator is killed: the next one learns from what is written down.
            job.attempts = Attempts()
            job.attempts.learn(job.log.recover())
    kept = read_all(tmp_path)
    for number, (ranks, steps) in told.items():
        of = kept[kept["attempt"] == number]
        assert sorted(set(of["rank"].tolist())) == ranks
        assert len(of) == len(ranks) * steps


def test_what_is_told_late_is_of_its_own_attempt(tmp_path: Path) -> None:
    """One host was cut off for two attempts, and then tells both."""
    job = Job(tmp_path)
    late = []
    for number in range(2):
        rows = rows_of_attempt(range(4), 40, BEGUN_S + 60 * number)
        for rank in (0, 1):
            job.tell(rows[rank])
        late += [rows[2], rows[3]]
    for rows_late in late:
        job.tell(rows_late)
    kept = read_all(tmp_path)
    assert [len(kept[(kept["attempt"] == number) & (kept["rank"] == 2)]) for number in (1, 2)] == [40, 40]
    assert job.attempts.number == 2
    assert job.table.last_common_step == 39


def test_ranks_that_live_on_while_one_is_replaced_take_part_in_the_next_attempt(tmp_path: Path) -> None:
    job = Job(tmp_path)
    rows = rows_of_attempt(range(4), 1200, BEGUN_S)
    for rank in range(4):
        job.tell(rows[rank][:600])
    replaced = rows_of_attempt([3], 100, BEGUN_S + 20)[3]
    replaced["step"] += 600
    job.tell(replaced)
    for rank in range(3):
        job.tell(rows[rank][600:])
    assert job.attempts.number == 2
    # They were at step 1,500 when the other process began: none of theirs is of its attempt yet.
    assert np.flatnonzero(job.table.latest >= 0).tolist() == [3]
    later = rows_of_attempt(range(3), 1700, BEGUN_S)
    for rank in range(3):
        job.tell(later[rank][1200:])
    assert np.flatnonzero(job.table.latest >= 0).tolist() == [0, 1, 2, 3]


def test_a_rank_that_died_and_that_the_others_go_on_without_holds_nobody_up(tmp_path: Path) -> None:
    job = Job(tmp_path)
    rows = rows_of_attempt(range(4), 200, BEGUN_S)
    for rank in range(4):
        job.tell(rows[rank][:100])
    for rank in range(3):
        job.tell(rows[rank][100:110])
    job.table.forget_left_behind(np.array([0, 1, 2]), 20)
    assert job.table.last_common_step == 99  # the others may be waiting for it
    for rank in range(3):
        job.tell(rows[rank][110:])
    job.table.forget_left_behind(np.array([0, 1, 2]), 20)
    assert job.table.last_common_step == 199


@pytest.mark.live
def test_a_real_job_that_goes_on_with_fewer_ranks_is_watched_as_before(tmp_path: Path) -> None:
    def job(ranks: int, steps: int, *more: str) -> list[str]:
        simulated = [str(fault.HERE / "simulated_job.py"), "--ranks", f"0-{ranks - 1}", "--world", str(ranks)]
        return [sys.executable, *simulated, "--steps", str(steps), "--step-ms", "40", *more]

    both = shlex.join(job(4, 60)) + " && " + shlex.join(job(3, 160, "--slow", "1:0.7:0"))
    places = fault.watched(["sh", "-c", both], tmp_path)
    status = json.loads(places.status.read_bytes())
    assert (status["attempt"], status["world_size"], status["step"]) == (2, 3, 159)
    assert [one["rank"] for one in status["ranks"]] == [0, 1, 2]
    assert [(one["kind"], one["ranks"]) for one in status["alerts"] if not one["over"]] == [("slow_rank", [1])]
    kept = attempts_in(read_all(places.steps))
    assert [(one.number, one.ranks, one.last_step) for one in kept] == [(1, (0, 1, 2, 3), 59), (2, (0, 1, 2), 159)]


needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="training needs torch: pip install 'kair[record]'")


@pytest.mark.live
@needs_torch
def test_nothing_grows_over_real_restarts_and_no_attempt_is_missing(tmp_path: Path) -> None:
    """The same as `validation/restarts.py`, which goes on for longer."""
    sys.path.insert(0, str(fault.ROOT / "validation"))
    import restarts

    looks, attempts = restarts.run(tmp_path, 2, 20)
    assert attempts == dict.fromkeys(range(1, 4), 19)
    # In the first attempt the agent may still be opening its files.
    assert looks[-1].grown(looks[1]) == []


@pytest.mark.live
@needs_torch
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_all_steps_are_told_however_ranks_are_started(tmp_path: Path, method: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    script = str(Path(__file__).parents[1] / "support" / "started_job.py")
    rows = read_all(fault.watched([sys.executable, script, method, port, "60"], tmp_path).steps)
    assert [(int(rank), int(step)) for step, rank in zip(rows["step"], rows["rank"], strict=True)] == [
        (rank, step) for step in range(60) for rank in range(2)
    ]
