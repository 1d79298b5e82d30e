"""Describes a result's fields in its JSON Schema by the docstrings that stand under them in the source."""

import ast
import inspect
import sys
from collections.abc import Iterable
from dataclasses import is_dataclass
from functools import cache
from itertools import pairwise
from typing import Any, get_args, get_type_hints

from msgspec import Struct


def describe(definitions: dict[str, Any], records: Iterable[type[Any]]) -> None:
    """Add descriptions to the properties of a schema's definitions; `records` has their types."""
    for record in records:
        texts = {"kind": "The name of its kind."} if issubclass(record, Struct) else {}
        for base in reversed(record.__mro__):
            texts |= _texts_under_fields(base)
        for name, known in definitions.get(record.__name__, {}).get("properties", {}).items():
            if name in texts:
                known.setdefault("description", texts[name])


def records_in(kind: Any) -> set[type[Any]]:  # noqa: ANN401
    """Return the records of which a type is made, itself included."""
    found: set[type[Any]] = set()
    waiting = [kind]
    while waiting:
        one = waiting.pop()
        waiting += get_args(one)
        if isinstance(one, type) and one not in found and (is_dataclass(one) or issubclass(one, Struct)):
            found.add(one)
            waiting += get_type_hints(one).values()
    return found


@cache
def _texts_under_fields(record: type[Any]) -> dict[str, str]:
    """Return the docstring of each field; none if the source is not installed."""
    try:
        body = _classes_in(record.__module__)[record.__name__].body
    except (KeyError, OSError, TypeError):
        return {}
    return {
        field.target.id: " ".join(str(text.value.value).replace("None", "null").split())
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


@cache
def _classes_in(module: str) -> dict[str, ast.ClassDef]:
    """By name. To find one, Python's `inspect` reads all of a module."""
    body = ast.parse(inspect.getsource(sys.modules[module])).body
    return {one.name: one for one in body if isinstance(one, ast.ClassDef)}
