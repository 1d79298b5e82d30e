"""`kair confirm` at the coordinator, with a job in simulated time: what it finds, and what ends the delays."""

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kair_capture.agent.step_rows import ROW
from kair_capture.coordinator.confirming import Confirming
from kair_capture.coordinator.endpoint import Hosts
from kair_capture.coordinator.sampling import Budget, Sampler
from kair_capture.coordinator.step_table import Roles, StepTable
from kair_capture.coordinator.watching import Watching
from kair_capture.delays import LONGEST_LEASE, Order, TakesDelays, dose_of, from_json
from kair_capture.places import JobPlaces
from kair_capture.ring import UNFIT, StepFlag
from kair_capture.wire import Beat, Communication, Delays, Host, Values
from kair_engine.store.confirmed import latest_confirmed, latest_run

STEP_US = 100_000
BEGIN_US = 10**15
LATE = 3
"""Steps after which ranks hear of an order."""
RANKS = 4


@dataclass
class Watched:
    """What a coordinator knows of the job's speed, without the time that it takes to learn it."""

    roles: Roles
    table: StepTable
    step_us: float = STEP_US * 1.02
    slow: frozenset[int] = frozenset()
    excess_us: dict[int, float] = field(default_factory=dict)
    alerts: tuple[()] = ()
    is_stalled: bool = False
    holds_off: bool = False

    def turn(self, _: float) -> None:
        """Nothing is looked at."""

    def first_step(self) -> int:
        return int(self.table.latest.max()) + 6


class Job:
    """Four ranks that wait for one another after each step; their coordinator hears of each step at once."""

    def __init__(self, folder: Path, *, slow: int | None = None, noise: float = 0.01, watches: bool = False) -> None:
        self.slow, self.excess, self.noise = slow, 0.2, noise
        self.table, self.hosts, self.roles = StepTable(), Hosts(), Roles()
        self.watching: Any = Watching(self.table, self.hosts, Sampler(Budget(0.01)), self.roles)
        if not watches:
            found = frozenset() if slow is None else frozenset({slow})
            excess = {rank: self.excess * STEP_US if rank == slow else 0.0 for rank in range(RANKS)}
            self.watching = Watched(self.roles, self.table, slow=found, excess_us=excess)
        self.said: list[str] = []
        self.places = JobPlaces(folder, "job")
        self.places.folder.mkdir(parents=True)
        self.confirming = Confirming(
            self.places, self.table, self.hosts, self.watching, allowed=True, say=self.said.append
        )
        self.hosts.introduce(Host("node-1", RANKS, tuple(range(RANKS))), 1, 0.0)
        self.hosts.hear(1, Beat(ranks=RANKS), 0.0)
        self.chance = np.random.default_rng(3)
        self.number, self.end_us, self.attempt = 0, float(BEGIN_US), 1
        self.heard: list[Delays] = []
        self.orders: list[Order] = []
        self.seeds: set[int] = set()
        self.agent_lives = self.coordinator_lives = True
        self.doses: dict[int, list[float]] = {}
        """Step → each rank's delay, µs."""
        self.flags: dict[int, int] = {}
        self.hiccup_us, self.takes = 0.0, 1.0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        number = self.number
        self._hear()
        work = STEP_US * (1 + self.noise * self.chance.standard_normal(RANKS)) + self.hiccup_us
        if self.slow is not None:
            work[self.slow] += self.excess * STEP_US
        order = next((one for one in reversed(self.orders) if one.first_step <= number <= one.last_step), None)
        doses = [self.takes * dose_of(order, number, rank) / 1e3 if order else 0.0 for rank in range(RANKS)]
        self.doses[number] = doses
        own = work + doses
        length = float(own.max()) + 2000
        rows = np.zeros(RANKS, ROW)
        rows["rank"], rows["step"], rows["attempt"] = range(RANKS), number, self.attempt
        rows["begin_us"], rows["step_us"] = round(self.end_us), round(length)
        rows["self_us"], rows["inserted_us"] = own.round(), np.round(doses)
        self.end_us += length
        self.number += 1
        if self.coordinator_lives:
            self.confirming.mark(rows)
            self.flags[number] = int(rows["flags"][0])
            self.table.add(rows)
            self.watching.turn(0.0)
            self.confirming.turn()

    def _hear(self) -> None:
        """What the agent heard some steps ago reaches the ranks."""
        self.heard.append(self.confirming.order())
        if not self.agent_lives or len(self.heard) <= LATE:
            return
        text = self.heard[-1 - LATE].order
        if not text:
            self.orders.clear()
        elif not self.orders or from_json(text) != self.orders[-1]:
            self.orders = [*self.orders[-1:], from_json(text)]
            self.seeds.add(self.orders[-1].seed)

    def ask(self, **asked: str) -> Values:
        return self.confirming.ask({"do": "start", "budget": "5%", **asked})

    def last_delayed(self) -> int:
        return max((step for step, doses in self.doses.items() if any(doses)), default=-1)


