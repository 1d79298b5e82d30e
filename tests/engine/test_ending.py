"""What ended a job, from records of how its ranks ended: a rank is named only where its own end brought it about."""

import signal
from dataclasses import replace

import pytest

from kair_engine.ranks import Rank
from kair_engine.results.watch import StandingRank
from kair_engine.trace.model import Job, StepTimes, Trace
from kair_engine.triage.hangs.ending import ending_of
from kair_engine.triage.hangs.standing import standing_verdict
from kair_tui.render.triage import triage_in_words
from kair_tui.render.verdict import summary

LOST = "RuntimeError: Read error [127.0.0.1]:63640: Connection reset by peer"
MS = 10**6


def ends(rank: int, at_ms: float = 0, step: int = 60, **how: object) -> StandingRank:
    made = StandingRank(rank, "vm", "died", step, known_by="kernel", at_ns=10**18 + round(at_ms * MS))
    return replace(made, **how)  # type: ignore[arg-type]


def job(ranks: int = 4) -> Trace:
    numbers = tuple(map(Rank, range(ranks)))
    of = {"hosts": dict.fromkeys(range(ranks), "vm"), "world_size": ranks, "ranks": numbers}
    empty = {"layout": None, "device": None, "has_device": False, "absolute_time": True, "steps": (), "operations": 0}
    times = StepTimes((), (), (), (), ())
    return Trace(Job("job", "job", "flight_recorder", **of, **empty, step_times=times, warnings=()), (), ())  # type: ignore[arg-type]


def victim(rank: int, at_ms: float = 0, step: int = 60, number: int = 0) -> StandingRank:
    status = None if number else 1
    return ends(rank, at_ms, step, signal=number, exit_status=status, error=LOST)


def interrupted(rank: int, at_ms: float = 0) -> StandingRank:
    return ends(rank, at_ms, signal=signal.SIGINT, error="KeyboardInterrupt: ")


TERM, KILL, ABORT = ({"signal": number} for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGABRT))
LEFT = {"state": "ended", "exit_status": 0}


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([ends(rank, rank, **TERM) for rank in range(4)], "SIGTERM on all ranks"),
        ([ends(rank, rank, **KILL) for rank in range(4)], "SIGKILL on all ranks"),
        ([ends(rank, rank, signal=0, known_by="") for rank in range(4)], "a signal that left no trace on all ranks"),
        ([ends(rank, exit_status=143) for rank in range(4)], "SIGTERM on all ranks"),
        ([interrupted(rank, rank) for rank in range(4)], "SIGINT on all ranks"),
        ([interrupted(0), interrupted(1), victim(2, 1), victim(3, 2)], "SIGINT on all ranks"),
        # On another host the signal comes later than the lost connection.
        ([ends(0, **TERM), ends(1, **TERM), victim(2, 1, number=15), victim(3, 2, number=15)], "SIGTERM on all ranks"),
        # Some save a checkpoint first and leave in order, or do so still.
        ([ends(0, **TERM), ends(1, **TERM), ends(2, 900, **LEFT)], "SIGTERM on all ranks"),
        ([ends(0, **TERM), ends(1, **TERM), ends(2, state="lives")], "SIGTERM on several ranks"),
        ([ends(0, **TERM)], "SIGTERM on all ranks"),
    ],
)
def test_one_signal_on_all_ranks_ended_the_job_from_outside(ranks: list[StandingRank], words: str) -> None:
    assert ending_of(ranks).in_words == f"the job was ended from outside ({words})"
    found = standing_verdict(job(len(ranks)), ranks)
    assert (found.verdict, found.findings) == ("inconclusive", ())
    assert f"the job was ended from outside ({words})" in triage_in_words(found).summary


