"""The options of commands: converts annotated parameters to Typer's, and defines the options that commands share.

A type and a default are declared once, in the signature of a command's `run`; a shared option once, here.
"""

import inspect
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

import click
import typer
from click.shell_completion import CompletionItem
from typer.models import ArgumentInfo, ParameterInfo

from kair_engine.errors import UsageError
from kair_engine.frozen import dataclass
from kair_engine.results.money import GpuCost
from kair_tui.cli.completion import job_names
from kair_tui.cli.registry import Entry
from kair_tui.render.written import AnyFormat, Format, FormatOfGraph, FormatOfPicture, FormatOfRows, FormatOfVerdict

LARGEST: Final = 1e12
"""Limit of a number that need not be whole: results of larger ones may exceed floats."""


def Option(flags: str, help: str, metavar: str | None = None, minimum: int | None = None) -> Any:  # noqa: A002, ANN401, N802
    """Describe an option: its flags, as the help shows them, and its help text."""
    return typer.Option(*flags.split(", "), help=help, metavar=metavar, min=minimum)


GPU_COST: Final = Option(
    "--gpu-cost", "The price of a GPU hour, such as 2.5 or 2.5USD; costs are then in money, too.", "PRICE", 0
)


def Argument(  # noqa: N802
    help: str,  # noqa: A002
    offers: Callable[[str], list[str]] | None = None,
    *,
    metavar: str | None = None,
    verbatim: bool = False,
    after_job: bool = False,
) -> Any:  # noqa: ANN401
    """Describe a positional parameter; `offers` completes it, else file names do.

    `metavar`: its name in the help, without blanks, if different from the parameter's. `verbatim`: the words of another
    command, which may be empty. `after_job`: it comes last, and may stand alone without a job.
    """
    return typer.Argument(
        help=help,
        metavar=metavar,
        click_type=Name(offers, verbatim=verbatim) if offers or verbatim else None,
        callback=_after_job if after_job else None,
    )


def _after_job(context: click.Context, value: str | None) -> str | None:
    """Return the argument: a single word with blanks is the argument instead of a job, unless a job has that name."""
    from kair.app.jobs import names_a_job

    job = context.params.get("job")
    if value is None and job is not None and re.search(r"[\s(]", job) and not names_a_job(job):
        context.params["job"], value = None, job
    return value


class Number(click.ParamType[float]):
    """A finite number, whole or not, of at least `minimum`."""

    def __init__(self, kind: type[int] | type[float], minimum: float | None) -> None:
        self.name = "integer" if kind is int else "number"
        self._kind = kind
        self.minimum = minimum

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401
        """Return the typed number; errors follow the option's name."""
        number = None
        with suppress(ValueError, OverflowError):
            if math.isfinite(read := self._kind(value)):
                number = read
        if number is None:
            self.fail(f"must be a {'whole ' if self._kind is int else ''}number, got {value!r}", param, ctx)
        if self.minimum is not None and number < self.minimum:
            self.fail(f"must be {self.minimum} or more, got {value}", param, ctx)
        if self._kind is float and abs(number) > LARGEST:
            self.fail(f"must be {LARGEST:,.0f} or less, got {value}", param, ctx)
        return number


class Price(Number):
    """The price of a GPU hour, with or without its currency."""

    def __init__(self, minimum: float | None) -> None:
        super().__init__(float, minimum)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> GpuCost:  # noqa: ANN401
        """Return the typed price; numbers are checked as in other options."""
        price = GpuCost(0)
        with suppress(UsageError):
            price = GpuCost.of(value)
        typed = value if price.currency is None else float(price)
        try:
            float(typed)
        except ValueError:
            self.fail(f"must be a price such as 2.5 or 2.5USD, got {value!r}", param, ctx)
        return GpuCost(super().convert(typed, param, ctx), price.currency)


class Name(click.ParamType[str]):
    """A name, which must not be empty (unless `verbatim`): an empty one is an unset variable."""

    name = "text"

    def __init__(self, offers: Callable[[str], list[str]] | None = None, *, verbatim: bool = False) -> None:
        self._offers = offers
        self._verbatim = verbatim

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ANN401
        """Return the name as typed."""
        if not (value.strip() or self._verbatim):
            self.fail("is an empty name", param, ctx)
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        """Complete by offered names, else as a file."""
        offered = self._offers(incomplete) if self._offers else ()
        return [CompletionItem(name) for name in offered] or [CompletionItem(incomplete, type="file")]


