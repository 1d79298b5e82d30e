"""Describes the commands that `kair mcp` offers to its clients, and turns a call into words of the command line."""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import click

from kair.app.evidence import is_url
from kair.app.jobs import is_stored
from kair_engine.errors import UsageError
from kair_engine.frozen import dataclass
from kair_tui.cli.app import parameters
from kair_tui.cli.options import (
    Diagnostics,
    EngineChoice,
    FailOn,
    Following,
    NamedPath,
    Number,
    Presentation,
    StorePlace,
    groups,
    names,
)
from kair_tui.cli.registry import Entry, find

MOST_ROWS: Final = "most_rows"
"""An argument that every tool takes, and that `kair mcp` itself carries out."""
DEFAULT_ROWS: Final = 100
_LONGEST: Final = 4096
"""The most characters of one argument."""
_MOST_VALUES: Final = 100
"""The most values of an argument that takes several."""
_KEPT: Final = frozenset({"fields"})
"""Options of the groups that `kair mcp` decides itself, which a client may set all the same."""
_PLACES: Final = frozenset({"job", "base", "new"})
"""Arguments that name a job of the store or a path."""
_EVIDENCE: Final = "evidence"


@dataclass(frozen=True)
class Tool:
    """A command, as `kair mcp` offers it to clients."""

    name: str
    note: str
    """One sentence on how to read its figures, for the client."""
    without: frozenset[str] = frozenset()
    """Parameters that clients do not get: they change something, or have no use here."""
    action: str = ""
    """The action that only reads, if the command has several."""
    called: tuple[tuple[str, str], ...] = ()
    """Parameters of several words, each with the name of the single argument that stands for it here."""
    flags: tuple[str, ...] = ()
    """Options that are always set."""

    @property
    def entry(self) -> Entry:
        """The command in the registry."""
        found = find(f"{self.name} {self.action}".rstrip())
        assert found is not None, self.name
        return found


_IN_US: Final = "names that end in _us are microseconds, shares are of 1."

TOOLS: Final = (
    Tool(
        "triage",
        "Begin here: `ranks` of a finding are to blame for `time_lost_us_per_step` microseconds, several for those of "
        "`accused_together`, as they hide one another; `open` is what nothing explains; ranks that wait for "
        "them are victims, whom a long time in a collective does not make guilty.",
    ),
    Tool(
        "ticket",
        "Text for whoever mends the host, of one finding of triage; its commands are proposals that nobody ran.",
        without=frozenset({"drain", "yes"}),
    ),
    Tool(
        "localize",
        "Scores compare self time, in microseconds and without waiting for others, with ranks of the same role; a high "
        "score alone accuses nobody.",
    ),
    Tool("pinpoint", f"Operators of one rank that take longer than on its peers; {_IN_US}"),
    Tool(
        "blame",
        "Whoever waits is a victim and not the cause; root causes are where the walk back from waiting ends, times in "
        "microseconds.",
    ),
    Tool(
        "whatif",
        "Replays the recording with other durations: `slowdown` is a ratio to the job without stragglers, and a delay "
        "that others hide saves nothing.",
    ),
    Tool(
        "forecast",
        "It predicts noise alone, in microseconds a step: no measurement, and nobody is to blame for it.",
    ),
    Tool("compare", f"Differences are of NEW to BASE, positive where NEW takes longer; {_IN_US}"),
    Tool("rank", f"Waiting is no work of this rank and no guilt; {_IN_US}"),
    Tool(
        "sensitivity",
        "A smaller slowdown than these, in microseconds a step, may be there and would not be seen.",
    ),
    Tool("frequency", "Counts are per window of time; fewer on one rank than on its peers point at a stall."),
    Tool("operators", f"Collectives include waiting, which is no guilt of the rank that waits; {_IN_US}"),
    Tool(
        "query",
        "SQL over tables of the job, for what no other tool answers: ask with `tables` first, which describes them and "
        "their units.",
        without=frozenset({"fields"}),
    ),
    Tool("collectives", "Bandwidths are GB/s of transfers from their last member's arrival on, without waiting."),
    Tool("timeline", "Times are microseconds from the start of what is shown; a long collective is mostly waiting."),
    Tool("steps", "Durations are microseconds of each step on each rank; all ranks wait for the slowest."),
    Tool("info", "If triage is inconclusive, this shows what the recording lacks."),
    Tool("jobs", "Their names are what `job` of other tools takes.", action="list"),
    Tool("fleet", "It is about all jobs of the store; shares are of 1."),
    Tool("ledger", "Predicted and actual savings are microseconds a step."),
    Tool(
        "evidence",
        "Times are Unix nanoseconds.",
        without=frozenset({_EVIDENCE}),
        action="list",
    ),
    Tool("watch", "It shows what the coordinator of a running job saw last.", flags=("--once",)),
    Tool("help", "It explains words of Kair's answers, such as straggler or excess.", called=(("word", "word"),)),
)
"""The tools. All of them only read: none writes into the store (`kair_tui.cli.read_only`) or runs a program."""