@pytest.mark.parametrize(
    ("ranks", "named"),
    [
        # The launcher ends the others by a signal once one has died by itself.
        ([ends(0, 90, **TERM), ends(1, signal=signal.SIGSEGV), ends(2, 91, **TERM), ends(3, 92, **TERM)], [1]),
        ([ends(0, 90, **TERM), ends(1, exit_status=1, error="ValueError: bad"), ends(2, 91, **TERM)], [1]),
        ([ends(0, 90, **TERM), ends(1, **KILL), ends(2, 91, **TERM), ends(3, 92, **TERM)], [1]),
        ([ends(rank, **KILL, known_by="out_of_memory") for rank in range(2)], [0, 1]),
        ([ends(0, **KILL)], [0]),
        # Somebody ended one rank alone.
        ([victim(0, 1), ends(1, **TERM), victim(2, 2), victim(3, 3)], [1]),
        # It left, and the others lost their connection to it, whoever was seen first.
        ([victim(0), ends(1, 90, **LEFT), victim(2), victim(3)], [1]),
        ([victim(0), ends(1, 90, **LEFT), ends(2, 100, **TERM), ends(3, 100, **TERM)], [1]),
        ([ends(0, state="lives"), ends(1, **LEFT), ends(2, state="lives")], [1]),
        # It left long before, and the others went on without it.
        ([victim(0), ends(1, -9e5, 7, **LEFT), ends(2, 9, signal=signal.SIGBUS)], [2]),
        ([ends(0, state="unheard"), ends(1, **TERM), ends(2, **TERM)], [0]),
        # All had ended but one, which fails at its end.
        ([ends(0, **LEFT), ends(1, **LEFT), ends(2, 400, signal=signal.SIGSEGV)], [2]),
        # Gloo aborts a victim whose peer called something else: the one that had come farther, or not as far.
        ([ends(0, 1, **ABORT), victim(1, 0, 61, 15), ends(2, 9, **TERM), victim(3, 0, 60, 15)], [1]),
        ([ends(0, 1, **ABORT), victim(1, 0, 59, 15), ends(2, 9, **TERM), victim(3, 0, 60, 15)], [1]),
    ],
)
def test_a_rank_is_named_where_its_own_end_brought_about_the_others(
    ranks: list[StandingRank], named: list[int]
) -> None:
    found = standing_verdict(job(len(ranks)), ranks)
    assert [rank for one in found.findings for rank in one.ranks] == named
    assert found.verdict == "straggler"


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([ends(0, **ABORT), victim(1, 1), ends(2, 90, **TERM), ends(3, 91, **TERM)], "rank 0 died first, of SIGABRT"),
        ([victim(0), victim(1), ends(2, 90, **TERM), ends(3, 91, **TERM)], "rank 0 died first, of a lost connection"),
        # Seen in a real job: rank 1 left a call out, and rank 2 took its next one for it.
        ([ends(0, **ABORT), victim(1, 1, 61), victim(2, 2, 61)], "rank 0 died first, of SIGABRT"),
        ([ends(0, **ABORT), victim(1, 1, 61), victim(2, 2, 61), victim(3, 2)], "rank 0 died first, of SIGABRT"),
        ([ends(0, **ABORT), victim(1, 1, 61)], "rank 0 died first, of SIGABRT"),
    ],
)
def test_a_victim_is_told_and_not_blamed(ranks: list[StandingRank], words: str) -> None:
    assert ending_of(ranks).in_words.startswith(words)
    found = standing_verdict(job(len(ranks)), ranks)
    assert (found.verdict, found.findings[0].ranks, found.findings[0].seen_on) == ("job_wide", (), (0,))
    told = triage_in_words(found)
    assert told.summary.startswith("job-wide: hang, rank 0 ")
    assert "read the last lines of each rank's log" in told.summary


def test_who_was_farther_says_so() -> None:
    found = triage_in_words(standing_verdict(job(2 + 1), [ends(0, **ABORT), victim(1, 0, 61), victim(2, 0, 60)]))
    assert found.summary == (
        "straggler: rank 1 (hang, rank 1 was in step 61 when the others were in step 60: their calls did not match)"
    )
    assert "rank 0 died in step 60 of SIGABRT" in [one.sentence for one in found.findings[0].evidence]
    assert found.findings[0].suggestion.startswith("Look at which collective rank 1 left out")


def test_nobody_ended_anything_where_all_live_or_ended_in_order() -> None:
    for state in ("lives", "ended"):
        ending = ending_of([ends(rank, state=state) for rank in range(3)])
        assert (ending.ranks, ending.in_words) == ((), "")


def test_the_headline_of_a_hang_says_where_the_accused_rank_is() -> None:
    """As `kair watch` does: the line of code is what an engineer looks at first."""
    stuck = StandingRank(1, "vm", "lives", 61, where="hang.py:28 <module>", after="input, 30 s ago")
    ranks = [stuck if rank == 1 else StandingRank(rank, "vm", "lives", 61, "collective") for rank in range(4)]
    headline = summary(standing_verdict(job(), ranks))
    assert headline.endswith("(hang, stuck in step 61, after input, at hang.py:28 <module>; others wait for it)")