class NamedPath(click.Path):
    """A path that names something: an empty one, from an unset variable, is not the current directory.

    An unreadable path is unreadable input, which the reader refuses, and no wrong usage.
    """

    def __init__(self) -> None:
        super().__init__(readable=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        """Return the path as typed."""
        if value == "":
            self.fail("is an empty name", param, ctx)
        return super().convert(value, param, ctx)


def written_as(parameter: click.Parameter) -> str:
    """Return `--rank`, the long form of an option, or `JOB` for an argument."""
    return max(parameter.opts, key=len) if isinstance(parameter, click.Option) else parameter.human_readable_name


METHOD: Final = Option("--method", "Robust statistics, or the published method.")

CLOCK: Final = Option(
    "--clock", "Paper method: a step begins with each rank itself, or for the whole job with the first rank."
)


EVIDENCE: Final = Option(
    "--evidence",
    "Logs, metrics and counters of the job's hosts: a file, a folder, or the URL of a Prometheus server. Repeatable.",
    metavar="WHERE",
)


PERFETTO: Final = Option(
    "--perfetto",
    "Write the chosen steps of all ranks, findings marked, for ui.perfetto.dev: .json, .json.gz or .pftrace.",
    metavar="FILE",
)


RANK: Final = Option("-r, --rank", "The rank to look at.", metavar="R", minimum=0)
ONLY_RANK: Final = Option("-r, --rank", "Show only this rank, or show it first.", metavar="R", minimum=0)
"""For commands about all ranks. Their parameter is not called `rank`: a shell's focus on a rank does not apply."""


_JOB: Final = "A job of the store, a folder of traces, or a trace file. Default: $KAIR_JOB, else "


@dataclass(frozen=True)
class JobChoice:
    """The job, and the choice of its steps."""

    job: Annotated[
        str | None, Argument(_JOB + "the job chosen with `kair use`, else the most recent one.", job_names)
    ] = None
    step: Annotated[
        str, Option("--step", "The steps to analyse: 40, 40-60, 40,45,50-52, last or all.", metavar="STEPS")
    ] = "all"


@dataclass(frozen=True)
class FilesOfJob(JobChoice):
    """The same if a shell's pattern may name the files of one job."""

    files: Annotated[
        Sequence[Path], Argument("More trace files, or folders, of the same job: kair triage traces/*.gz.")
    ] = ()


@dataclass(frozen=True)
class FilesOfLog(FilesOfJob):
    """The same for a command that can use a job's log."""

    log_pattern: Annotated[
        str | None,
        Option(
            "--log-pattern",
            "How lines of steps look in a log of another format: a regex (Rust's) with the named groups step, time "
            "(seconds) or ms, and rank where each rank prints.",
            metavar="REGEX",
        ),
    ] = None


_FAIL_ON: Final = {
    "trace": "Exit with status 10 if one of these is found: straggler; for triage also job_wide, inconclusive, "
    "finding, slowdown>1.05. Or a condition about a field: FIELD == VALUE. Separated by commas, or repeated.",
    "machine": "With --compare: exit with status 10 if the suspect is slower, or a condition holds: FIELD == VALUE.",
    "running": "Exit with status 10 as soon as one of these is noticed: slow_rank, longer_steps, stalled, silent_host, "
    "rank_died, or any alert; or a condition about a field: FIELD == VALUE. Separated by commas, or repeated.",
}
"""By the command's needs."""


@dataclass(frozen=True)
class FailOn:
    """When the exit status should show a finding."""

    fail_on: Annotated[Sequence[str], Option("--fail-on", _FAIL_ON["trace"], metavar="WHAT")] = ()


@dataclass(frozen=True)
class Following:
    """How often to poll, and until when."""

    once: Annotated[bool, Option("--once", "Look once. So do -o json, csv and tree.")] = False
    every: Annotated[float, Option("--every", "How often to look.", metavar="S", minimum=0)] = 1.0


@dataclass(frozen=True)
class BaselineChoice:
    """What the run is compared with in addition to its own ranks."""

    baseline: Annotated[
        str | None,
        Option(
            "--baseline",
            "The saved baseline to compare the run with; none for none. Default: the one of `kair baseline use`.",
            metavar="NAME",
        ),
    ] = None


@dataclass(frozen=True)
class EngineChoice:
    """Where per-step work is computed."""

    engine: Annotated[
        Literal["local", "dask"],
        Option("--engine", "Analyse steps in this process, or on the workers of a Dask cluster."),
    ] = "local"
    scheduler: Annotated[
        str | None,
        Option(
            "--scheduler",
            "With --engine dask: the cluster's address or scheduler file. Default: $DASK_SCHEDULER_ADDRESS.",
            metavar="ADDRESS",
        ),
    ] = None


@dataclass(frozen=True)
class StorePlace:
    """The store's place."""

    store: Annotated[
        Path | None,
        Option(
            "--store",
            "The folder or URL of the job store. Default: $KAIR_STORE, else one in your data folder.",
            metavar="DIR",
        ),
    ] = None


@dataclass(frozen=True)
class Diagnostics:
    """Details for a bug report."""

    debug: Annotated[bool, Option("--debug", "Show the traceback of an error.")] = False


_FORMATS: Final = (
    ("is_graph", FormatOfGraph, "The output format; the last three write the answer's graph."),
    ("is_picture", FormatOfPicture, "The output format; svg is a picture."),
    ("is_query", FormatOfRows, "The output format; parquet is for files and pipes."),
    ("has_oneline", FormatOfVerdict, "The output format; oneline is for chat, pager and job comments."),
)
"""The formats of commands whose entry has this attribute."""


PLAIN: Final = "Draw no bars and no tables, one item a line: for screen readers."


@dataclass(frozen=True)
class Presentation:
    """How the answer is written."""

    output: Annotated[Format, Option("-o, --output", "The output format.")] = "table"
    json: Annotated[bool, Option("--json", "The same as -o json.")] = False
    fields: Annotated[str | None, Option("--fields", "Only these columns of the main table.", metavar="A,B")] = None
    no_color: Annotated[bool, Option("--no-color", "Use no colour (also: NO_COLOR, TERM=dumb).")] = False
    ascii: Annotated[bool, Option("--ascii", "Use ASCII characters only.")] = False
    plain: Annotated[bool, Option("--plain", PLAIN)] = False
    quiet: Annotated[bool, Option("-q, --quiet", "Show no notes, warnings or progress.")] = False
    verbose: Annotated[bool, Option("-v, --verbose", "Show where things are and how long it took.")] = False

    @property
    def format(self) -> AnyFormat:
        """The chosen format, by any of its options."""
        return "json" if self.json else self.output


@dataclass(frozen=True)
class PresentationOfVerdict(Presentation):
    """The same for an answer that can also be written on one line."""

    oneline: Annotated[bool, Option("--oneline", "The same as -o oneline.")] = False

    @property
    def format(self) -> AnyFormat:
        """The chosen format, by any of its options."""
        return "oneline" if self.oneline and not self.json else super().format


@dataclass(frozen=True)
class PresentationOfFile:
    """How the writing of a file is reported."""

    quiet: Annotated[bool, Option("-q, --quiet", "Show no notes, warnings or progress.")] = False


Options = TypeVar("Options")

GROUPS: Final[dict[str, tuple[type[Any], ...]]] = {
    "trace": (FilesOfJob, StorePlace, Presentation, Diagnostics),
    "file": (FilesOfJob, StorePlace, PresentationOfFile, Diagnostics),
    "store": (StorePlace, Presentation, Diagnostics),
    "cache": (Presentation, Diagnostics),
    "certificate": (Presentation, Diagnostics),
    "machine": (Presentation, Diagnostics),
    "screen": (FilesOfJob, StorePlace, Diagnostics),
    "shell": (FilesOfJob, StorePlace, Diagnostics),
    "runbook": (FilesOfJob, StorePlace, Presentation, Diagnostics),
    "process": (StorePlace, Diagnostics),
    "running": (Following, FailOn, StorePlace, Presentation, Diagnostics),
    "nothing": (Diagnostics,),
}


def signature(entry: Entry) -> inspect.Signature:
    """Return the signature that Typer reads: the command's own parameters, then the shared ones."""
    own_words = _own_words(entry)
    taken = [*_described(entry.load(), {}), *(one for group in groups(entry) for one in _described(group, own_words))]
    if entry.is_query:
        taken.append(taken.pop(0))  # the query comes after the job and its files
    return inspect.Signature(taken)


def _own_words(entry: Entry) -> dict[str, Any]:
    """Return the annotations of shared options that this command words differently."""
    words: dict[str, Any] = {}
    for is_so, form, text in _FORMATS:
        if getattr(entry, is_so):
            words["output"] = Annotated[form, Option("-o, --output", text)]
    if entry.needs == "screen":
        words["job"] = Annotated[str | None, Argument(_JOB + "choose on the screen.", job_names)]
    if entry.needs in _FAIL_ON:
        words["fail_on"] = Annotated[Sequence[str], Option("--fail-on", _FAIL_ON[entry.needs], metavar="WHAT")]
    return words


def _described(source: Callable[..., Any], own_words: dict[str, Any]) -> Iterator[inspect.Parameter]:
    """Yield the parameters of a function, or fields of a dataclass, that are annotated with Option or Argument."""
    hints = get_type_hints(source, include_extras=True) | own_words
    for parameter in inspect.signature(source).parameters.values():
        if get_origin(hint := hints[parameter.name]) is Annotated:
            default = None if parameter.default == () else parameter.default
            annotation = _for_typer(*get_args(hint))
            yield inspect.Parameter(parameter.name, parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _for_typer(annotation: Any, info: ParameterInfo) -> Any:  # noqa: ANN401
    """Return an annotation with lists for sequences, and with this module's parameter types."""
    kind = annotation if get_origin(annotation) is Literal else (get_args(annotation) or (annotation,))[0]
    info = copy(info)
    if kind is GpuCost:
        info.click_type = Price(info.min)
    elif kind in (int, float):
        info.click_type = Number(kind, info.min)
    elif kind is Path:
        info.click_type = NamedPath()
    elif isinstance(info, ArgumentInfo) and info.click_type is None:
        info.click_type = Name()
    return Annotated[list[kind] if get_origin(annotation) is Sequence else annotation, info]  # type: ignore[valid-type]


def groups(entry: Entry) -> tuple[type[Any], ...]:
    """Return the groups of shared options that a command takes."""
    chosen = tuple(FilesOfLog if group is FilesOfJob and entry.reads_logs else group for group in GROUPS[entry.needs])
    if entry.has_oneline:
        chosen = tuple(PresentationOfVerdict if group is Presentation else group for group in chosen)
    if entry.needs == "running":
        return chosen
    if entry.needs == "machine":
        return (FailOn, *chosen)
    if entry.takes_baseline:
        chosen = (chosen[0], BaselineChoice, *chosen[1:])
    if entry.on_workers:
        chosen = (*chosen[:-2], EngineChoice, *chosen[-2:])
    return (chosen[0], FailOn, *chosen[1:]) if entry.fails_on else chosen


def presentation_of(entry: Entry, arguments: dict[str, Any]) -> Presentation:
    """Return how the command's answer is to be written."""
    return take(next(group for group in groups(entry) if issubclass(group, Presentation)), arguments)


def take(group: type[Options], arguments: dict[str, Any]) -> Options:
    """Return the shared options of one group, out of all the arguments."""
    return group(**{name: arguments[name] for name in names(group)})


def own_arguments(entry: Entry, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that are the command's own."""
    shared: set[str] = {name for group in groups(entry) for name in names(group)}
    return {name: value for name, value in arguments.items() if name not in shared}


def workers_of(entry: Entry, arguments: dict[str, Any]) -> str | None:
    """Return the address of the chosen cluster; None without one. Raises UsageError if no cluster is named."""
    chosen = take(EngineChoice, arguments) if entry.on_workers else EngineChoice()
    if chosen.engine == "local":
        if chosen.scheduler is not None:
            raise UsageError("--scheduler belongs to --engine dask")
        return None
    if arguments.get("method") == "paper":
        raise UsageError("--method paper works in this process alone: --engine dask belongs to the robust method")
    address = chosen.scheduler or os.environ.get(_ADDRESS)
    if not address:
        raise UsageError("--engine dask needs a cluster", f"--scheduler tcp://HOST:8786, or ${_ADDRESS}")
    return address


_ADDRESS: Final = "DASK_SCHEDULER_ADDRESS"


def names(group: type[Any]) -> tuple[str, ...]:
    """Return the names of a group's options."""
    return tuple(field.name for field in fields(group))
