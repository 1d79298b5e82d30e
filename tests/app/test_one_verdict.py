"""A captured job has one verdict: every face takes the answer of the session, in whatever order they are asked."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.captured import fragment_of
from support.cli_samples import kair
from support.watched_job import HANG, watched_job

import kair as api
from kair.app.question import Question
from kair_capture.agent.spool import named
from kair_capture.coordinator.committing import Committer
from kair_capture.places import JobPlaces
from kair_engine.causes import CAUSES
from kair_engine.fleet import saved_share
from kair_engine.results.watch import WatchResult
from kair_tui.tui.session import Session

pytestmark = pytest.mark.slow

KEY = b"k" * 32
JOBS = {
    "unsampled": {},
    "unsampled, standing still": {"hang": HANG},
    "before its first step, standing still": {"until": -1, "hang": HANG},
    "sampled": {"sampled": True},
    "sampled, standing still": {"sampled": True, "hang": HANG},
}


def sample(places: JobPlaces, folder: Path) -> None:
    """Commit a window of steps 150 to 153, as the coordinator does."""
    made = fragment_of(folder, range(4), first=150)
    target = places.delivered / "host=node-1" / named(made, "node-1", 150, 153, KEY).text
    target.parent.mkdir(parents=True)
    made.rename(target)
    Committer(places, KEY).round()


@pytest.fixture(params=JOBS)
def job(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobPlaces:
    monkeypatch.setenv("KAIR_STORE", str(tmp_path / "store"))
    how: dict[str, Any] = dict(JOBS[request.param])
    is_sampled = how.pop("sampled", False)
    places = watched_job(tmp_path / "store", **how)
    if is_sampled:
        sample(places, tmp_path / "work")
    return places


def data(*words: str) -> Any:  # noqa: ANN401
    """Return what a command answers as JSON."""
    outcome = kair(*words, "--json")
    assert outcome.status == 0, outcome.err
    return json.loads(outcome.out)["data"]


Told = dict[str, object]


def by_triage() -> Told:
    found = data("triage", "job")
    return {"verdict": found["verdict"], "summary": found["summary"], "findings": _findings(found["findings"])}


def by_api() -> Told:
    found = api.open("job", progress=False).triage()
    findings = json.loads(found.to_json())["data"]["findings"]
    return {"verdict": found.verdict, "summary": found.summary, "findings": _findings(findings)}


def by_screen() -> Told:
    session = Session.open("job")
    found = session.ask(session.question("triage")).result
    document = json.loads(session.written(Question.of("triage"), "json", ascii_only=False))
    return {"verdict": found.verdict, "summary": found.summary, "findings": _findings(document["data"]["findings"])}


def by_ticket() -> Told:
    found = data("ticket", "job")
    return {"verdict": found["verdict"], "summary": found["summary"]}


def by_jobs() -> Told:
    (found,) = data("jobs")["jobs"]
    return {"verdict": found["last_verdict"], "summary": found["last_summary"]}


def by_fleet() -> Told:
    (found,) = data("fleet")["jobs"]
    return {name: found[name] for name in ("verdict", "accused_ranks", "cause", "waste")}


def _findings(found: list[dict[str, Any]]) -> object:
    names = ("ranks", "cause", "pattern", "since", "time_lost_us_per_step", "throughput_gain")
    return [{name: one[name] for name in names} for one in found]


FACES: tuple[Callable[[], Told], ...] = (by_triage, by_ticket, by_screen, by_fleet, by_jobs)


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize("first", range(len(FACES)), ids=[face.__name__ for face in FACES])
def test_every_face_has_the_verdict_ranks_cause_onset_and_price_that_the_session_gives(
    first: int,
) -> None:
    order = [*FACES[first:], *FACES[:first]]
    told = {face.__name__: face() for face in order}
    told["by_api"] = by_api()
    engine = api.open("job", progress=False)._session
    result = engine.ask(Question.of("triage")).result
    priced = sorted(result.findings, key=lambda one: CAUSES[one.cause].stops_job)  # a hang has no price
    accusing = [one for one in result.findings if one.pattern != "job_wide"]
    expected: Told = {
        "verdict": result.verdict,
        "summary": result.summary,
        "findings": _findings([{**vars(one), "ranks": [*one.ranks]} for one in result.findings]),
        "accused_ranks": sorted({int(rank) for one in accusing for rank in one.ranks}),
        "cause": priced[0].cause if priced else None,
        "waste": saved_share(result),
    }
    for face, of in told.items():
        assert of == {name: expected[name] for name in of}, face
    assert result.verdict == "straggler"
    assert 1 in {int(rank) for one in result.findings for rank in one.ranks}


def test_before_a_silence_counts_as_a_hang_triage_and_watch_say_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAIR_STORE", str(tmp_path / "store"))
    places = watched_job(tmp_path / "store")
    over = msgspec.json.decode(places.status.read_bytes(), type=WatchResult)

    def warned(**now: Any) -> list[str]:  # noqa: ANN401 - fields of the status
        places.status.write_bytes(msgspec.json.encode(replace(over, **now)))
        found = json.loads(kair("triage", "job", "--json").out)["warnings"]
        return [one["message"] for one in found if one["code"] == "no_step_ends"]

    (said,) = warned(state="training", silent_s=14.0)
    assert re.fullmatch(r"no step has ended for 1[45] s: the job may hang", said)
    assert re.search(r"no step has ended for 1[45] s: the job may hang", kair("watch", "job", "--once").out)
    assert warned(state="training") == warned(silent_s=14.0) == []
    assert warned(state="training", silent_s=14.0, updated_at="2026-01-01T10:00:00+00:00") == []
    assert warned(state="training", silent_s=14.0, updated_at="lately") == []


def test_an_onset_stays_when_a_window_is_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAIR_STORE", str(tmp_path / "store"))
    places = watched_job(tmp_path / "store")
    before = data("triage", "job")
    sample(places, tmp_path / "work")
    after = data("triage", "job")
    (slow,) = [one for one in before["findings"] if one["ranks"]]
    same = [one for one in after["findings"] if one["ranks"] == slow["ranks"]]
    assert (before["is_sampled"], after["is_sampled"], slow["since"]) == (False, True, 100)
    assert [one["since"] for one in same] == [100]
    price = ("priced_by", "time_lost_us_per_step", "throughput_gain")
    assert [[one[name] for name in price] for one in same] == [[slow[name] for name in price]]
    assert slow["priced_by"] == "growth"
    whatif = data("whatif", "job")
    measured = {"ranks": slow["ranks"], "since": 100, "until": None, price[1]: slow[price[1]]}
    assert whatif["measured"] == [measured]
    assert whatif["verdict"].startswith("measured: rank 1 costs ")
    assert "; by the replay of sampled steps: " in whatif["verdict"]
    assert data("whatif", "job", "--fix", "rank=1")["measured"] == []
    assert (after["verdict"], after["history_steps"]) == ("straggler", before["history_steps"])


def test_steps_around_the_sampled_ones_are_judged_by_the_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAIR_STORE", str(tmp_path / "store"))
    sample(watched_job(tmp_path / "store"), tmp_path / "work")
    found = data("triage", "job", "--step", "101-145")
    assert (found["is_sampled"], found["steps"][0], found["steps"][-1]) == (False, 101, 145)
    assert [one["ranks"] for one in found["findings"] if one["ranks"]] == [[1]]
    assert data("triage", "job", "--step", "140-160")["steps"] == [150, 151, 152, 153]
    steps = data("steps", "job", "--step", "120,121")
    assert [(row["step"], row["rank"]) for row in steps["steps"]] == [(at, of) for at in (120, 121) for of in range(4)]


def test_a_price_that_fleet_kept_does_not_outlive_what_the_job_recorded_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAIR_STORE", str(tmp_path / "store"))
    sample(watched_job(tmp_path / "store", until=99), tmp_path / "work")
    assert by_fleet()["accused_ranks"] == []
    watched_job(tmp_path / "store")
    assert by_fleet()["accused_ranks"] == [1]
    assert by_jobs() == {name: by_triage()[name] for name in ("verdict", "summary")}
