"""The Typer application, built from the registry; a command is built only when it is asked for."""

import inspect
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Annotated, Any, Literal, cast, get_type_hints

import typer
from typer.completion import get_completion_inspect_parameters, install_callback, show_callback
from typer.core import TyperCommand, TyperGroup

from kair_engine.errors import UsageError
from kair_tui.cli.conversion import convert_here, converted_here
from kair_tui.cli.registry import COMMANDS, Entry, find, nearest

Shell = Literal["bash", "zsh", "fish", "powershell", "pwsh"]


def run(arguments: Sequence[str]) -> int:
    """Parses `arguments`, runs the command, and returns its exit status. Errors are raised, not printed."""
    group = cast(TyperGroup, typer.main.get_command(build()))
    convert_here(group, get_type_hints(_root, include_extras=True))
    with group.make_context("kair", list(arguments)) as context:
        status = group.invoke(context)
    return int(status or 0)


def complete() -> None:
    """Answers the shell's question for completions, which stands in the environment, and exits."""
    # Called for what it does besides: it makes Typer's shells known.
    get_completion_inspect_parameters()
    build()(prog_name="kair")


def build() -> typer.Typer:
    """The application."""
    return typer.Typer(
        name="kair",
        cls=KairGroup,
        callback=_root,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog="kair COMMAND --help tells more. Exit: 0 answered, 1 failed, 2 usage, 3 input, 10 --fail-on.",
    )


class OwnConversion:
    """Keeps pydantic away from the help option too, which every command has and Typer adds by itself."""

    def get_help_option(self, ctx: Any) -> Any:  # noqa: ANN401
        """The option `--help`."""
        return converted_here(super().get_help_option(ctx), bool)  # type: ignore[misc]


class KairCommand(OwnConversion, TyperCommand):
    """One command."""


class KairGroup(OwnConversion, TyperGroup):
    """The commands of the registry, each imported when it is named."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002, ANN401
        """All names, in the order of the help."""
        return [entry.name for entry in COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002, ANN401
        """The command of that name, or None."""
        entry = find(cmd_name)
        return None if entry is None else command(entry)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401
        """Turns down an unknown name, with the nearest one that exists."""
        if not ctx.resilient_parsing and find(args[0]) is None:
            near = nearest(args[0])
            raise UsageError(
                f"no such command: {args[0]}",
                f"did you mean kair {near}?" if near else "kair --help lists them",
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002, ANN401
        """The commands under their headings, without importing one."""
        for section, entries in groupby(COMMANDS, key=lambda entry: entry.section):
            with formatter.section(section):
                formatter.write_dl([(entry.name, entry.summary) for entry in entries])


def parse(entry: Entry, words: Sequence[str], *, help_only: bool = False) -> Any:  # noqa: ANN401
    """The arguments that `words` give to a command, defaults included, without running it; or its help as text.

    Raises what `run` raises for a line that is wrong.
    """
    built = command(entry, lambda _, arguments: arguments)
    name = f"kair {entry.name}"
    if help_only:
        return built.get_help(built.make_context(name, [], resilient_parsing=True))
    with built.make_context(name, list(words)) as context:
        return built.invoke(context)


def _invoke(entry: Entry, arguments: dict[str, Any]) -> int:
    from kair_tui.cli.invoke import invoke

    return invoke(entry, arguments)


def command(entry: Entry, run: Callable[[Entry, dict[str, Any]], Any] = _invoke) -> TyperCommand:
    """The Typer command of a registry entry; `run` is given all its arguments."""
    from kair_tui.cli.options import parameters

    declared = parameters(entry)

    def callback(**arguments: Any) -> Any:  # noqa: ANN401
        return run(entry, arguments)

    callback.__signature__ = inspect.Signature(declared)  # type: ignore[attr-defined]
    callback.__annotations__ = {parameter.name: parameter.annotation for parameter in declared}
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(
        entry.name,
        cls=KairCommand,
        help=entry.summary,
        epilog="\b\nExamples:\n" + "\n".join(f"  {example}" for example in entry.examples) + _notes(entry),
        context_settings={"help_option_names": ["-h", "--help"]},
    )(callback)
    built = cast(TyperCommand, typer.main.get_command(app))
    convert_here(built, {parameter.name: parameter.annotation for parameter in declared})
    return built


def _notes(entry: Entry) -> str:
    return f"\n\n\b\n{entry.notes}" if entry.notes else ""


def _version(asked: bool) -> None:
    if asked:
        from kair_tui.cli.streams import write_answer
        from kair_tui.render.document import kair_version

        write_answer(f"kair {kair_version()}\n")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", is_eager=True, callback=_version)
    ] = False,
    install_completion: Annotated[
        Shell | None,
        typer.Option(
            "--install-completion",
            callback=install_callback,
            is_eager=True,
            help="Install completion for a shell.",
        ),
    ] = None,
    show_completion: Annotated[
        Shell | None,
        typer.Option(
            "--show-completion",
            callback=show_callback,
            is_eager=True,
            help="Show the completion script of a shell.",
        ),
    ] = None,
) -> None:
    """Which rank slows a distributed training job down, in which operator, why, and how sure that is."""
