"""The same question gives the same answer on every face, and asking changes nothing."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cli_samples import kair, store_variables
from support.mcp_client import Client
from support.places import SAMPLES

import kair as api
from kair.app.question import ABOUT_STORE, ANSWERED_BY, Question
from kair_engine.errors import UsageError
from kair_tui.commands.mcp_tools import tool_of
from kair_tui.tui.session import Session

pytestmark = pytest.mark.slow

HEALTHY, UPGRADED, SAMPLE = SAMPLES / "two_hosts_healthy", SAMPLES / "two_hosts_upgrade", SAMPLES / "slow_operator"
Face = Callable[[str, dict[str, Any]], dict[str, Any]]
"""Asks a question about the job `new` with these options, and returns the document."""
QUESTIONS: dict[str, dict[str, Any]] = {
    "triage": {"gpu_cost": 2.0},
    "localize": {},
    "pinpoint": {"rank": 2},
    "blame": {"limit": 5},
    "whatif": {"fix": ["rank=2"]},
    "rank": {"rank": 2},
    "sensitivity": {"draws": 20, "fault": "slow_link"},
    "forecast": {"draws": 20},
    "frequency": {"windows": 10},
    "operators": {"limit": 5},
    "collectives": {"limit": 5},
    "timeline": {"windows": 10},
    "steps": {},
    "info": {},
    "query": {"sql": "SELECT rank, count(*) AS operations FROM operations GROUP BY rank"},
}
NOT_OF_A_JOB = {*ABOUT_STORE, "evidence", "confirm"}
"""And of a running one alone: tests/tui/test_confirm.py has its faces."""
OF_SCREENS = {"lateness", "windows"}
OF_AN_ACTION = {"mitigate"}
"""`kair mitigate simulate`: tests/mitigate has its faces."""
POSITIONAL = {"sql"}


def line(command: str, options: dict[str, Any], *job: str) -> list[str]:
    """The words of a command line."""
    words = [str(value) for name, value in options.items() if name in POSITIONAL]
    for name, value in options.items():
        for one in value if isinstance(value, list) else [value]:
            words += [] if name in POSITIONAL else [f"--{name.replace('_', '-')}", str(one)]
    return [command, *job, *words]


def by_command(command: str, options: dict[str, Any]) -> dict[str, Any]:
    return _document(*line(command, options, "new"), "--json")


def by_shell(command: str, options: dict[str, Any]) -> dict[str, Any]:
    words = " ".join(f"'{word}'" if " " in word else word for word in line(command, options))
    return _document("shell", "new", "-c", f"{words} -o json")


def by_screen(command: str, options: dict[str, Any]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(
        Session.open("new").written(Question.of(command, **options), "json", ascii_only=False)
    )
    return document


def by_api(command: str, options: dict[str, Any]) -> dict[str, Any]:
    job = api.open("new", progress=False)
    if not hasattr(job, command) or command in ("operations", "steps", "ranks", "collectives", "query"):
        answer = api.api.Written.of(job._asked(command, None, None, **options))
    else:
        given = {name: value for name, value in options.items() if name != "rank"}
        answer = getattr(job, command)(*([options["rank"]] if "rank" in options else []), **given)
    document: dict[str, Any] = json.loads(answer.to_json())
    return document


def by_mcp(client: Client) -> Face:
    def ask(command: str, options: dict[str, Any]) -> dict[str, Any]:
        answered = client.call(command, job="new", most_rows=1000, **options)
        assert "structuredContent" in answered, answered
        document: dict[str, Any] = answered["structuredContent"]
        return document

    return ask


def _document(*words: str) -> dict[str, Any]:
    outcome = kair(*words)
    assert outcome.status == 0, outcome.err
    document: dict[str, Any] = json.loads(outcome.out)
    return document


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with two jobs, `good` and `new`."""
    store_variables(monkeypatch, tmp_path)
    for source, name in ((HEALTHY, "good"), (UPGRADED, "new")):
        assert kair("import", str(source), "--job", name).status == 0
    return Path(os.environ["KAIR_STORE"])


