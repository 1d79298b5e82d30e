"""Descriptions of a result's fields: the texts under them in the source, else what the name means everywhere."""

import ast
import inspect
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from functools import cache
from textwrap import dedent
from typing import Any, get_args, get_type_hints

from kair_tui.commands.machines.field_words import FIELD_WORDS


def describe(definitions: dict[str, Any], records: Iterable[type[Any]]) -> None:
    """Adds descriptions to the properties of a schema's definitions, which are those of `records` by their names."""
    for record in records:
        for name, told in field_texts(record).items():
            known = definitions.get(record.__name__, {}).get("properties", {})
            if name in known:
                known[name].setdefault("description", told)


def records_in(kind: Any) -> set[type[Any]]:  # noqa: ANN401
    """The dataclasses that a type is made of, itself included."""
    found: set[type[Any]] = set()
    waiting = [kind]
    while waiting:
        one = waiting.pop()
        waiting += get_args(one)
        if is_dataclass(one) and isinstance(one, type) and one not in found:
            found.add(one)
            waiting += get_type_hints(one).values()
    return found


def field_texts(record: type[Any]) -> dict[str, str]:
    """What is said under each field, in the record or what it extends; else what the name means everywhere."""
    said: dict[str, str] = {}
    for base in reversed(record.__mro__):
        said |= _texts_under_fields(base) if is_dataclass(base) else {}
    names = (field.name for field in fields(record))
    return {name: text for name in names if (text := said.get(name) or _usual(record, name))}


def _usual(record: type[Any], name: str) -> str | None:
    of_record = (FIELD_WORDS.get(f"{base.__name__}.{name}") for base in record.__mro__)
    return next((text for text in of_record if text), FIELD_WORDS.get(name))


@cache
def _texts_under_fields(record: type[Any]) -> dict[str, str]:
    """By field, the text that stands under it. Empty where the source is not at hand."""
    try:
        body = ast.parse(dedent(inspect.getsource(record))).body[0]
    except (OSError, TypeError):
        return {}
    assert isinstance(body, ast.ClassDef)
    return {
        field.target.id: " ".join(str(text.value.value).replace("None", "null").split())
        for field, text in zip(body.body, body.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }
