"""Completion in the shell: its scripts, and the jobs offered for a half-typed JOB.

Man pages, a page for each command, made of the same declarations as the help.
"""

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import click
from click.shell_completion import get_completion_class, shell_complete

from kair.app.places import data_root, store_root
from kair.app.stores import OpenStore
from kair_engine.errors import InputError, KairError

Shell = Literal["bash", "zsh", "fish", "powershell", "pwsh"]
VARIABLE = "_KAIR_COMPLETE"
"""In which the script asks what to offer."""


def complete(program: click.Command) -> int:
    """Answer the shell's question for completions, which stands in the environment; return the exit status."""
    return shell_complete(program, {}, "kair", VARIABLE, os.environ[VARIABLE])


def script(program: click.Command, shell: str) -> str:
    """Return what makes a shell ask `kair` for completions, in the shell's language."""
    known = get_completion_class("powershell" if shell == "pwsh" else shell)
    if known is None:
        raise ValueError(shell)
    return known(program, {}, "kair", VARIABLE).source()


def install(program: click.Command, shell: str) -> Path:
    """Write the script where the shell finds it, and return where that is; the shell's startup file may grow a line.

    Raises OSError where that cannot be done.
    """
    from kair_engine.trace.files import atomic_write

    home = Path.home()
    if shell == "bash":
        file = home / ".bash_completions/kair.sh"
        _add_line(home / ".bashrc", f"source '{file}'")
    elif shell == "zsh":
        file = home / ".zfunc/_kair"
        _add_line(home / ".zshrc", "fpath+=~/.zfunc; autoload -Uz compinit; compinit")
    elif shell == "fish":
        file = home / ".config/fish/completions/kair.fish"
    else:
        file = data_root() / "completion.ps1"
        _add_line(_profile(shell), f". '{file}'")
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as new:
        new.write(script(program, shell).encode())
    return file


def job_names(incomplete: str) -> list[str]:
    """Return the store's jobs that begin with `incomplete`; none where there is no store."""
    try:
        names = [job.name for job in OpenStore(store_root(None)).store.jobs()]
    except (OSError, KairError):
        return []
    return [name for name in names if name.startswith(incomplete)]


def _profile(powershell: str) -> Path:
    """Return the file that PowerShell runs when it starts."""
    from subprocess import check_output

    return Path(check_output([powershell, "-NoProfile", "-Command", "$PROFILE"], text=True).strip())


def _add_line(file: Path, line: str) -> None:
    """Add a line to the end of a file, once, and leave the rest of it untouched."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a+b", buffering=0) as startup:
        startup.seek(0)
        before, new = startup.read(), f"\n{line}\n".encode()
        if line.encode() in before.splitlines():
            return
        # Half a line of a startup file would be obeyed by every shell.
        if startup.write(new) != len(new):
            startup.truncate(len(before))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))


STATUSES: Final = (
    ("0", "Answered, whether or not a straggler was found."),
    ("1", "The analysis failed, or a runbook's fail ended it."),
    ("2", "Wrong usage or configuration."),
    ("3", "The input is missing, unreadable or not a trace."),
    ("10", "With --fail-on or expect: found."),
    ("130", "Interrupted."),
)
VARIABLES: Final = (
    ("KAIR_JOB", "The job that commands take when none is named."),
    ("KAIR_STORE", "The folder of the job store, or its URL."),
    ("KAIR_CACHE", "The folder of what was parsed."),
    ("NO_COLOR", "Use no colour."),
)


def write_pages(program: click.Group, folder: str) -> int:
    """Write kair.1 and a page for each command into `folder`, and return how many. Raises InputError."""
    from kair_engine.trace.files import atomic_write

    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        pages = dict(man_pages(program))
        for name, text in pages.items():
            with atomic_write(place / f"{name}.1") as file:
                file.write(text.encode())
    except OSError as error:
        raise InputError(f"{error.filename or place}: {error.strerror}") from None
    return len(pages)


def man_pages(program: click.Group) -> Iterator[tuple[str, str]]:
    """Write (name, page in the language of man) of the program and of each command."""
    context = click.Context(program, info_name="kair")
    commands = [(name, program.get_command(context, name)) for name in program.list_commands(context)]
    known = [(name, command) for name, command in commands if command is not None]
    listed = [line for name, command in known for line in _item(f"kair {name}", command.help or "")]
    about = ["COMMANDS", *listed]
    yield "kair", _page(program, context, "kair", about, [f"kair-{name}" for name, _ in known])
    for name, command in known:
        own = click.Context(command, parent=context, info_name=name)
        yield f"kair-{name}", _page(command, own, f"kair-{name}", [], ["kair"])


def _page(command: click.Command, context: click.Context, name: str, more: list[str], others: list[str]) -> str:
    summary = (command.help or "").rstrip(".")
    usage = " ".join(command.collect_usage_pieces(context))
    words = [one for one in command.params if isinstance(one, click.Argument)]
    records = [one.get_help_record(context) for one in command.params if isinstance(one, click.Option)]
    lines = [
        f'.TH "{name.upper()}" "1" "" "Kair" "Kair"',
        *_section("NAME", [f"{_text(name)} \\- {_text(summary)}"]),
        *_section("SYNOPSIS", [f".B {_text(context.command_path)}", _text(usage)]),
        *(_section(more[0], more[1:]) if more else []),
        *_section("ARGUMENTS", [line for one in words for line in _item(one.make_metavar(context), one.help or "")]),
        *_section("OPTIONS", [line for record in records if record for line in _item(*record)]),
        *_section("EXAMPLES", _verbatim(command.epilog or "")),
        *_section("EXIT STATUS", [line for item in STATUSES for line in _item(*item)]),
        *_section("ENVIRONMENT", [line for item in VARIABLES for line in _item(*item)]),
        *_section("SEE ALSO", [", ".join(f"\\fB{_text(other)}\\fR(1)" for other in others)]),
    ]
    return "\n".join(lines) + "\n"


def _section(title: str, lines: list[str]) -> list[str]:
    return [f'.SH "{title}"', *lines] if lines else []


def _item(title: str, text: str) -> list[str]:
    return [".TP", f"\\fB{_text(title)}\\fR", _text(text)]


def _verbatim(epilog: str) -> list[str]:
    """Return the examples and notes, line by line as the help has them."""
    text = re.sub(r"^\s*\x08?\s*Examples:\n", "", epilog.replace("\b\n", ""))
    return [".nf", *map(_text, text.splitlines()), ".fi"] if text.strip() else []


def _text(text: str) -> str:
    """Return text in which man finds no request and no escape."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return f"\\&{escaped}" if escaped.startswith(".") else escaped
