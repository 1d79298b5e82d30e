"""`kair run`: runs a runbook from its first line to its last."""

import time
from collections.abc import Sequence
from typing import Annotated

from kair_engine.errors import UsageError
from kair_tui.cli.options import Argument, Option, Presentation
from kair_tui.cli.wanted import JobWanted
from kair_tui.shell.run_result import NOTHING_RAN, RunResult
from kair_tui.shell.runbooks import Runbook, listed, offered, read_runbook, values_of

RENDERER = "kair_tui.render.run"


def run(
    wanted: JobWanted,
    presentation: Presentation,
    *,
    runbook: Annotated[
        str | None, Argument("A file, the name of a runbook that comes with Kair, or - for stdin.", offers=offered)
    ] = None,
    list_all: Annotated[
        bool, Option("--list", "List the runbooks that come with Kair and those in this folder, and run none.")
    ] = False,
    settings: Annotated[
        Sequence[str], Option("--set", "Give a variable of the runbook a value. Can be repeated.", metavar="NAME=VALUE")
    ] = (),
    keep_going: Annotated[bool, Option("-k, --keep-going", "Go on after a statement that fails.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", "Check the runbook and print the plan.")] = False,
    allow_shell: Annotated[bool, Option("--allow-shell", "Run lines that begin with ! in the system's shell.")] = False,
) -> RunResult:
    """Check the whole runbook, then run it; answers for people are written as they come.

    Raises UsageError if no runbook is named or it cannot work, InputError if it does not exist.
    """
    if list_all:
        return _listed(presentation)
    if runbook is None:
        raise UsageError("missing RUNBOOK", "kair run --list shows which there are")
    values = values_of(tuple(settings))
    book = read_runbook(runbook, values, allow_shell=allow_shell)
    if dry_run:
        return _plan(book, wanted, presentation)
    from kair_tui.shell.batch import open_session

    began = time.monotonic()
    session = open_session(wanted, presentation, place=f"{book.name}:")
    for_people = presentation.format in ("table", "wide", "tree")
    script = session.script(for_people=for_people, keep_going=keep_going)
    session.assign(values)
    script.run(book.statements)
    state = session.state
    took = (time.monotonic() - began) * 1e6
    job = None if state.source is None else state.source.name
    result = RunResult(book.name, job, script.status, script.summary, state.jobs_read, took, tuple(script.runs))
    session.print_ending(result, for_people=for_people)
    return result


def _listed(presentation: Presentation) -> RunResult:
    if presentation.format == "csv":
        raise UsageError("-o csv has the statements of a runbook, and --list runs none", "-o json has the list")
    return RunResult("", None, 0, NOTHING_RAN, 0, 0.0, (), listed())


def _plan(book: Runbook, wanted: JobWanted, presentation: Presentation) -> RunResult:
    from kair_tui.shell.batch import write_plan
    from kair_tui.shell.script import planned

    result = RunResult(book.name, wanted.job, 0, NOTHING_RAN, 0, 0.0, tuple(planned(book.statements)))
    if presentation.format in ("table", "wide", "tree"):
        write_plan(book, wanted, presentation)
    return result
