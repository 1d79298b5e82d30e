"""The program as Click sees it, built from the registry; a command is built only when it is asked for."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import groupby
from typing import Any

import click
from click.shell_completion import CompletionItem

from kair_tui.cli import completion
from kair_tui.cli.registry import COMMANDS, Entry, find

SHELL = click.Choice(completion.SHELLS)
SETTINGS = {"help_option_names": ["-h", "--help"], "show_default": True}


def run(arguments: Sequence[str]) -> int:
    """Parses `arguments`, runs the command, and returns its exit status. Errors are raised, not printed."""
    with program().make_context("kair", list(arguments)) as context:
        return int(context.command.invoke(context))


def program() -> click.Group:
    """All commands, and the options of `kair` itself."""
    return Commands(
        "kair",
        help="Which rank slows a distributed training job down, in which operator, why, and how sure that is.",
        epilog="kair traces/ is kair triage traces/. kair COMMAND --help tells more; kair help WORD what a word of the "
        "answers means. "
        "Exit: 0 answered, 1 failed, 2 wrong usage, 3 bad input, 10 --fail-on.",
        context_settings=SETTINGS,
        params=[
            _eager("--version", _version, "Show the version.", is_flag=True),
            _eager("--install-completion", _install, "Install tab completion for a shell.", type=SHELL),
            _eager("--show-completion", _show, "Show the completion script of a shell.", type=SHELL),
            _eager("--man-pages", _man_pages, "Write the man pages into a folder.", metavar="DIR"),
        ],
    )


class Commands(click.Group):
    """The commands of the registry, each imported when it is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """All names, in the order of the help."""
        return [entry.name for entry in COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command of that name, or None."""
        entry = find(cmd_name)
        return None if entry is None else command(entry)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command and its arguments; where the first word is no command but a job's name or path, its triage."""
        if find(args[0]) is None:
            from kair.app.jobs import names_a_job  # what is no command costs the start a little more

            if names_a_job(args[0]):
                args = ["triage", *args]
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands, else files: a job's path is its triage."""
        return super().shell_complete(ctx, incomplete) or [CompletionItem(incomplete, type="file")]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The commands under their headings, without importing one."""
        for section, entries in groupby(COMMANDS, key=lambda entry: entry.section):
            with formatter.section(section):
                formatter.write_dl([(entry.name, entry.summary) for entry in entries])


@cache
def command(entry: Entry) -> click.Command:
    """One command of the registry, made once: a runbook, a shell and the screens ask the same ones again."""
    from kair_tui.cli.options import parameters

    return click.Command(
        entry.name,
        callback=partial(_invoke, entry),
        params=parameters(entry),
        help=entry.summary,
        epilog="\b\nExamples:\n" + "\n".join(f"  {example}" for example in entry.examples) + _notes(entry),
        context_settings=SETTINGS,
    )


def _notes(entry: Entry) -> str:
    return f"\n\n\b\n{entry.notes}" if entry.notes else ""


def parse(entry: Entry, words: Sequence[str]) -> dict[str, Any]:
    """The arguments that `words` give to a command, defaults included. Raises what `run` raises for a wrong line."""
    return command(entry).make_context(f"kair {entry.name}", list(words)).params


def help_text(entry: Entry) -> str:
    """What `kair COMMAND --help` prints."""
    built = command(entry)
    return built.get_help(built.make_context(f"kair {entry.name}", [], resilient_parsing=True))


def _invoke(entry: Entry, **arguments: Any) -> int:  # noqa: ANN401
    from kair_tui.cli.invoke import invoke

    return invoke(entry, arguments)


def _eager(flag: str, answer: Callable[[click.Context, Any], str], text: str, **settings: Any) -> click.Option:  # noqa: ANN401
    """An option of `kair` that is answered instead of a command."""

    def answered(context: click.Context, _: click.Parameter, value: Any) -> None:  # noqa: ANN401
        if value and not context.resilient_parsing:
            from kair_tui.cli.output import write_answer

            write_answer(answer(context, value))
            context.exit()

    return click.Option([flag], is_eager=True, expose_value=False, callback=answered, help=text, **settings)


def _version(_: click.Context, __: bool) -> str:
    from kair_tui.render.document import kair_version

    return f"kair {kair_version()}\n"


def _install(context: click.Context, shell: str) -> str:
    return f"{completion.install(context.command, shell)}: completion for {shell}, from the next shell on\n"


def _man_pages(context: click.Context, folder: str) -> str:
    from kair_tui.cli.completion import write_pages

    assert isinstance(context.command, click.Group)
    count = write_pages(context.command, folder)
    return f"{folder}: {count} pages (man -l {folder}/kair.1)\n"


def _show(context: click.Context, shell: str) -> str:
    return completion.script(context.command, shell)
