"""Runs any `kair` line about the job that is open, and returns its text."""

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_type_hints

from kair_engine.errors import UsageError
from kair_tui.cli.app import help_text, parse
from kair_tui.cli.invoke import analysed, ask_cache, ask_machine, ask_store, written_file
from kair_tui.cli.job_source import locate, open_job
from kair_tui.cli.options import JobChoice, Presentation, own_arguments, take
from kair_tui.cli.progress import unwatched
from kair_tui.cli.registry import Entry, find, nearest
from kair_tui.cli.step_choice import step_text

if TYPE_CHECKING:
    from pathlib import Path

    from kair_engine.trace.model import Trace
    from kair_tui.render.answer import Answer
    from kair_tui.render.page_options import PageOptions
    from kair_tui.tui.session import Session


@dataclass(frozen=True)
class Printed:
    """What a line answered, and the complete line that a shell needs for the same."""

    text: str
    command: str


def run_line(line: str, session: "Session | None", look: "PageOptions", store: "Path | None" = None) -> Printed:
    """Runs `line` (with or without `kair` before it). Raises what the command raises.

    A command that needs a job takes the open one, narrowed to the chosen steps, unless the line says otherwise; and
    while none is open the one that the shell would take. `store` is the one that was named with `--store`.
    """
    entry, words = _split(line)
    if {"-h", "--help"} & set(words):
        return Printed(help_text(entry), shlex.join(["kair", entry.name, *words]))
    words = _completed(entry, words, session, store)
    arguments = parse(entry, words)
    command = shlex.join(["kair", entry.name, *words])
    if entry.needs == "nothing":
        return Printed(entry.load()(**own_arguments(entry, arguments)), command)
    if entry.needs == "file":
        return Printed(written_file(entry, arguments, _trace(arguments, session)), command)
    if entry.needs == "store":
        answer = ask_store(entry, arguments, unwatched)
    elif entry.needs == "cache":
        answer = ask_cache(entry, arguments)
    elif entry.needs == "machine":
        answer = ask_machine(entry, arguments, unwatched)
    else:
        answer = analysed(entry, arguments, _trace(arguments, session))
    return Printed(_text(entry, answer, take(Presentation, arguments), look), command)


def _split(line: str) -> tuple[Entry, list[str]]:
    try:
        words = shlex.split(line)
    except ValueError:
        raise UsageError(f"a quote is not closed in {line!r}") from None
    words = words[1:] if words[:1] == ["kair"] else words
    entry = find(words[0]) if words else None
    if entry is None:
        near = nearest(words[0]) if words else None
        message = f"no such command {words[0]!r}" if words else "no command"
        raise UsageError(message, f"did you mean {near}?" if near else "? lists them")
    if entry.needs == "screen":
        raise UsageError(f"{entry.name} is what you are looking at")
    if entry.needs == "runbook":
        raise UsageError("runbooks are run in a shell", f"there: {line.strip()}")
    return entry, words[1:]


def _completed(entry: Entry, words: list[str], session: "Session | None", chosen_store: "Path | None") -> list[str]:
    """The line with the open job, its store and the chosen steps, where it does not name others."""
    if entry.needs in ("nothing", "machine", "cache"):
        return words
    has_store = any(word.partition("=")[0] == "--store" for word in words)
    store = [] if has_store or chosen_store is None else ["--store", str(chosen_store)]
    if entry.needs == "store":
        return [*words, *store]
    given = parse(entry, words)
    if given["job"] is not None:
        return [*words, *store]
    if session is None:
        return [locate(None, given["store"] or chosen_store).name, *words, *store]
    named = [session.source.name, *words, *store]
    has_steps = any(word.partition("=")[0] == "--step" for word in words)
    return named if has_steps or session.steps is None else [*named, "--step", step_text(session.steps)]


def _trace(arguments: dict[str, Any], session: "Session | None") -> "Trace":
    choice = take(JobChoice, arguments)
    if session is not None and choice.job == session.source.name:
        return session.trace
    return open_job(choice.job, arguments["store"], progress=unwatched, note=lambda _: None)


def _text(entry: Entry, answer: "Answer", wanted: Presentation, look: "PageOptions") -> str:
    from kair_tui.render.tabular import chosen_fields, field_names
    from kair_tui.render.written import written

    view = entry.load_view()
    keep = None
    if wanted.fields is not None:
        result_type = get_type_hints(entry.load())["return"]
        keep = chosen_fields(wanted.fields, field_names(result_type, view.main))
    text = written(answer, view, wanted.format, replace(look, wide=wanted.format == "wide"), keep)
    notes = "".join(f"warning: {warning.message}\n" for warning in answer.warnings)
    return f"{text}\n{notes}" if notes and wanted.format in ("table", "wide", "tree") else text