@pytest.fixture
def client(programs: Path, store: Path) -> Iterator[Client]:
    client = Client(programs, "--store", str(store))
    yield client
    assert client.close() == 0


def files(folder: Path) -> dict[Path, tuple[bytes, int]]:
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def test_every_question_is_asked_here() -> None:
    assert {*QUESTIONS} == {*ANSWERED_BY} - NOT_OF_A_JOB - OF_SCREENS - OF_AN_ACTION


def test_a_question_has_one_answer_whoever_asks_it(client: Client) -> None:
    # One host and fewer steps: each face reads and analyses the job by itself, for each question.
    assert kair("import", str(SAMPLE), "--job", "new", "--replace").status == 0
    for command, options in QUESTIONS.items():
        asked = by_command(command, options)
        faces: dict[str, Face] = {"shell": by_shell, "screen": by_screen, "import kair": by_api}
        if tool_of(command) is not None:
            faces["mcp"] = by_mcp(client)
        for name, ask in faces.items():
            assert ask(command, options) == asked, (command, name)


def test_a_baseline_is_shown_by_every_face_and_gone_from_all_once_removed(client: Client) -> None:
    faces: dict[str, Face] = {
        "screen": by_screen,
        "command": by_command,
        "screen again": by_screen,
        "shell": by_shell,
        "import kair": by_api,
        "mcp": by_mcp(client),
    }
    open_screen = Session.open("new")

    def compared() -> dict[str, str | None]:
        found = {}
        for name, ask in faces.items():
            against = ask("triage", {})["data"]["against_baseline"]
            found[name] = None if against is None else against["baseline"]
        shown = open_screen.ask(Question.of("triage")).result.against_baseline
        found["a screen that stays open"] = None if shown is None else shown.baseline
        found["report"] = "good" if "the baseline good" in kair("triage", "new", "-o", "md").out else None
        return found

    assert {*compared().values()} == {None}
    assert kair("baseline", "save", "good", "good").status == 0
    assert kair("baseline", "use", "good").status == 0
    assert {*compared().values()} == {"good"}, compared()
    assert kair("baseline", "rm", "good").status == 0
    assert {*compared().values()} == {None}, compared()


def test_asking_writes_nothing_and_keeping_writes_the_answer(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Other tests write into the cache that all of them share.
    monkeypatch.setenv("KAIR_CACHE", str(tmp_path / "cache"))
    session = api.app.session.Session.open("new")
    before, cache = files(store), files(Path(os.environ["KAIR_CACHE"]))
    answers = [session.ask(Question.of(command, **options)) for command, options in QUESTIONS.items()]
    assert (files(store), files(Path(os.environ["KAIR_CACHE"]))) == (before, cache)
    for answer in answers:
        session.keep(answer)
    written = {path.name for path in files(store).keys() - before.keys()}
    assert written == {"triage.json", "verdict.json", "new.lines"}


@pytest.mark.usefixtures("store")
def test_a_kept_answer_is_read_again_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = kair("triage", "new", "--json").out
    monkeypatch.setattr("kair_engine.triage.analysis.triage", lambda *_, **__: pytest.fail("it was worked out again"))
    assert kair("triage", "new", "--json").out == asked
    assert kair("triage", "new", "--gpu-cost", "2").status != 0, "at another price it is another answer"


def test_an_open_job_stays_as_it_was_read_while_capture_goes_on(store: Path) -> None:
    session, question = Session.open("new"), Question.of("triage")
    status = store / "new" / "capture" / "status.json"
    status.parent.mkdir()
    status.write_text("{}")
    answer = session.ask(question)
    status.write_text('{"step": 2}')
    assert session.known(question) is answer and session.ask(question) is answer
    session.renew(session.trace, session.read_from)
    assert session.known(question) is None


@pytest.mark.usefixtures("store")
def test_a_question_about_the_store_is_none_about_a_job() -> None:
    for command in ABOUT_STORE:
        with pytest.raises(UsageError, match=f"{command} is a question about the store"):
            api.open("new", progress=False).ask(command)


def test_reading_only_keeps_nothing(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAIR_READ_ONLY", "1")
    before = files(store)
    assert kair("triage", "new").status == 0
    assert files(store) == before
