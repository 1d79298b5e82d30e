"""Provides `%kair COMMAND` for IPython and notebooks: an analysis of a job is a value, all else is printed."""

import shlex
from pathlib import Path
from typing import Final

from kair import api
from kair_engine.errors import UsageError

_RECORDS: Final[dict[str, type[api.Written]]] = {
    "triage": api.Triage,
    "blame": api.Blame,
}
"""Of commands whose answers have more than their fields."""
_HELP: Final = {"-h", "--help"}


def kair(line: str) -> api.Written | None:
    """Run the command `line`, typed as in a shell; its record is what the notebook shows.

    Commands that do not analyse a job, and text (`--json`, `-o csv`), are printed. An error is one line on stderr.
    """
    from kair_tui.cli.failures import report

    try:
        return _answered([str(Path(word).expanduser()) if word.startswith("~") else word for word in _words(line)])
    except Exception as error:  # as the command line has it: one line, and a traceback for --debug
        report(error, debug="--debug" in line.split())
        return None


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise UsageError(f"{line}: {str(error)[:1].lower()}{str(error)[1:]}") from None


def _answered(words: list[str]) -> api.Written | None:
    from kair.app.jobs import names_a_job
    from kair_tui.cli.app import parse
    from kair_tui.cli.invoke import opened, presenter_of, require_sound
    from kair_tui.cli.main import main
    from kair_tui.cli.options import FailOn, presentation_of, take
    from kair_tui.cli.registry import find

    if words and find(words[0]) is None and names_a_job(words[0]):
        words = ["triage", *words]
    entry = find(words[0]) if words else None
    if entry is None or entry.needs != "trace" or not entry.asks or entry.is_query or _HELP & {*words}:
        main(words)
        return None
    arguments = parse(entry, words[1:])
    if presentation_of(entry, arguments).format != "table" or (entry.fails_on and take(FailOn, arguments).fail_on):
        main(words)
        return None
    from kair_tui.cli.asking import asked_of_job, shown

    presenter = presenter_of(entry, arguments)
    require_sound(entry, arguments)
    with presenter.progress_bar() as progress:
        session = opened(entry, arguments, progress, presenter.note)
        answer = asked_of_job(entry, arguments, session)
    for warning in shown(answer).warnings:
        presenter.note(f"warning: {warning.message}")
    record = _RECORDS.get(entry.name) or type("Answer", (api.Written, type(answer.result)), {})
    made: api.Written = record.of(answer, session)  # type: ignore[attr-defined]
    return made
