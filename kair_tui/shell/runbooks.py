"""Runbooks: users' files, and those that come with Kair."""

from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any, Final

from kair_engine.errors import InputError, UsageError
from kair_tui.cli.fields import NamedType, nearest_of
from kair_tui.cli.output import MOST_SIGNS, stdin_text
from kair_tui.cli.words import literal
from kair_tui.shell.checks import check
from kair_tui.shell.language import LineError, Statement, parse
from kair_tui.shell.run_result import ListedRunbook

BUNDLED: Final = Path(__file__).with_name("runbooks")
ENDING: Final = ".kair"
_LONGEST_BEGINNING: Final = 4096
_LONGEST_ABOUT: Final = 120
"""Characters that are read for the list, and shown in it."""
STDIN: Final = "-"
"""The name of a runbook that is read from standard input."""


@dataclass(frozen=True)
class Runbook:
    """A runbook that was read and checked."""

    name: str
    statements: tuple[Statement, ...]


def bundled_names() -> tuple[str, ...]:
    """Return the runbooks that come with Kair."""
    return tuple(sorted(file.stem for file in BUNDLED.glob(f"*{ENDING}")))


def offered(incomplete: str) -> list[str]:
    """Return the bundled ones with this prefix, for completion."""
    return [name for name in bundled_names() if name.startswith(incomplete)]


def listed() -> tuple[ListedRunbook, ...]:
    """Return the runbooks that come with Kair, then the files in the current folder, each with its first comment."""
    bundled = (ListedRunbook(name, True, _about(BUNDLED / f"{name}{ENDING}")) for name in bundled_names())
    own = (ListedRunbook(file.name, False, _about(file)) for file in sorted(Path().glob(f"*{ENDING}")))
    return (*bundled, *own)


def _about(file: Path) -> str | None:
    """Return the first comment of a runbook, after any `#!` line; None without one."""
    try:
        with file.open(encoding="utf-8-sig", errors="replace") as text:
            lines = text.read(_LONGEST_BEGINNING).splitlines()
    except OSError:
        return None
    first = next((line for line in lines if line.strip() and not line.startswith("#!")), "")
    about = shorten(first.lstrip("#"), _LONGEST_ABOUT, placeholder=" …")
    return about or None if first.startswith("#") else None


def read_runbook(name: str, given: dict[str, Any], *, allow_shell: bool) -> Runbook:
    """Return the runbook of that file or bundled name, checked for a run with the values `given`.

    Raises InputError if it does not exist or is no text, UsageError with its line if something cannot work.
    """
    text = _text(name)
    try:
        statements = parse(text)
        values = {name: NamedType(None, constant=value) for name, value in given.items()}
        check(statements, values, allow_shell=allow_shell, pipes=False)
    except LineError as error:
        raise UsageError(f"{name}:{error.line}: {error}", error.hint) from None
    return Runbook(name, statements)


def values_of(settings: tuple[str, ...]) -> dict[str, Any]:
    """Parse `--set k=v` into values by name. Raises UsageError for anything else."""
    found: dict[str, Any] = {}
    for setting in settings:
        name, is_there, value = setting.partition("=")
        if not (is_there and name.isidentifier()):
            raise UsageError(f"--set {setting!r} sets nothing", "write --set NAME=VALUE")
        found[name] = literal(value)
    return found


def _text(name: str) -> str:
    if name == STDIN:
        return stdin_text("kair run FILE")
    path = Path(name)
    if not path.exists() and name in bundled_names():
        path = BUNDLED / f"{name}{ENDING}"
    if not path.exists():
        near = nearest_of(name, bundled_names())
        hint = f"did you mean {near}?" if near else f"there are, besides files: {', '.join(bundled_names())}"
        raise InputError(f"no runbook {name!r}, and no such file", hint)
    try:
        with path.open(encoding="utf-8-sig") as file:  # also a pipe: `kair run <(…)`
            text = file.read(MOST_SIGNS + 1)
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no text: byte {error.start} is not UTF-8") from None
    if len(text) > MOST_SIGNS:
        raise InputError(f"{path} is larger than {MOST_SIGNS >> 20} MiB: that is no runbook")
    return text
