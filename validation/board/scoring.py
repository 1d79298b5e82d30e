"""Holds answers against the truth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from .catalogue import Truth
from .tools import Answer

Mark = Literal["right", "wrong", "no answer", "unread", "not run", "untold"]
NEAR: Final = 3
"""Steps within which the begin of a change is right."""
_UNABLE: Final[dict[str, Mark]] = {"unread": "unread", "stopped": "unread", "not run": "not run"}


@dataclass(frozen=True)
class Score:
    """How an answer stands beside the truth."""

    rank: Mark
    cause: Mark | None
    """None where the truth has none, or the tool tells none."""
    innocent: bool
    """A rank was accused where none is guilty."""
    price_error: float | None
    """Told price / true price − 1."""


def score(truth: Truth, answer: Answer, *, candidates: bool = False) -> Score:
    """Return the marks of an answer.

    `right`: some rank is accused and all that are accused are guilty; of a tool that offers `candidates`, one of them.
    Where nobody is guilty: nobody is accused, and the answer is not left open. An open answer is never right.
    """
    if answer.said in _UNABLE:
        return Score(_UNABLE[answer.said], None, innocent=False, price_error=None)
    if truth.kind == "untold":
        return Score("untold", None, innocent=False, price_error=None)
    rank = _rank_mark(truth, answer, candidates=candidates)
    nobody_guilty = truth.kind in ("healthy", "job_wide")
    cause: Mark | None = None
    if truth.causes and answer.causes:
        cause = "right" if answer.causes[0] in truth.causes else "wrong"
    told = answer.lost_us is not None and truth.lost_us and rank == "right" and cause != "wrong"
    price = answer.lost_us / truth.lost_us - 1 if told and answer.lost_us and truth.lost_us else None
    return Score(rank, cause, innocent=nobody_guilty and bool(answer.ranks), price_error=price)


def _rank_mark(truth: Truth, answer: Answer, *, candidates: bool) -> Mark:
    if truth.kind == "since":
        if answer.ranks or not answer.since:
            return "wrong" if answer.ranks or answer.said == "nobody" else "no answer"
        found = [any(abs(step - begin) <= NEAR for step in answer.since) for begin in truth.since]
        return "right" if all(found) else "wrong"
    if answer.said == "open":
        return "no answer"
    if truth.kind != "ranks":
        missed = truth.kind == "job_wide" and answer.said == "nobody" and bool(truth.causes) and _tells_causes(answer)
        return "wrong" if answer.ranks or missed else "right"
    guilty = set(answer.ranks) & set(truth.ranks)
    all_are = guilty == set(answer.ranks)
    return "right" if guilty and (all_are or candidates) else "wrong"


def _tells_causes(answer: Answer) -> bool:
    """Only Kair gives a sentence, and names what nobody is to blame for."""
    return bool(answer.note)
