"""`kair run`: the commands of a runbook, one after the other."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final

from kair_engine.errors import InputError, UsageError
from kair_tui.cli.app import parse
from kair_tui.cli.failures import ExitCode, report
from kair_tui.cli.invoke import invoke
from kair_tui.cli.parameters import Argument, Option
from kair_tui.cli.registry import Entry, find
from kair_tui.cli.shared_work import SharedWork
from kair_tui.cli.streams import say

_STDIN: Final = Path("-")


def run(
    *,
    runbooks: Annotated[Sequence[Path], Argument("Files of kair commands, a line each; - is standard input.")],
    keep_going: Annotated[bool, Option("-k, --keep-going", "Go on after a line that fails.")] = False,
    quiet: Annotated[bool, Option("-q, --quiet", "Do not say which line is run.")] = False,
) -> int:
    """Runs them, and returns the status of the first that fails; else 10 where a `--fail-on` was met, else 0.

    Raises InputError for a file that cannot be read, UsageError for a line that is no command of a runbook: both before
    anything is run.
    """
    lines = [line for runbook in runbooks for line in _lines(runbook)]
    shared, statuses = SharedWork(), []
    for where, entry, words in lines:
        if not quiet:
            say(f"{where}: {shlex.join(['kair', entry.name, *words])}")
        statuses.append(_status(entry, words, shared))
        if statuses[-1] not in (ExitCode.ANSWERED, ExitCode.FOUND) and not keep_going:
            break
    failed = [status for status in statuses if status not in (ExitCode.ANSWERED, ExitCode.FOUND)]
    return next(iter([*failed, *sorted(statuses, reverse=True)]), ExitCode.ANSWERED)


def _lines(runbook: Path) -> Iterator[tuple[str, Entry, list[str]]]:
    for number, text in enumerate(_text(runbook).splitlines(), 1):
        where = f"{'stdin' if runbook == _STDIN else runbook.name}:{number}"
        try:
            words = shlex.split(text, comments=True)
        except ValueError:
            raise UsageError(f"{where}: a quote is not closed") from None
        if words:
            yield where, _entry(words, where), words[2:]


def _text(runbook: Path) -> str:
    if runbook == _STDIN:
        return sys.stdin.read()
    try:
        return runbook.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{runbook} is no runbook: it is not text") from None


def _entry(words: Sequence[str], where: str) -> Entry:
    if words[0] != "kair" or len(words) == 1:
        raise UsageError(f"{where}: {shlex.join(words)[:60]!r} is no kair command", "a runbook has one on each line")
    entry = find(words[1])
    if entry is None or not entry.is_single:
        why = "no such command" if entry is None else "not for a runbook:"
        raise UsageError(f"{where}: {why} kair {words[1]}", "kair --help lists the commands")
    return entry


def _status(entry: Entry, words: Sequence[str], shared: SharedWork) -> int:
    try:
        return invoke(entry, parse(entry, words), shared)
    except (SystemExit, KeyboardInterrupt, BrokenPipeError):
        raise
    except BaseException as error:
        return report(error, debug="--debug" in words, ascii_only="--ascii" in words)
