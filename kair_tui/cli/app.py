"""The program as Typer builds it from the registry; a command is built only when it is used."""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import groupby
from typing import Annotated, Any, Final

import click
import typer
from click.shell_completion import CompletionItem
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from kair_tui.cli import completion
from kair_tui.cli.completion import Shell
from kair_tui.cli.registry import COMMANDS, Entry, find

FIRST_PAGE: Final = {
    "Find the straggler": ("triage", "tui", "ticket", "compare", "whatif", "timeline"),
    "Watch a running job": ("capture", "watch", "confirm"),
    "Keep jobs": ("jobs", "fleet"),
}
"""The commands in `kair --help`, in order: those that most people need."""

_HELP_NAMES: Final[dict[str, Any]] = {"help_option_names": ["-h", "--help"]}
PLAIN: Final[dict[str, Any]] = {
    "add_completion": False,
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "context_settings": {"show_default": True, **_HELP_NAMES},
}
"""For every Typer: its own completion, markup and tracebacks would load more, and use other wording."""


def run(arguments: Sequence[str]) -> int:
    """Parse `arguments`, run the command, and return its exit status. Errors are raised, not printed."""
    with program().make_context("kair", list(arguments)) as context:
        return int(context.command.invoke(context))


def program() -> click.Group:
    """Return all commands, with the options of `kair` itself."""
    made = typer.Typer(
        name="kair",
        cls=Commands,
        help="Which rank slows a distributed training job down, in which operator, why, and how sure that is.",
        epilog="kair traces/ is kair triage traces/. kair COMMAND --help explains a command, kair help WORD a word of "
        "the answers. "
        "Exit: 0 answered, 1 failed, 2 wrong usage, 3 bad input, 10 --fail-on.",
        no_args_is_help=True,
        **PLAIN,
    )
    made.callback()(_kair)
    return get_group(made)