@pytest.fixture(autouse=True)
def drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same draws in every run of a test."""
    monkeypatch.setattr("kair_capture.coordinator.confirming.secrets.randbits", random.Random(5).getrandbits)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    found = Job(tmp_path, slow=2)
    found.run(200)
    return found


def begun(job: Job, **asked: str) -> None:
    answer = job.ask(**asked)
    assert answer.why_not == ""
    job.run(30)
    assert job.last_delayed() > 200


def test_the_slow_rank_is_confirmed_and_the_answer_is_kept_in_the_job(job: Job) -> None:
    assert job.ask().why_not == ""  # without a name it is the one that stands out
    job.run(400)
    found = latest_confirmed(job.places.confirm)
    assert found is not None
    assert (found.verdict, found.accused, found.held_up_by, found.state) == ("confirmed", (2,), (2,), "over")
    assert found.saving_us == pytest.approx(5000, rel=0.3)
    assert found.excess_us == pytest.approx(20_000, rel=0.1)
    assert found.ended_because == ""
    assert not job.confirming.is_on
    assert latest_confirmed(job.places.confirm, 2) == found
    assert latest_confirmed(job.places.confirm, 1) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "steps", "answer"),
    [
        ({"ranks": "0", "dose_us": "3000"}, 420, ("withdrawn", (0,), ())),
        ({"worth": "1", "steps": "300"}, 900, ("confirmed", (2,), (2,))),
        ({"ranks": "all"}, 450, ("confirmed", (), (2,))),
    ],
    ids=["another rank", "what a fix is worth", "nobody accused"],
)
def test_what_is_asked_otherwise(job: Job, asked: dict[str, str], steps: int, answer: tuple[object, ...]) -> None:
    assert job.ask(**asked).why_not == ""
    job.run(steps)
    found = latest_confirmed(job.places.confirm)
    assert found is not None
    assert (found.verdict, found.accused, found.held_up_by) == answer
    assert (found.worth is not None) == ("worth" in asked)
    if found.worth is not None:
        assert found.worth.worth_us == pytest.approx(18_500, rel=0.15)


def test_a_healthy_job_raises_no_alert_while_ranks_are_delayed_and_its_delayed_steps_are_marked(tmp_path: Path) -> None:
    job = Job(tmp_path, watches=True)
    job.run(200)
    assert job.ask(ranks="1", dose_us="5000", steps="150").why_not == ""
    job.run(200)
    assert not job.watching.alerts
    delayed = [step for step, doses in job.doses.items() if any(doses)]
    assert len(delayed) > 10
    assert all(job.flags[step] & job.flags[step + 1] & StepFlag.DELAYED & UNFIT for step in delayed)
    assert not any(flags for step, flags in job.flags.items() if step < 200)


def test_delays_never_cost_more_than_the_budget(tmp_path: Path) -> None:
    job = Job(tmp_path, slow=2, noise=0.02)
    job.run(200)
    assert job.confirming.ask({"do": "start", "budget": "0.3%", "ranks": "1", "dose_us": "4000"}).why_not == ""
    paid = 0.0
    for _ in range(400):
        job.step()
        # At most the largest dose of each step is paid.
        paid += max(job.doses[job.number - 1])
        assert paid * 0.1 <= 0.003 * STEP_US * 1.25 * job.number  # some of it is covered by the slow rank
        account = job.confirming._account if job.confirming._now is None else job.confirming._now.account
        assert account.held_us + account.spent_us <= account.allowed_us * (1 + 1e-9)
    assert paid > 0


def test_a_plan_says_what_delays_can_cost_and_delays_nobody(job: Job) -> None:
    asked = {"do": "plan", "ranks": "1", "dose_us": "3000", "budget": "1%", "steps": "100"}
    terms = job.confirming.ask(asked).values
    assert (terms["state"], terms["ranks"], terms["dose_us"], terms["steps"]) == ("planned", "1", "3000", "100")
    assert 55 <= int(terms["needed"]) <= 100
    assert int(terms["most_us"]) == pytest.approx(min(0.01 * STEP_US * 1.02 * 299, 100 * 3000), rel=0.01)
    assert not job.confirming.is_on
    assert latest_run(job.places.confirm) is None
    assert "rank 9 is not among" in job.confirming.ask(asked | {"ranks": "9"}).why_not


def test_the_record_is_there_from_the_begin_on_and_tells_what_is_known(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kair_capture.coordinator.confirming._WRITE_EVERY_S", 0.0)
    assert job.ask(ranks="1", dose_us="3000").why_not == ""
    begun = latest_run(job.places.confirm)
    assert begun is not None
    assert (begun.state, begun.verdict, begun.effects, begun.ranks, begun.steps_allowed) == (
        "running",
        "open",
        (),
        4,
        400,
    )
    job.run(8)
    before = latest_run(job.places.confirm)
    assert before is not None and begun.steps_needed is not None
    assert (before.steps_needed, before.dose_us) == (begun.steps_needed - 8, 3000)
    job.run(30)
    later = latest_run(job.places.confirm)
    assert later is not None
    assert [row.arm for row in later.effects] == ["accused", "others", "all"]
    assert later.last_step == job.number - 1
    assert latest_confirmed(job.places.confirm) is None
    assert job.confirming.ask({"do": "stop"}).why_not == ""
    assert (stopped := latest_run(job.places.confirm)) is not None
    assert (stopped.state, stopped.ended_because) == ("over", "stopped by hand")


@pytest.mark.parametrize("gone", ["agent", "coordinator"])
def test_whoever_is_gone_the_delays_end_within_a_lease(job: Job, gone: str) -> None:
    begun(job, ranks="1", dose_us="3000")
    setattr(job, f"{gone}_lives", False)
    at = job.number
    job.run(200)
    assert job.last_delayed() < at + 2 * LONGEST_LEASE
    assert job.last_delayed() <= max(one.last_step for one in job.orders)
    assert all(one.last_step - one.first_step < LONGEST_LEASE for one in job.orders)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("attempt", "restarted"),
        ("world size", "world size"),
        ("stalled", "no step ends"),
        ("rank", "rank 3 is not heard"),
        ("by hand", "by hand"),
    ],
)
def test_what_ends_the_delays_at_once(job: Job, what: str, told: str) -> None:
    begun(job, ranks="1", dose_us="3000")
    if what == "attempt":
        job.attempt, job.number = 2, 0
    elif what == "world size":
        job.hosts.introduce(Host("node-1", RANKS + 1, tuple(range(RANKS))), 1, 0.0)
    elif what == "stalled":
        job.watching.is_stalled = True
        job.confirming.turn()
    elif what == "rank":
        job.hosts.introduce(Host("node-1", RANKS, (0, 1, 2)), 1, 0.0)
        job.hosts.hear(1, Beat(ranks=3), 0.0)
    else:
        assert job.confirming.ask({"do": "stop"}).why_not == ""
    at = job.number
    job.run(LATE + 4)
    assert told in job.said[-1]
    assert not job.confirming.is_on
    job.doses.clear()
    job.run(100)
    assert job.last_delayed() == -1 or job.last_delayed() <= at + LATE + 4
    assert job.confirming.order().order == b""


def test_delays_that_take_far_longer_than_ordered_end_it(job: Job) -> None:
    job.takes = 1.8
    begun(job, ranks="1", dose_us="3000")
    job.run(60)
    assert "delays take 1.8 times as long as ordered here: nothing can be dosed" in job.said[-1]


def test_after_a_step_that_is_far_too_long_nobody_is_delayed_for_a_while(job: Job) -> None:
    begun(job, ranks="1", dose_us="3000")
    job.hiccup_us = 5.0 * STEP_US
    job.step()
    job.hiccup_us = 0.0
    at = job.number
    job.run(20)
    assert job.last_delayed() <= at + LATE
    job.run(60)
    assert job.last_delayed() > at + 20
    assert len(job.seeds) == 2


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"place": "in_backward"}, "cannot be delayed in backward yet"),
        ({"place": "nowhere"}, "there is no place"),
        ({"ranks": "9"}, "rank 9 is not among"),
        ({"ranks": "0,1,2,3"}, "not all"),
        ({"ranks": "x"}, "must be numbers"),
        ({"dose_us": "90000"}, "5% of the step"),
        ({"dose_us": "nan"}, "5% of the step"),
        ({"budget": "50%"}, "budget"),
        ({"steps": "0"}, "--steps"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(job: Job, asked: dict[str, str], told: str) -> None:
    answer = job.ask(**asked)
    assert told in answer.why_not
    assert "\n" not in answer.why_not
    assert not job.confirming.is_on


def test_without_being_allowed_nobody_is_delayed_and_it_says_what_to_do(job: Job) -> None:
    job.confirming._allowed = False
    assert "--allow-delays" in job.ask().why_not
    for rank in range(RANKS):
        job.roles.add(Communication(rank, RANKS, delays=TakesDelays.YES))
    assert job.ask().why_not == ""
    job.confirming.ask({"do": "stop"})
    job.roles.add(Communication(3, RANKS, delays=TakesDelays.NO))
    assert "rank 3 takes no delays" in job.ask().why_not


def test_steps_that_vary_too_much_are_refused_with_the_steps_it_would_take(tmp_path: Path) -> None:
    job = Job(tmp_path, noise=0.01)
    job.run(200)
    job.table._held["step_us"][:, :] *= np.random.default_rng(1).uniform(0.5, 1.5, (1, 256))
    assert "would take about" in job.ask(ranks="1").why_not


def test_a_young_job_and_a_second_confirm_are_refused(tmp_path: Path, job: Job) -> None:
    young = Job(tmp_path / "young")
    young.run(40)
    assert "has not reported 90 steps yet" in young.ask().why_not
    assert job.ask().why_not == ""
    assert "runs already" in job.ask().why_not
    assert job.confirming.ask({"do": "look"}).values["state"] == "running"
    assert json.loads(job.confirming.order().order or "null") is None or job.confirming.number > 0
