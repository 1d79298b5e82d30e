"""Descriptions of a result's fields: the texts under them in the source, else what the name means everywhere.

Words for fields whose names say the same in every answer, and for a few whose records need no more than a line.
"""

import ast
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from functools import cache
from textwrap import dedent
from typing import Any, Final, get_args, get_type_hints

from msgspec import Struct


def describe(definitions: dict[str, Any], records: Iterable[type[Any]]) -> None:
    """Add descriptions to the properties of a schema's definitions, which are those of `records` by their names."""
    for record in records:
        under: dict[str, str] = {}
        for base in reversed(record.__mro__):
            under |= _texts_under_fields(base)
        for name, known in definitions.get(record.__name__, {}).get("properties", {}).items():
            of_record = (FIELD_WORDS.get(f"{base.__name__}.{name}") for base in record.__mro__)
            text = under.get(name) or next(filter(None, of_record), FIELD_WORDS.get(name))
            if text:
                known.setdefault("description", text)


def records_in(kind: Any) -> set[type[Any]]:  # noqa: ANN401
    """Return the records that a type is made of, itself included."""
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


FIELD_WORDS: Final[Mapping[str, str]] = {
    "corrected_links": "Links that stand out already: what makes them do so was taken out first.",
    "draws": "How often each size of a fault was put into the recording.",
    "fault": "What was put into the recording.",
    "faults": "The smallest of each kind.",
    "figures": "By name; units are in the names, shares are of 1.",
    "KairWarning.kind": "Which figures it has: none.",
    "ReasonInWords.kind": "What limits it.",
    "limited_by": "What keeps a smaller one from being found; null where no size is.",
    "longer": "What more steps would show.",
    "remedies": "What would help and is no fix of an operation.",
    "seed": "Of the random draws.",
    "smallest_share_of_step": "The same over the step time.",
    "smallest_us_per_step": "The smallest one that would be found.",
    "stalled_steps": "In how many steps a rank has to stall to be found; null for other faults.",
    "step_time_us": "The mean over steps.",
    "LongerRecording.steps": "How many would be recorded.",
    "steps": "Those that were analysed.",
    "text": "A sentence for people.",
}
"""By the field's name; `Record.field` where the name says something else in one record."""