class Commands(TyperGroup):
    """The commands of the registry, each imported when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return all names, in the order of the help."""
        return [entry.name for entry in COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return the command of that name, or None."""
        entry = find(cmd_name)
        return None if entry is None else command(entry)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command and its arguments; a job's name or path in a command's place is for `triage`."""
        if find(args[0]) is None:
            from kair.app.jobs import names_a_job  # skipped for commands, because it slows the start a little

            if names_a_job(args[0]):
                args = ["triage", *args]
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete commands, else files: a job's path is its triage."""
        return super().shell_complete(ctx, incomplete) or [CompletionItem(incomplete, type="file")]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the commands that most people need, without importing one; `kair help commands` lists all."""
        for section, names in FIRST_PAGE.items():
            with formatter.section(section):
                formatter.write_dl([(name, found.summary) for name in names if (found := find(name)) is not None])
        formatter.write_paragraph()
        formatter.write_text(f"kair help commands lists all {len(COMMANDS)} commands.")


def all_commands() -> str:
    """Return every command with its summary, under the registry's headings."""
    formatter = click.HelpFormatter()
    for section, entries in groupby(COMMANDS, key=lambda entry: entry.section):
        with formatter.section(section):
            formatter.write_dl([(entry.name, entry.summary) for entry in entries])
    return formatter.getvalue().lstrip("\n")


class Command(TyperCommand):
    """A command whose arguments are listed once: Click does, and Typer would again."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options alone."""
        click.Command.format_options(self, ctx, formatter)


class Actions(TyperGroup):
    """A command with several actions, each imported when it is used."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        super().__init__(
            name=entry.name,
            help=entry.summary,
            epilog=_epilog(entry),
            no_args_is_help=False,
            subcommand_metavar="[ACTION] ..." if entry.default else "ACTION ...",
            context_settings=PLAIN["context_settings"],
            rich_markup_mode=None,
        )

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of the actions, in the order of the help."""
        return [action.name for action in self._entry.actions]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return the command of that action, or None."""
        entry = self._entry.doing(cmd_name)
        return None if entry is None else command(entry)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the action first: options may stand before it, and the default one need not be named."""
        if ctx.resilient_parsing and _first_argument(self._entry, args) == len(args):
            return super().parse_args(ctx, [])  # an unfinished line may still name its action
        entry, others = chosen(self._entry, args)
        return super().parse_args(ctx, [entry.action, *others] if entry.action else others)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete actions, and arguments of the default action."""
        items = super().shell_complete(ctx, incomplete)
        if not self._entry.default:
            return items
        typical = command(self._entry.typical)
        items += typical.shell_complete(ctx, incomplete)
        if self._entry.default_takes_words and not incomplete.startswith("-"):
            taken = (one for one in typical.params if isinstance(one, click.Argument))
            items += (item for one in taken for item in one.shell_complete(ctx, incomplete))
        return list({(item.value, item.type): item for item in items}.values())

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the actions, and the options of the default one."""
        with formatter.section("Actions"):
            formatter.write_dl([(action.name, action.summary) for action in self._entry.actions])
        formatter.write_paragraph()
        formatter.write_text(f"kair {self._entry.name} ACTION --help explains one of them.")
        if not self._entry.default:
            return
        typical = command(self._entry.typical)
        formatter.write_paragraph()
        formatter.write_text(f"Without an action it is kair {self._entry.typical.line}:")
        typical.format_options(click.Context(typical, parent=ctx, info_name=self._entry.default), formatter)


def chosen(entry: Entry, words: Sequence[str]) -> tuple[Entry, list[str]]:
    """Return the entry of the action in `words` and the other words; the command's own entry if it has no actions.

    Also the command's own entry if only help is requested. Raises UsageError for an unknown action, or if none is named
    and the command has no default.
    """
    if not entry.actions:
        return entry, list(words)
    at = _first_argument(entry, words)
    first = words[at] if at < len(words) and not words[at].startswith("-") else None
    if first is not None and (named := entry.doing(first)) is not None:
        return named, [*words[:at], *words[at + 1 :]]
    if first is None and {*_HELP_NAMES["help_option_names"]} & {*words}:
        return entry, ["--help"]
    if entry.default and (first is None or entry.default_takes_words):
        return entry.typical, list(words)
    context = click.Context(command(entry), info_name=f"kair {entry.name}")
    names = [action.name for action in entry.actions]
    if first is None:
        raise click.UsageError(f"missing ACTION: {', '.join(names[:-1])} or {names[-1]}", context)
    raise click.NoSuchCommand(first, f"No such action {first!r}.", possibilities=names, ctx=context)


def _first_argument(entry: Entry, words: Sequence[str]) -> int:
    """Return the index of the first word that is neither an option of any action nor an option's value."""
    if not words or not words[0].startswith("-"):
        return 0
    options = {
        flag: one
        for action in entry.actions
        if (of := entry.doing(action.name)) is not None
        for one in parameters(of)
        for flag in one.opts
        if isinstance(one, click.Option)
    }
    of_all = click.Command(entry.name, params=[*dict.fromkeys(options.values())])
    context = click.Context(
        of_all, resilient_parsing=True, allow_interspersed_args=False, ignore_unknown_options=True, **_HELP_NAMES
    )
    _, rest, _ = of_all.make_parser(context).parse_args(list(words))
    return len(words) - len(rest)


def _epilog(entry: Entry) -> str:
    examples = "\b\nExamples:\n" + "\n".join(f"  {example}" for example in entry.examples)
    return examples + (f"\n\n\b\n{entry.notes}" if entry.notes else "")


@cache
def command(entry: Entry) -> click.Command:
    """Make one command of the registry, cached: runbooks, shells and screens use the same ones repeatedly."""
    if entry.actions:
        return Actions(entry)
    from kair_tui.cli.options import signature

    def answer(**_: Any) -> int:  # noqa: ANN401
        from kair_tui.cli.invoke import invoke

        # Tuples as `parse` gives them: Typer passes lists, and None for an empty one.
        return invoke(entry, click.get_current_context().params)

    answer.__signature__ = taken = signature(entry)  # type: ignore[attr-defined]
    made = typer.Typer(**PLAIN)
    made.command(entry.action or entry.name, cls=Command, help=entry.summary, epilog=_epilog(entry))(answer)
    built = get_command(made)
    built.params.sort(key=lambda parameter: isinstance(parameter, click.Option))
    for one in built.params:
        one.help = taken.parameters[str(one.name)].annotation.__metadata__[0].help  # Click 8.5 drops that of arguments
    return built


def parameters(entry: Entry) -> list[click.Parameter]:
    """Return all parameters of a command: JOB, its own options, then the shared ones; with actions, the default's."""
    if entry.actions:
        return command(entry.typical).params if entry.default else []
    return command(entry).params


def parse(entry: Entry, words: Sequence[str]) -> dict[str, Any]:
    """Return the arguments in `words` for a command, with defaults. Raises as `run` does."""
    entry, others = chosen(entry, words)
    return command(entry).make_context(f"kair {entry.line}", others).params


def help_text(entry: Entry) -> str:
    """Return the output of `kair COMMAND --help`."""
    built = command(entry)
    return built.get_help(built.make_context(f"kair {entry.line}", [], resilient_parsing=True))


def _eager(flag: str, answer: Callable[[click.Context, Any], str], text: str, metavar: str | None = None) -> Any:  # noqa: ANN401
    """Make an option of `kair` that is answered instead of a command."""

    def answered(context: click.Context, value: Any) -> None:  # noqa: ANN401
        if value and not context.resilient_parsing:
            from kair_tui.cli.output import write_answer

            write_answer(answer(context, value))
            context.exit()

    return typer.Option(flag, is_eager=True, expose_value=False, callback=answered, help=text, metavar=metavar)


def _version(_: click.Context, __: bool) -> str:
    from kair_tui.render.document import kair_version

    return f"kair {kair_version()}\n"


def _install(context: click.Context, shell: str) -> str:
    return f"{completion.install(context.command, shell)}: completion for {shell}, from the next shell on\n"


def _man_pages(context: click.Context, folder: str) -> str:
    from kair_tui.cli.man_pages import write_pages

    assert isinstance(context.command, click.Group)
    count = write_pages(context.command, folder)
    return f"{folder}: {count} pages (man -l {folder}/kair.1)\n"


def _show(context: click.Context, shell: str) -> str:
    return completion.script(context.command, shell)


def _kair(
    _version: Annotated[bool, _eager("--version", _version, "Show the version.")] = False,
    _of: Annotated[
        Shell | None, _eager("--install-completion", _install, "Install tab completion for a shell.")
    ] = None,
    _in: Annotated[Shell | None, _eager("--show-completion", _show, "Show the completion script of a shell.")] = None,
    _to: Annotated[str | None, _eager("--man-pages", _man_pages, "Write the man pages into a folder.", "DIR")] = None,
) -> None:
    """Declare the options of `kair` itself."""
