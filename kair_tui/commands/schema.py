"""`kair schema`: the JSON Schema of a command's answer."""

from typing import Annotated

import typer

from kair_tui.cli.completion import schema_names


def run(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="A command that answers with --json.",
            show_default=False,
            autocompletion=schema_names,
        ),
    ] = None,
) -> str:
    """The schema of `name`; without one, the names there are, a line each."""
    from kair_tui.cli.schemas import known_schemas, schema

    return "".join(f"{known}\n" for known in known_schemas()) if name is None else schema(name)
