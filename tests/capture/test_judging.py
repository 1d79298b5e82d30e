"""What triage answers about a job that runs, or ran: asked by its coordinator, and shown by watch and summary."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.cli_samples import kair
from support.live_status import SLOW, STATUS, write_status
from support.patience import wait_until
from support.watched_job import watched_job

from kair_capture.coordinator import coordinator as coordinating
from kair_capture.coordinator.coordinator import CoordinatorSettings
from kair_capture.coordinator.judging import Judging
from kair_capture.coordinator.status import lines_of
from kair_capture.coordinator.summary import summary_of
from kair_engine.results.watch import WatchedVerdict
from kair_engine.results.whatif import PricedRanks

VERDICT = WatchedVerdict(
    150, "straggler", "straggler: rank 2 (input since step 104, 11 of the 60 ms step)",
    (PricedRanks((2,), 11_000.0, 104, None),),
)  # fmt: skip


def answering(text: str, status: int = 0) -> tuple[str, ...]:
    """A command that answers so."""
    return sys.executable, "-c", f"print({text!r}); raise SystemExit({status})"


def answered(judging: Judging, **when: object) -> str | None:
    """What it says in the end of what it is asked; None where it does not ask."""
    how = {"now": 0.0, "step": 100, "is_over": False, **when}
    if (told := judging.turn(**how)) is not None or not judging._command.is_running:  # type: ignore[arg-type]
        return told

    def is_answered() -> bool:
        nonlocal told
        told = judging.turn(**how)  # type: ignore[arg-type]
        return not judging._command.is_running

    wait_until(is_answered)
    return told


@pytest.mark.slow
def test_the_coordinator_takes_the_verdict_that_triage_gives(tmp_path: Path) -> None:
    places = watched_job(tmp_path / "store")
    status = json.loads(places.status.read_bytes())
    triage = json.loads(kair("triage", "job", "--json", "--store", str(places.store)).out)["data"]
    command = (sys.executable, "-m", "kair_tui", "triage", "job", "--json", "--store", str(places.store))
    judging = Judging(command)
    assert answered(judging, step=status["step"], is_over=True) == ""
    assert judging.is_final(0.0, status["step"])
    assert judging.last is not None
    assert (judging.last.verdict, judging.last.summary) == (triage["verdict"], triage["summary"])
    (slow,) = [one for one in triage["findings"] if one["ranks"]]
    price = PricedRanks((1,), slow["time_lost_us_per_step"], 100, None)
    assert judging.last.slow == (price,)
    # Every face of the watch has it.
    now = status["updated_at"]
    shown = replace(STATUS, job="job", updated_at=now, state="over", step=status["step"], triage=judging.last)
    write_status(places.store, shown)
    watch = json.loads(kair("watch", "job", "--json", "--store", str(places.store)).out)["data"]
    assert watch["triage"]["summary"] == triage["summary"]
    assert f"up to {status['step']}: {triage['summary']}" in " ".join(
        kair("watch", "job", "--once", "--store", str(places.store)).out.split()
    )
    assert summary_of(shown)[1].startswith(f"triage: {triage['summary']}")
    assert 'kair_slow_since_step{job="job",rank="1"} 100' in [*lines_of(shown)]
    (cost,) = [line for line in lines_of(shown) if line.startswith("kair_cost_seconds{")]
    assert float(cost.split()[-1]) == pytest.approx(slow["time_lost_us_per_step"] / 1e6)


def test_it_is_asked_after_an_alert_as_steps_double_and_once_at_the_end() -> None:
    told = json.dumps({"data": {"verdict": "straggler", "summary": "a", "findings": []}})
    judging = Judging(answering(told))
    assert answered(judging) is None, "nothing was noticed"
    judging.look(100)
    assert answered(judging, step=119) is None, "the steps after it say more"
    assert answered(judging, step=120) == ""
    judging.look(121)
    assert answered(judging, step=150, now=1.0) is None, "it takes a hundredth of a core at most"
    assert answered(judging, step=150, now=1e4) is None, "the same answer is no news"
    assert judging.last is not None
    assert judging.last.step == 150
    for step, asked_at in ((299, 150), (300, 300), (599, 300)):
        answered(judging, step=step, now=1e5 + 1e3 * step)
        assert judging.last.step == asked_at
    assert not judging.is_final(1e7, 610)
    answered(judging, step=610, now=1e6, is_over=True)
    assert (judging.last.step, judging.is_final(1e7, 610)) == (610, True)
    answered(judging, step=610, now=1e7, is_over=True)
    assert judging.is_final(1e7, 610)
    assert not judging.is_final(1e7, 620), "it went on"
    unnoticed = Judging(answering(told))
    assert answered(unnoticed, step=199) is None
    assert answered(unnoticed, step=200) == "", "who is slow from the first step on may open no alert"


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (answering("", 3), "ended with status 3"),
        (answering("no JSON"), "its answer is not readable"),
        (("/nowhere/kair",), "No such file"),
    ],
)
def test_why_it_cannot_be_asked_is_said_and_nobody_waits_for_it(command: tuple[str, ...], why: str) -> None:
    judging = Judging(command, VERDICT)
    told = answered(judging, step=160, is_over=True)
    assert told is not None
    assert told.startswith("triage failed: ")
    assert why in told
    assert (judging.last, judging.is_final(0.0, 160)) == (VERDICT, True)
    assert Judging(()).is_final(0.0, 160)


def test_a_job_is_summed_up_without_an_answer_that_takes_too_long() -> None:
    judging = Judging((sys.executable, "-c", "import time; time.sleep(600)"))
    assert judging.turn(0.0, 160, is_over=True) is None
    assert (judging.is_final(59.0, 160), judging.is_final(61.0, 160)) == (False, True)
    judging.close()


def test_a_summary_names_who_was_noticed_besides_and_all_where_triage_was_not_asked() -> None:
    other = replace(SLOW, ranks=(1,), step=40)
    over = replace(STATUS, state="over", alerts=(SLOW, other, replace(other, step=90, over=True)), triage=VERDICT)
    assert summary_of(over)[1] == (
        f"triage: {VERDICT.summary}; rank 1 on node-1 was slow from step 40 to step 90, its own time is 20% longer"
    )
    assert summary_of(replace(over, step=400))[1].startswith("rank 2 on node-1 was slow from step 124 on, its own time")
    assert summary_of(replace(over, alerts=(SLOW,)))[1] == f"triage: {VERDICT.summary}"


def test_a_coordinator_that_is_started_again_waits_for_the_answer_before_it_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = watched_job(tmp_path / "store")
    monkeypatch.setattr(coordinating, "_COMMITTED_S", 0.0)
    monkeypatch.setattr(coordinating, "_FIRST_RANK_S", 0.0)
    settings = CoordinatorSettings(places, ("127.0.0.1", 0), leave_after_s=0.0, judging=("/nowhere/kair",))
    said: list[str] = []
    coordinating.Coordinator(settings, said.append).run()
    assert not any("triage failed" in line for line in said), "no rank of it was heard"
