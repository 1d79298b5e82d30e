"""`kair spec`: describes every command, from the declarations of which the program itself is made."""

from typing import Any

import click

from kair_tui.cli.options import Number
from kair_tui.cli.registry import COMMANDS, Entry

_TYPE_NAMES = {"text": "string", "choice": "string"}


def run() -> str:
    """Return the description of every command, as one JSON document."""
    from kair_tui.render.answer import Document
    from kair_tui.render.document import encode, envelope

    data = {"commands": [_command(entry) for entry in COMMANDS]}
    return encode({**envelope(Document("spec", None, None, ())), "data": data, "warnings": []}, indent=2) + "\n"


def _command(entry: Entry) -> dict[str, Any]:
    """Describe a command, or one of its actions. A command's own parameters are those that need no action."""
    from kair_tui.cli.app import parameters

    described = [_parameter(parameter) for parameter in parameters(entry)]
    actions = [of for action in entry.actions if (of := entry.doing(action.name)) is not None]
    return {
        "name": entry.action or entry.name,
        "section": entry.section,
        "help": entry.summary,
        "notes": entry.notes or None,
        "about": entry.needs,
        "interactive": entry.needs in ("screen", "shell"),
        "arguments": [parameter for parameter in described if not parameter["flags"]],
        "options": [parameter for parameter in described if parameter["flags"]],
        "examples": list(entry.examples),
        "schema": f"kair.{entry.name}" if entry.has_result else None,
        "result": entry.result_type().__name__ if entry.has_result else None,
        "default_action": entry.default or None,
        "actions": [_command(action) for action in actions],
    }


def _parameter(parameter: click.Parameter) -> dict[str, Any]:
    known, kind = parameter.to_info_dict(), parameter.type
    return {
        "name": parameter.name,
        "flags": sorted(parameter.opts, key=len, reverse=True) if isinstance(parameter, click.Option) else [],
        "type": _TYPE_NAMES.get(kind.name, kind.name),
        "metavar": parameter.metavar,
        "minimum": kind.minimum if isinstance(kind, Number) else None,
        "repeatable": parameter.multiple or parameter.nargs == -1,
        "choices": list(kind.choices) if isinstance(kind, click.Choice) else None,
        "required": parameter.required,
        "default": known["default"],
        "help": parameter.help,
    }
