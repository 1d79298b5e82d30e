"""Tables of names, units and texts, which are data: a JSON file next to the module that reads it."""

import re
from pathlib import Path
from typing import Any, TypeVar

import msgspec

_Table = TypeVar("_Table")


def data_table(module: str, of: type[_Table]) -> _Table:
    """What the JSON file of a module's name holds; `module` is its `__file__`. Regular expressions are texts there."""
    return msgspec.json.decode(Path(module).with_suffix(".json").read_bytes(), type=of, dec_hook=_regular)


def _regular(_: type, text: object) -> Any:  # noqa: ANN401  (a pattern, where one is asked for)
    return re.compile(str(text))