def tool_of(name: str) -> Tool | None:
    """Return the tool of that name, if there is one."""
    return next((tool for tool in TOOLS if tool.name == name), None)


def description(tool: Tool) -> str:
    """Return what the command answers, and how to read it."""
    return f"{tool.entry.summary} {tool.note}"


@cache
def arguments(tool: Tool) -> dict[str, click.Parameter]:
    """Return the parameters that a client may set, by name.

    Parameters that write are left out, and so is the choice of format, store, exit status and cluster.
    """
    decided = {
        name
        for group in groups(tool.entry)
        if issubclass(group, Presentation | StorePlace | Diagnostics | FailOn | EngineChoice | Following)
        for name in names(group)
    }
    return {
        dict(tool.called).get(str(one.name), str(one.name)): one
        for one in parameters(tool.entry)
        if (one.name not in decided or one.name in _KEPT)
        and one.name not in tool.without
        and not isinstance(one.type, NamedPath)
    }


def input_schema(tool: Tool) -> dict[str, Any]:
    """Return the JSON Schema of the arguments."""
    known = arguments(tool)
    properties = {name: _described(one, single=one.name in dict(tool.called)) for name, one in known.items()}
    if tool.entry.has_result:
        properties[MOST_ROWS] = {
            "type": "integer",
            "minimum": 1,
            "default": DEFAULT_ROWS,
            "description": "The most rows of every table, counted from the first; a warning says what was left out.",
        }
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name, one in known.items() if one.required],
        "additionalProperties": False,
    }


def output_schema(tool: Tool) -> dict[str, Any] | None:
    """Return the JSON Schema of the command's document; None if the command answers in text.

    Rows of its main table may lack the fields that `fields` leaves out.
    """
    if not tool.entry.has_result:
        return None
    from kair_tui.commands.schema import schema_of

    schema = schema_of(tool.entry)
    result = schema["properties"]["data"]["$ref"]
    main = tool.entry.load_view().main
    row = result if main is None else _definition(schema, result)["properties"][main]["items"].get("$ref")
    if row is not None:
        _definition(schema, row).pop("required", None)
    return schema


def words(tool: Tool, given: Mapping[str, Any], store: Path, root: Path | None) -> list[str]:
    """Return the words after `kair`. Raises UsageError for arguments that it does not take or may not read."""
    known = arguments(tool)
    options: list[str] = [*tool.flags, *(("--json", f"--store={store}") if tool.entry.has_result else ())]
    positional: list[str] = []
    unknown = [name for name in given if name not in known and not (name == MOST_ROWS and tool.entry.has_result)]
    if unknown:
        raise UsageError(f"{tool.name} takes no argument {unknown[0]!r}", f"there are: {', '.join(known)}")
    for name, one in known.items():
        value = given.get(name)
        if value is None:
            continue
        texts = _texts(name, value, one)
        if name in _PLACES:
            texts = [_readable(text, store, root) for text in texts]
        if name == _EVIDENCE:
            texts = [_local(text, root) for text in texts]
        if isinstance(one, click.Argument):
            positional += texts
        elif not one.is_flag:  # type: ignore[attr-defined]
            options += [f"{max(one.opts, key=len)}={text}" for text in texts]
        elif value is True:
            options.append(max(one.opts, key=len))
    return [*tool.entry.line.split(), *options, "--", *positional]


