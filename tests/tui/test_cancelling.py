"""A question that is waited for can be cancelled: it says so, its thread ends, and asked again it is answered."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from support.answers import recorded
from support.cli_samples import store_variables
from support.patience import wait_until
from support.places import SAMPLES
from support.screen_text import answered, front, opened, played, screen_lines, screen_text, until

from kair.app.jobs import JobSource
from kair.app.question import Given, Question, answering
from kair_engine.cancelling import Cancelled, checkpoint
from kair_tui.tui.frame.app import KairApp
from kair_tui.tui.screens.blame import BlameScreen
from kair_tui.tui.screens.overview import OverviewScreen
from kair_tui.tui.screens.whatif import WhatifScreen
from kair_tui.tui.session import Session

SLOW = SAMPLES / "slow_operator"

pytestmark = pytest.mark.usefixtures("own_places")


class Long:
    """Lets one command compute, from one checkpoint to the next, until the test has it go on."""

    def __init__(self, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = 0
        self.goes_on = Event()
        find = answering

        def long(wanted: str) -> Callable[..., Any]:
            real = find(wanted)

            @wraps(real)
            def answer(given: Given, **arguments: Any) -> Any:  # noqa: ANN401
                if wanted == command:
                    self.begun += 1
                    while not self.goes_on.wait(0.005):
                        checkpoint()
                return real(given, **arguments)

            return answer

        monkeypatch.setattr("kair.app.question.answering", long)


@pytest.fixture
def long(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Long]:
    """A command that takes long, by default blame, which no screen asks ahead."""
    made = Long(getattr(request, "param", "blame"), monkeypatch)
    yield made
    made.goes_on.set()


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    store_variables(monkeypatch, tmp_path)
    return Session(recorded(SLOW), JobSource(str(SLOW), SLOW, stored=False))


def is_idle(app: KairApp) -> bool:
    return not app.is_busy


@pytest.mark.slow
@played
async def test_a_key_cancels_and_asks_again(long: Long) -> None:
    async with opened(str(SLOW), size=(120, 30)) as (app, pilot):
        session = app.session
        assert session is not None
        await pilot.press("3")
        await until(pilot, lambda: bool(long.begun))
        screen = front(app, BlameScreen)
        (question,) = (one for one in screen.questions().values() if one.command == "blame")
        await pilot.press("C")
        assert re.search(r"cancelled kair blame after \d+ s: C asks again", screen_text(app))
        await until(pilot, lambda: "C ask again" in screen_lines(app)[-1])
        # Nothing is computed any more, and nothing is known.
        await until(pilot, partial(is_idle, app))
        assert session.known(question) is None
        # The help over it and back asks nothing.
        await pilot.press("question_mark", "escape")
        await until(pilot, lambda: "C asks again" in screen_text(app))
        await until(pilot, partial(is_idle, app))
        assert long.begun == 1
        long.goes_on.set()
        await pilot.press("C")
        await until(pilot, partial(answered, app))
        assert "cancelled" not in screen_text(app) and "ask again" not in screen_text(app)
        assert session.known(question) == Session(session.trace, session.source).ask(question)


@pytest.mark.slow
@played
async def test_a_screen_that_is_left_is_not_computed_for(long: Long) -> None:
    async with opened(str(SLOW)) as (app, pilot):
        await pilot.press("3")
        await until(pilot, lambda: bool(long.begun))
        assert isinstance(app.screen, BlameScreen)
        await pilot.press("escape")
        await until(pilot, partial(is_idle, app))
        assert isinstance(app.screen, OverviewScreen) and not long.goes_on.is_set()
        long.goes_on.set()
        await pilot.press("3")
        await until(pilot, partial(answered, app))
        assert long.begun == 2


@pytest.mark.slow
@pytest.mark.parametrize("long", ["whatif"], indirect=True)
@played
async def test_what_is_asked_ahead_goes_on_where_its_screen_is_left_and_ends_when_it_is_cancelled(long: Long) -> None:
    async with opened(str(SLOW)) as (app, pilot):
        await until(pilot, lambda: bool(long.begun))
        await pilot.press("5", "escape")
        await until(pilot, lambda: isinstance(app.screen, OverviewScreen))
        assert app.is_busy
        await pilot.press("5")
        await until(pilot, lambda: isinstance(app.screen, WhatifScreen) and bool(app.screen.waiting))
        assert long.begun == 1
        await pilot.press("C")
        await until(pilot, partial(is_idle, app))
        assert "cancelled kair whatif" in screen_text(app)


@pytest.mark.slow
@pytest.mark.parametrize("long", ["whatif"], indirect=True)
@played
async def test_another_job_ends_what_is_asked_ahead_of_this_one(long: Long) -> None:
    async with opened(str(SLOW)) as (app, pilot):
        await until(pilot, lambda: bool(long.begun))
        session = app.session
        assert session is not None
        app.session = Session(session.trace, session.source)
        await until(pilot, partial(is_idle, app))


@pytest.mark.slow
@played
async def test_a_question_that_stays_is_not_begun_again_when_another_changes(
    long: Long, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(str(SLOW)) as (app, pilot):
        session = app.session
        assert session is not None
        await pilot.press("3")
        await until(pilot, lambda: bool(long.begun))
        screen = front(app, BlameScreen)
        asked = {**screen.questions(), "more": session.question("steps")}
        monkeypatch.setattr(screen, "questions", lambda: asked)
        monkeypatch.setattr(screen, "show", lambda *_: None)
        screen.reask()
        long.goes_on.set()
        await until(pilot, partial(answered, app))
        assert long.begun == 1


def gives_up(session: Session, question: Question, wanted: Callable[[], bool]) -> bool:
    """Whether who asks is told that it is cancelled."""
    try:
        session.ask(question, wanted)
    except Cancelled:
        return True
    return False


def test_an_answer_that_somebody_else_wants_is_computed_to_the_end(session: Session, long: Long) -> None:
    question, left, answers = session.question("blame"), Event(), list[Any]()
    impatient = Thread(target=gives_up, args=(session, question, lambda: not left.is_set()))
    impatient.start()
    patient = Thread(target=lambda: answers.append(session.ask(question)))
    wait_until(lambda: long.begun == 1)
    patient.start()
    wait_until(lambda: len(session._asking[question].wanted) == 2)
    left.set()
    long.goes_on.set()
    patient.join()
    impatient.join()
    assert long.begun == 1 and answers == [session.known(question)]


def test_who_waits_for_what_another_computes_can_give_up(session: Session, long: Long) -> None:
    question = session.question("blame")
    patient = Thread(target=session.ask, args=(question,))
    patient.start()
    wait_until(lambda: long.begun == 1)
    assert gives_up(session, question, lambda: False)
    assert session.known(question) is None
    long.goes_on.set()
    patient.join()
    assert session.known(question) is not None


def test_a_job_that_is_read_again_is_computed_anew(session: Session, long: Long) -> None:
    question, answers = session.question("blame"), list[Any]()
    asking = Thread(target=lambda: answers.append(session.ask(question)))
    asking.start()
    wait_until(lambda: long.begun == 1)
    session.renew(replace(session.trace), None)
    wait_until(lambda: long.begun == 2)
    long.goes_on.set()
    asking.join()
    assert answers == [session.known(question)]
