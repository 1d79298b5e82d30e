"""Whoever waits for an answer is told what is being done, and which share of it."""

import pytest
from support.places import SAMPLES

from kair.app.session import Session
from kair_engine import progress
from kair_engine.progress import counted, is_looked_at, show_so_far, telling
from kair_tui.tui import session as screens


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, str]]:
    """What was told, however fast it came."""
    monkeypatch.setattr(progress, "_SELDOM_S", 0.0)
    return []


def test_a_loop_within_a_loop_counts_as_a_part_of_it(told: list[tuple[float, str]]) -> None:
    with telling(lambda share, what: told.append((share, what))):
        for _ in counted("ab", "outer"):
            for _ in counted("one", "a loop of one is what runs within it"[:1]):
                pass
            for _ in counted("x", "single"):
                pass
    assert [what for _, what in told] == ["outer"] * len(told)
    shares = [share for share, _ in told]
    assert shares == sorted(shares)
    assert shares[:4] == pytest.approx([0.0, 0.0, 1 / 6, 1 / 3])
    assert shares[4:] == pytest.approx([0.5, 0.5, 4 / 6, 5 / 6])


def test_a_loop_that_is_left_amid_it_leaves_the_next_ones_as_they_are(told: list[tuple[float, str]]) -> None:
    with telling(lambda share, what: told.append((share, what))):
        left = counted(range(4), "left")
        next(left)
        for number in counted(range(2), "next"):
            if number:
                left.close()
        list(counted(range(2), "last"))
    assert [what for _, what in told][-2:] == ["last", "last"]
    assert told[-1][0] == pytest.approx(0.5)


def test_nobody_who_did_not_ask_is_told() -> None:
    assert list(counted([1, 2], "work")) == [1, 2]


def test_what_is_known_is_shown_to_whoever_looks_and_to_nobody_else() -> None:
    seen: list[object] = []
    with telling(lambda *_: None, seen.append):
        assert is_looked_at()
        with telling(lambda *_: None):
            assert not is_looked_at()
            show_so_far("of a question within")
        show_so_far("first rows")
    assert not is_looked_at()
    show_so_far("afterwards")
    assert seen == ["first rows"]


@pytest.mark.usefixtures("told")
def test_what_if_tells_what_it_replays() -> None:
    heard: list[tuple[int, int, str]] = []
    session = Session.open(SAMPLES / "slow_operator")
    session.progress = lambda done, total, what, outcome=None: heard.append((done, total, what))  # noqa: ARG005
    session.ask(screens.Question.of("whatif"))
    of_replay = [(done, total) for done, total, what in heard if what.startswith("replaying")]
    assert len(of_replay) > 2
    assert all(0 <= done <= total == 100 for done, total in of_replay)
    assert len({done for done, _ in of_replay}) > 2
