"""The options that commands share, each declared once."""

import inspect
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, get_type_hints

import typer

from kair_tui.cli.completion import job_names
from kair_tui.cli.registry import Entry
from kair_tui.render.written import Format, FormatOfGraph


@dataclass(frozen=True)
class JobChoice:
    """Which job, and which of its steps."""

    job: Annotated[
        str | None,
        typer.Argument(
            metavar="JOB",
            help="A job of the store, a folder of traces, or a trace file. "
            "Absent: $KAIR_JOB, else the job of `kair use`, else the most recent.",
            show_default=False,
            autocompletion=job_names,
        ),
    ] = None
    step: Annotated[
        str,
        typer.Option("--step", metavar="STEPS", help="40, 40-60, 40,45,50-52, last or all.", show_default=True),
    ] = "all"


@dataclass(frozen=True)
class JobToShow(JobChoice):
    """The same for the full screen, where the job can be chosen too."""

    job: Annotated[
        str | None,
        typer.Argument(
            metavar="JOB",
            help="A job of the store, a folder of traces, or a trace file. "
            "Absent: $KAIR_JOB, else the one that is chosen on the screen.",
            show_default=False,
            autocompletion=job_names,
        ),
    ] = None


@dataclass(frozen=True)
class FailOn:
    """When the exit status should tell what was found."""

    fail_on: Annotated[
        str | None,
        typer.Option(
            "--fail-on", metavar="WHAT", help="Exit with 10 when found: straggler, or slowdown>1.05 (triage)."
        ),
    ] = None


@dataclass(frozen=True)
class StorePlace:
    """Where the store is."""

    store: Annotated[
        Path | None,
        typer.Option("--store", metavar="DIR", help="The job store's folder; else $KAIR_STORE."),
    ] = None


@dataclass(frozen=True)
class Diagnostics:
    """What a bug report needs."""

    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False


@dataclass(frozen=True)
class Presentation:
    """How the answer is written."""

    output: Annotated[
        FormatOfGraph,
        typer.Option(
            "-o", "--output", help="The format of the answer; the last three are of its graph.", show_default=True
        ),
    ] = "table"
    json: Annotated[bool, typer.Option("--json", help="The same as -o json.")] = False
    fields: Annotated[
        str | None,
        typer.Option("--fields", metavar="A,B", help="Only these columns of the main table."),
    ] = None
    no_color: Annotated[bool, typer.Option("--no-color", help="No colour (also NO_COLOR, TERM=dumb).")] = False
    ascii: Annotated[bool, typer.Option("--ascii", help="Nothing but ASCII.")] = False
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No notes, warnings or progress.")] = False
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Say where things are and how long it took.")] = False

    @property
    def format(self) -> FormatOfGraph:
        """The format asked for, in whichever way."""
        return "json" if self.json else self.output


@dataclass(frozen=True)
class PresentationOfNoGraph(Presentation):
    """The same of an answer that is no graph."""

    output: Annotated[Format, typer.Option("-o", "--output", help="The format of the answer.", show_default=True)] = (
        "table"
    )


Group = TypeVar("Group")

KEPT: Final = "kept"
"""The parameter of a command that is no option: a place where whoever asks keeps things for the next question."""

GROUPS: Final[dict[str, tuple[type[Any], ...]]] = {
    "trace": (JobChoice, StorePlace, PresentationOfNoGraph, Diagnostics),
    "store": (StorePlace, PresentationOfNoGraph, Diagnostics),
    "screen": (JobToShow, StorePlace, Diagnostics),
    "nothing": (Diagnostics,),
}


def parameters(entry: Entry) -> list[inspect.Parameter]:
    """All parameters of a command: JOB, its own options, then the shared ones."""
    own = _own(entry)
    shared = [parameter for group in groups(entry) for parameter in _shared(group)]
    job = [parameter for parameter in shared if parameter.name == "job"]
    return [*job, *own, *(parameter for parameter in shared if parameter.name != "job")]


def groups(entry: Entry) -> tuple[type[Any], ...]:
    """The groups of shared options that a command takes."""
    chosen = GROUPS[entry.needs]
    if entry.is_graph:
        chosen = tuple(Presentation if group is PresentationOfNoGraph else group for group in chosen)
    return (chosen[0], FailOn, *chosen[1:]) if entry.fails_on else chosen


def take(group: type[Group], arguments: dict[str, Any]) -> Group:
    """The shared options of one group, out of all the arguments."""
    return group(**{name: arguments[name] for name in _names(group)})


def own_arguments(entry: Entry, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments that are the command's own."""
    shared: set[str] = {name for group in groups(entry) for name in _names(group)}
    return {name: value for name, value in arguments.items() if name not in shared}


def keeps(entry: Entry) -> bool:
    """Whether the command leaves something for the next question, where it is given a `Kept`."""
    return KEPT in inspect.signature(entry.load()).parameters


def _own(entry: Entry) -> Iterable[inspect.Parameter]:
    run = entry.load()
    hints = get_type_hints(run, include_extras=True)
    declared = list(inspect.signature(run).parameters.values())
    for parameter in declared[0 if entry.needs == "nothing" else 1 :]:
        if parameter.name == KEPT:
            continue
        yield parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)


def _shared(group: type[Any]) -> Iterable[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        yield inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name]
        )


def _names(group: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(group))
