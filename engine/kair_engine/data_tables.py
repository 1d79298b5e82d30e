"""Tables of names, units and texts, which are data: a JSON file next to the module that reads it."""

import re
from pathlib import Path
from typing import Any, TypeVar

import msgspec

_Table = TypeVar("_Table")


def data_table(module: str, kind: type[_Table]) -> _Table:
    """Return the content of the JSON file next to a module, whose `__file__` is given. Patterns are texts there."""
    return msgspec.json.decode(Path(module).with_suffix(".json").read_bytes(), type=kind, dec_hook=_regular)


def _regular(_: type, text: object) -> Any:  # noqa: ANN401  (a pattern, where one is asked for)
    return re.compile(str(text))
