"""Questions written down as command lines, and answered."""

import shlex
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
from support.answers import recorded
from support.cli_samples import kair, store_variables, trace
from support.kept_cases import assert_kept
from support.places import SAMPLES

from kair.app.jobs import JobSource
from kair.app.question import Question
from kair_engine.errors import UsageError
from kair_engine.trace.model import Trace
from kair_engine.whatif.analysis import model_asked_of
from kair_engine.whatif.model import Model
from kair_tui.cli.app import parse
from kair_tui.cli.failures import explained
from kair_tui.cli.registry import find
from kair_tui.render.answer import PageOptions
from kair_tui.shell.runner import Outcome, run_line
from kair_tui.shell.session import ShellState
from kair_tui.tui.question import line_of
from kair_tui.tui.session import Session

SAMPLE = SAMPLES / "slow_operator"


pytestmark = pytest.mark.usefixtures("own_places")


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    store_variables(monkeypatch, tmp_path)
    return Session(recorded(SAMPLE), JobSource(str(SAMPLE), SAMPLE, stored=False))


def typed(line: str, session: Session) -> Outcome:
    """What `:` does with a line."""
    state = ShellState()
    state.hold(session, session.steps)
    return run_line(line, state)


QUESTIONS = [
    Question.of("triage"),
    Question.of("triage", (40, 41, 42, 45)),
    Question.of("pinpoint", rank=3, method="paper"),
    Question.of("localize", matrix=True, whole_run=False),
    Question.of("whatif", fix=["rank=1", "op=a b"]),
    Question.of("blame", operator=None),
    Question.of("jobs"),
]
WRONG = ["triag", "", "tui", "pinpoint", "pinpoint --rank x", 'info "']


def test_a_question_is_a_command_line_and_a_wrong_line_says_what_is_wrong(session: Session) -> None:
    said = {}
    for line in WRONG:
        with pytest.raises((UsageError, click.UsageError)) as wrong:
            typed(line, session)
        said[line] = explained(wrong.value)[0]
    assert_kept("typed_lines", {"questions": [line_of(one, "job123") for one in QUESTIONS], "wrong": said})


def test_the_line_means_the_question() -> None:
    question = Question.of("pinpoint", (41,), rank=1, method="paper")
    _, command, *words = shlex.split(line_of(question, "a job"))
    entry = find(command)
    assert entry is not None
    arguments: dict[str, Any] = parse(entry, words)
    assert arguments["job"] == "a job"
    assert arguments["step"] == "41"
    assert arguments["rank"] == 1
    assert arguments["method"] == "paper"


def test_a_question_is_answered_once(session: Session) -> None:
    question = session.question("steps")
    assert session.known(question) is None
    assert session.ask(question) is session.ask(question)
    assert session.known(question) is session.ask(question)


def test_one_model_answers_all_questions_about_the_same_steps(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[int, ...]] = []

    def counted(trace: Trace, **options: Any) -> Model:  # noqa: ANN401
        made.append(trace.steps)
        return model_asked_of(trace, **options)

    monkeypatch.setattr("kair_engine.whatif.analysis.model_asked_of", counted)
    # At a price that no other test names: what one has asked is not worked out for another.
    ask = partial(session.question, "whatif", gpu_cost=1.23)
    for fix in ("rank=1", "rank=2"):
        session.ask(ask(fix=[fix], only_fixes=True))
    session.ask(ask())
    assert made == [session.trace.steps]
    session.narrow((5, 6))
    session.ask(ask(fix=["rank=1"], only_fixes=True))
    assert made[1:] == [(5, 6)]


def test_narrowing_changes_every_question(session: Session) -> None:
    session.narrow((6, 5))
    assert session.question("triage").steps == (5, 6)
    assert session.command(session.question("triage")).endswith("--step 5-6")
    assert session.ask(session.question("steps")).result.summary[0].step == 5
    session.narrow(session.trace.job.steps)
    assert session.question("triage").steps is None


def test_a_step_that_is_not_there_is_turned_down(session: Session) -> None:
    with pytest.raises(UsageError, match="step 999 is not among"):
        session.narrow((999,))
    assert session.steps is None


def test_the_named_store_is_part_of_the_line(session: Session) -> None:
    session.store = Path("/a store")
    assert session.command(session.question("triage")).endswith(" --store '/a store'")


@pytest.mark.parametrize(
    "line", ["info", "kair info", "localize --fields rank,score", "steps -o csv", "triage --json", "schema triage"]
)
def test_a_typed_command_prints_what_the_shell_prints(session: Session, line: str) -> None:
    printed = typed(line, session)
    said = kair(*shlex.split(printed.command)[1:])
    assert said.status == 0
    assert printed.write(PageOptions()) == said.out


def test_a_typed_command_is_about_the_open_job_and_its_steps(session: Session) -> None:
    session.narrow((5, 6))
    assert typed("steps", session).command == f"kair steps {SAMPLE} --step 5-6"
    assert typed("steps --step 7", session).command == f"kair steps {SAMPLE} --step 7"


def test_help_of_a_command_is_text(session: Session) -> None:
    assert "--rank" in typed("pinpoint --help", session).write(PageOptions())


def test_a_sample_without_fragments_still_makes_a_line() -> None:
    session = Session(trace(), JobSource("job123", Path("/store/job123"), stored=True))
    assert session.command(session.question("triage")) == "kair triage job123"
