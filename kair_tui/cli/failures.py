"""Exit statuses, and the one line for the user if there is no answer: every way of ending."""

import traceback
from collections.abc import Mapping
from enum import IntEnum
from typing import Final

import click
from click.exceptions import Exit

from kair_engine.errors import DamagedJobError, KairError, NameTakenError, UnwritableStoreError
from kair_tui.cli.output import abandon_stdout, say, say_lines
from kair_tui.cli.registry import COMMANDS, nearest

REPORT = "this is a defect of Kair: please report it with the output of the same command and --debug"
_WITH_OPTIONS: Final[Mapping[type[KairError], str]] = {
    DamagedJobError: "import the job again with --replace",
    NameTakenError: "--replace overwrites it",
}
"""Hints that name options of the command line, which the engine does not know."""
_SAME_MEANING: Final[Mapping[str, str]] = {"--stage": "--phase"}
"""Other programs' names of an option."""

_OF_WORKERS: Final = ("--engine", "--scheduler")


class ExitCode(IntEnum):
    """The meanings of exit statuses, for every command; part of the command-line contract."""

    ANSWERED = 0
    """Answered, whether or not a straggler was found."""
    FAILED = 1
    """The analysis failed because of a defect of Kair, or a command that `--yes` ran failed."""
    USAGE = 2
    """Wrong usage or configuration."""
    INPUT = 3
    """The input is missing, unreadable or not a trace; or the output cannot be written."""
    FOUND = 10
    """Only with `--fail-on`: a named condition holds."""
    INTERRUPTED = 130
    """Ctrl-C."""
    PIPE_CLOSED = 141
    """The reader of stdout closed it."""


def report(error: BaseException, *, debug: bool = False, ascii_only: bool = False, where: str = "") -> int:
    """Write to stderr what went wrong, prefixed by `where`, and return the exit status."""
    if isinstance(error, Exit):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    if isinstance(error, BrokenPipeError):
        abandon_stdout()
        return ExitCode.PIPE_CLOSED
    if debug:
        say_lines(traceback_of(error))
    message, hint, status = explained(error)
    say(f"kair: error: {where}{message}", ascii_only=ascii_only)
    if hint:
        say(f"hint: {hint}", ascii_only=ascii_only)
    return status


def traceback_of(error: BaseException) -> str:
    """Return the traceback, formatted by Python."""
    return "".join(traceback.format_exception(error))


def explained(error: BaseException) -> tuple[str, str | None, int]:
    """Return the text for an error: message, hint if any, and exit status."""
    if isinstance(error, KairError):
        # The base class itself is raised for unwritable outputs: a full disk, a read-only store.
        status = ExitCode.INPUT if type(error) is KairError else error.exit_code
        is_store = isinstance(error, UnwritableStoreError)
        hint = f"{error.hint} with --store" if is_store else _WITH_OPTIONS.get(type(error), error.hint)
        return _one_line(str(error)), hint, status
    if isinstance(error, click.UsageError):
        return _one_line(_usage(error)), _way_out(error), ExitCode.USAGE
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}", None, ExitCode.INPUT
    if isinstance(error, OSError) and error.strerror:
        return error.strerror, None, ExitCode.INPUT
    if isinstance(error, MemoryError):
        return "out of memory", "choose fewer steps with --step", ExitCode.FAILED
    return f"{type(error).__name__}: {_one_line(str(error))}", REPORT, ExitCode.FAILED


_MEANS_TRIAGE: Final = frozenset(
    {"show", "analyze", "analyse", "diagnose", "check", "open", "view", "summary", "report", "hang", "hangs", "stuck"}
)
"""First words that people try."""


def _usage(error: click.UsageError) -> str:
    """Return Click's message in the wording of all other errors."""
    if isinstance(error, click.BadParameter) and error.param is not None:
        from kair_tui.cli.options import written_as

        name = written_as(error.param)
        return f"missing {name}" if isinstance(error, click.MissingParameter) else f"{name} {error.message}".rstrip(".")
    return error.message[:1].lower() + error.message[1:].rstrip(".")


def _way_out(error: click.UsageError) -> str:
    if isinstance(error, click.NoSuchCommand) and (meant := _command_meant(error)):
        return f"did you mean {meant}?"
    if isinstance(error, click.MissingParameter) and (hint := _what_is_missing(error)):
        return hint
    if isinstance(error, click.NoSuchOption) and error.option_name in _OF_WORKERS:
        taking_part = [f"kair {entry.name}" for entry in COMMANDS if entry.on_workers]
        return f"a cluster works for {', '.join(taking_part)}; this command works in its own process alone"
    if isinstance(error, click.NoSuchOption) and error.option_name == "--rank":
        return "kair rank JOB --rank R shows where one rank's time goes"
    if isinstance(error, click.NoSuchOption) and (option := _option_meant(error)):
        return f"did you mean {option}?"
    return f"{error.ctx.command_path if error.ctx else 'kair'} --help"


def _what_is_missing(error: click.MissingParameter) -> str | None:
    """Return where to look for a missing value."""
    if error.ctx is not None and error.ctx.info_name == "compare":
        return "kair compare BASE NEW takes two runs; kair jobs lists those of the store"
    if error.param is not None and error.param.name == "rank":
        return "kair localize lists the ranks, the most suspicious first; --rank R chooses one"
    return None


def _command_meant(error: click.NoSuchCommand) -> str | None:
    """Return the command, or its action, that is closest to the typed one."""
    if error.ctx is not None and error.ctx.command_path != "kair":
        return f"{error.ctx.command_path} {error.possibilities[0]}" if error.possibilities else None
    near = "triage" if error.command_name in _MEANS_TRIAGE else nearest(error.command_name)
    return None if near is None else f"kair {near}"


def _option_meant(error: click.NoSuchOption) -> str | None:
    """Find it by its meaning, else by its letters, which for --stage are closer to --step."""
    same = _SAME_MEANING.get(error.option_name)
    there = {name for one in error.ctx.command.params for name in one.opts} if error.ctx else set()
    return same if same in there else next(iter(error.possibilities or ()), None)


def _one_line(text: str) -> str:
    return " ".join(text.split())