def rows_wanted(given: Mapping[str, Any]) -> int:
    """Return how many rows of a table a client wants. Raises UsageError unless that is a positive whole number."""
    most = given.get(MOST_ROWS, DEFAULT_ROWS)
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise UsageError(f"{MOST_ROWS} must be a whole number from 1 on")
    return most


def _described(one: click.Parameter, *, single: bool) -> dict[str, Any]:
    value = _value(one)
    several = (one.multiple or one.nargs == -1) and not single
    shape = {"type": "array", "items": value, "maxItems": _MOST_VALUES} if several else value
    default = one.to_info_dict()["default"]
    has_default = isinstance(default, str | int | float) and not several
    text = {"description": one.help} if one.help else {}
    return {**shape, **({"default": default} if has_default else {}), **text}


def _value(one: click.Parameter) -> dict[str, Any]:
    kind = one.type
    if isinstance(kind, click.Choice):
        return {"type": "string", "enum": list(kind.choices)}
    if isinstance(kind, Number):
        return {"type": kind.name, **({} if kind.minimum is None else {"minimum": kind.minimum})}
    if kind.name == "boolean":
        return {"type": "boolean"}
    return {"type": "string", "minLength": 1, "maxLength": _LONGEST}


def _texts(name: str, value: Any, one: click.Parameter) -> list[str]:  # noqa: ANN401
    """Return the values of one argument as words of the command line, which checks them again. Raises UsageError."""
    several = one.multiple or one.nargs == -1
    values = value if isinstance(value, list) and several else [value]
    if len(values) > _MOST_VALUES:
        raise UsageError(f"{name}: at most {_MOST_VALUES} values, not {len(values)}")
    is_flag = _value(one)["type"] == "boolean"
    for each in values:
        if isinstance(each, bool) is not is_flag or not isinstance(each, str | int | float):
            raise UsageError(f"{name} is not what the tool's schema says")
        if len(str(each)) > _LONGEST:
            raise UsageError(f"{name} is longer than {_LONGEST} characters")
        if isinstance(each, str) and not _can_be_said(each):
            raise UsageError(f"{name} has characters that no argument can have")
    return [str(each) for each in values]


def _can_be_said(text: str) -> bool:
    """Return whether the text can be an argument of a process: NUL and half of a UTF-16 pair cannot."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def _readable(place: str, store: Path, root: Path | None) -> str:
    return place if root is None or is_stored(place, store) else _below(place, root)


def _local(place: str, root: Path | None) -> str:
    if is_url(place):
        raise UsageError("kair mcp asks no servers", "kair evidence add JOB URL keeps what one knows with the job")
    return place if root is None else _below(place, root)


def _below(place: str, root: Path) -> str:
    """Return the path, which is relative to `root`. Raises UsageError if it leads out of that folder."""
    try:
        whole = (root / place).resolve()
    except (OSError, RuntimeError) as error:
        raise UsageError(f"{place} cannot be looked at") from error
    if not whole.is_relative_to(root):
        raise UsageError(f"{place} is outside of the folder that kair mcp was given with --root")
    for link in _links_out(whole, root):
        raise UsageError(f"{link} is a link out of the folder that kair mcp was given with --root")
    return place


def _links_out(whole: Path, root: Path) -> Iterator[Path]:
    """Yield the symbolic links that lead out of `root` and would be followed: below a folder, or next to a file."""
    seen: set[Path] = set()
    folders = [whole] if whole.is_dir() else [whole.parent]
    is_file = not whole.is_dir()
    while folders:
        folder = folders.pop()
        try:
            seen.add(folder.resolve())
            entries = sorted(folder.iterdir())
        except (OSError, RuntimeError):
            continue
        for entry in entries:
            if entry.is_symlink() and not _leads_below(entry, root):
                yield entry
            # Next to a file only the evidence folder is read.
            elif entry.is_dir() and (not is_file or entry.name == _EVIDENCE) and entry.resolve() not in seen:
                folders.append(entry)
        is_file = False


def _leads_below(link: Path, root: Path) -> bool:
    try:
        return link.resolve().is_relative_to(root)
    except (OSError, RuntimeError):
        return True  # a circle leads nowhere


def _definition(schema: Mapping[str, Any], reference: str) -> dict[str, Any]:
    found: dict[str, Any] = schema["$defs"][reference.rpartition("/")[2]]
    return found
