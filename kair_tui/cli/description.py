"""`kair spec`: every command, read off the declarations that the program itself is made of."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from kair_tui.cli.conversion import bare
from kair_tui.cli.options import parameters
from kair_tui.cli.registry import COMMANDS, Entry
from kair_tui.render.answer import Answer
from kair_tui.render.document import encode, envelope

_TYPE_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", Path: "path"}


def describe() -> str:
    """The JSON document."""
    return (
        encode(
            {
                **envelope(Answer("spec", None, None, ())),
                "data": {"commands": [_command(entry) for entry in COMMANDS]},
                "warnings": [],
            },
            indent=2,
        )
        + "\n"
    )


def _command(entry: Entry) -> dict[str, Any]:
    described = [_parameter(parameter) for parameter in parameters(entry)]
    result = _result(entry.load()) if entry.has_result else None
    return {
        "name": entry.name,
        "section": entry.section,
        "help": entry.summary,
        "arguments": [parameter for parameter in described if not parameter["flags"]],
        "options": [parameter for parameter in described if parameter["flags"]],
        "examples": list(entry.examples),
        "schema": f"kair.{entry.name}" if result else None,
        "result": result,
    }


def _result(run: Callable[..., Any]) -> str:
    name: str = get_type_hints(run)["return"].__name__
    return name


def _parameter(parameter: inspect.Parameter) -> dict[str, Any]:
    annotation, declared = get_args(parameter.annotation)[:2]
    required = parameter.default is inspect.Parameter.empty
    default = None if required else parameter.default
    return {
        "name": parameter.name,
        "flags": _flags(declared),
        **_type(annotation),
        "required": required,
        "default": default,
        "help": declared.help or "",
    }


def _flags(declared: Any) -> list[str]:  # noqa: ANN401
    """`--step`, `-o`: what an option is written as; an argument has none."""
    names = (declared.default, *(declared.param_decls or ()))
    return sorted((name for name in names if isinstance(name, str) and name.startswith("-")), key=len, reverse=True)


def _type(annotation: Any) -> dict[str, Any]:  # noqa: ANN401
    """The JSON name of a type, whether it repeats, and its choices."""
    annotation = bare(annotation)
    if get_origin(annotation) is list:
        return {**_type(get_args(annotation)[0]), "repeatable": True}
    if get_origin(annotation) is Literal:
        return {"type": "string", "repeatable": False, "choices": list(get_args(annotation))}
    return {"type": _TYPE_NAMES[annotation], "repeatable": False, "choices": None}
