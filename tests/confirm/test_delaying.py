"""A rank under an order: delayed in the steps that the order says, once each, and in no others."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kair_capture.agent.ring_reader import RingReader
from kair_capture.cupti import PlainJob
from kair_capture.delays import DEFAULT_SHARES, FIRST_STEP, Arm, Mode, Order, Place, arm_of, dose_of, renewed, to_json
from kair_capture.job.delaying import Delays
from kair_capture.job.recorder import Recorder, ThreadRings
from kair_capture.job.session import Session
from kair_capture.job.windows import ControlWords
from kair_capture.ring import Kind, StepFlag
from kair_capture.settings import settings_of

RANK = 1
ORDER = Order(9, 7, 100, 163, Place.BEFORE_FORWARD, Mode.ARMS, (4_000_000,), (RANK,), DEFAULT_SHARES[Mode.ARMS])
STEP_NS = 100_000_000


@dataclass
class Rank:
    """One that steps; what an agent would leave is put there by `tell`."""

    folder: Path
    sleep: Callable[[float], None] | None = None

    def __post_init__(self) -> None:
        self.words = ControlWords(self.folder / "rank-1.control")
        recorder = Recorder(ThreadRings(self.folder, RANK, 4096), self.folder / "names")
        self.slept: list[float] = []
        self.delays = Delays(
            RANK, self.words, self.folder / "delays.json", recorder, sleep=self.sleep or self.slept.append
        )

    def tell(self, number: int, text: str | bytes = "") -> None:
        (self.folder / "delays.json").write_bytes(text if isinstance(text, bytes) else text.encode())
        self.words.tell_delays(number)

    def step(
        self, number: int, *, length_ns: int = STEP_NS, is_free: bool = True, forwards: int = 1
    ) -> tuple[int, bool]:
        """The delay in the step that begins, ns, and whether it is marked."""
        is_marked = self.delays.between(number, length_ns, forwards, is_free=is_free)
        before = len(self.slept)
        for place in (
            Place.AFTER_INPUT,
            *[Place.BEFORE_FORWARD, Place.EACH_MICRO_BATCH, Place.BEFORE_BACKWARD] * forwards,
        ):
            self.delays.insert(place)
        self.delays.insert(Place.BEFORE_OPTIMIZER)
        return round(sum(self.slept[before:]) * 1e9), is_marked


@pytest.mark.parametrize(
    "place", [Place.AFTER_INPUT, Place.BEFORE_FORWARD, Place.BEFORE_BACKWARD, Place.BEFORE_OPTIMIZER]
)
def test_a_rank_is_delayed_once_in_the_steps_of_the_order_and_in_no_others(tmp_path: Path, place: Place) -> None:
    rank, order = Rank(tmp_path), replace(ORDER, place=place)
    for number in range(90):
        assert rank.step(number) == (0, False)
    rank.tell(9, to_json(order))
    for number in range(90, 200):
        is_marked = any(arm_of(order, step) is not Arm.NONE for step in (number, number - 1))
        assert rank.step(number, forwards=2) == (dose_of(order, number, RANK), is_marked)
    assert sum(rank.slept) > 0


def test_the_dose_is_divided_among_micro_batches(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    rank.tell(9, to_json(order := replace(ORDER, place=Place.EACH_MICRO_BATCH)))
    for number in range(95, 170):
        assert rank.step(number, forwards=4)[0] == dose_of(order, number, RANK)
    assert set(rank.slept) == {0.001}


def test_a_renewed_order_goes_on_without_a_gap_and_one_that_is_not_ends(tmp_path: Path) -> None:
    rank, following = Rank(tmp_path), renewed(ORDER)
    rank.tell(9, to_json(ORDER))
    for number in range(90, 300):
        if number == 150:
            rank.tell(10, to_json(following))
        order = ORDER if number <= ORDER.last_step else following
        assert rank.step(number)[0] == dose_of(order, number, RANK)


def test_an_end_is_an_end_at_once(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    rank.tell(9, to_json(replace(ORDER, shares=(0.4, 0.6, 0.0, 0.0))))
    assert any(rank.step(number)[0] for number in range(95, 120))
    rank.tell(10)
    rank.step(120)
    assert [rank.step(number) for number in range(121, 180)] == [(0, False)] * 59


def test_a_step_that_takes_three_times_as_long_ends_the_order_on_that_rank_but_not_the_next_one(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    rank.tell(9, to_json(ORDER))
    for number in range(90, 110):
        rank.step(number)
    assert rank.step(110, length_ns=4 * STEP_NS)[0] == 0
    rank.tell(10, to_json(renewed(ORDER)))
    assert not any(rank.step(number)[0] for number in range(111, 230))
    other = replace(ORDER, generation=11, seed=8, first_step=230, last_step=293)
    rank.tell(11, to_json(other))
    assert [rank.step(number)[0] for number in range(230, 294)] == [
        dose_of(other, number, RANK) for number in range(230, 294)
    ]


@pytest.mark.parametrize("what", ["first steps", "a window"])
def test_there_are_steps_in_which_no_rank_is_delayed(tmp_path: Path, what: str) -> None:
    rank = Rank(tmp_path)
    begin = 0 if what == "first steps" else 100
    rank.tell(9, to_json(replace(ORDER, first_step=begin, last_step=begin + 49)))
    assert begin + 49 < FIRST_STEP or begin
    assert not any(rank.step(step, is_free=what != "a window")[0] for step in range(begin, begin + 50))


def test_what_was_ordered_of_a_process_before_is_not_followed(tmp_path: Path) -> None:
    Rank(tmp_path).tell(9, to_json(ORDER))
    rank = Rank(tmp_path)
    assert not any(rank.step(number)[0] for number in range(90, 170))


def test_an_order_that_is_told_again_or_is_older_is_not_followed(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    rank.tell(9, to_json(ORDER))
    rank.step(99)
    rank.tell(10)
    rank.step(100)
    for generation in (9, 8):
        rank.tell(generation, to_json(replace(ORDER, generation=generation)))
        assert not any(rank.step(number)[0] for number in range(101, 164))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200) | st.sampled_from([to_json(ORDER).encode()[:-1], b"[" * 70_000, b"x" * (1 << 17)]))
def test_whatever_stands_in_the_file_nothing_is_raised_and_nobody_is_delayed(tmp_path: Path, content: bytes) -> None:
    rank = Rank(tmp_path)
    rank.tell(rank.words.delays + 1, content)
    assert not any(rank.step(number)[0] for number in range(90, 130))


def test_a_delay_that_fails_ends_the_delays_and_nothing_else(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def fail(_: float) -> None:
        raise RuntimeError("no clock")

    rank = Rank(tmp_path, sleep=fail)
    rank.tell(9, to_json(ORDER))
    for number in range(90, 170):
        rank.step(number)
    said = capfd.readouterr().err
    assert said.count("no clock") == 1
    assert "the rest of capture goes on" in said


def test_a_sleep_is_on_the_thread_that_asks(tmp_path: Path) -> None:
    seen: set[int] = set()
    rank = Rank(tmp_path, sleep=lambda _: seen.add(threading.get_ident()))
    rank.tell(9, to_json(ORDER))
    for number in range(90, 170):
        rank.step(number)
    assert seen == {threading.get_ident()}


@pytest.mark.parametrize("allowed", ["0", "1"])
def test_a_job_may_forbid_its_delays_and_others_steps_are_marked_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: str
) -> None:
    ticks = count(10**9, 10**6)
    monkeypatch.setattr("kair_capture.job.session.clock", lambda: next(ticks))
    environment = {"KAIR_RUN_DIR": str(tmp_path), "RANK": "1", "KAIR_CAPTURE_DELAYS": allowed}
    session = Session(settings_of(environment), PlainJob(), begin=5)
    words, order = ControlWords(tmp_path / "rank-1.control"), replace(ORDER, first_step=60, last_step=100)
    (tmp_path / "delays.json").write_text(to_json(order))
    words.tell_delays(9)
    due = []
    for _ in range(110):
        session.steps.step()
        due.append(session.delays is not None)
    session.close()
    records = RingReader(next(tmp_path.glob("*.ring"))).peek()
    steps = records[records["kind"] == Kind.STEP]
    marked = steps["step"][(steps["extra"] & StepFlag.DELAYED) > 0].tolist()
    assert marked == [step for step in range(110) if max(arm_of(order, step), arm_of(order, step - 1)) != Arm.NONE]
    assert [step + 1 for step, is_due in enumerate(due) if is_due] == [
        step for step in range(1, 111) if allowed == "1" and dose_of(order, step, RANK)
    ]
