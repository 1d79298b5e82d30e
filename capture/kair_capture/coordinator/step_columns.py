"""Rows of a job's steps column by column: a column that no rank ever recorded takes no memory."""

from collections.abc import Mapping
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

from kair_capture.agent.step_rows import Rows

Column = npt.NDArray[Any]


class StepColumns:
    """Columns of equal length. As with an array of rows, `[name]` is a column and `[places]` are the rows there."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        """Hold the columns, at least `rank`."""
        self._columns = dict(columns)

    def __len__(self) -> int:
        return len(self._columns["rank"])

    @overload
    def __getitem__(self, key: str) -> Column: ...
    @overload
    def __getitem__(self, key: Column) -> "StepColumns": ...
    def __getitem__(self, key: str | Column) -> "Column | StepColumns":
        if isinstance(key, str):
            return self._columns[key]
        count = int(np.count_nonzero(key)) if key.dtype == np.bool_ else len(key)
        chosen = {name: np.broadcast_to(one[:1], count) if _is_one(one) else one[key] for name, one in self.items()}
        return StepColumns(chosen)

    def items(self) -> list[tuple[str, Column]]:
        """Return the columns by their names."""
        return list(self._columns.items())

    def without(self, *names: str) -> "StepColumns":
        """Return the rows without these columns."""
        return StepColumns({name: one for name, one in self._columns.items() if name not in names})

    @staticmethod
    def of(columns: Mapping[str, Column], kind: np.dtype[Any]) -> "StepColumns":
        """Return copies of columns, which include `rank`; columns of `kind` that are missing are 0 in all rows.

        With copies, a file and its tables can be freed: they take several times as much memory.
        """
        count = len(columns["rank"])
        nothing = {name: np.broadcast_to(np.zeros(1, kind[name]), count) for name in kind.names or ()}
        recorded = {name: np.array(columns[name]) for name in nothing if name in columns and columns[name].any()}
        return StepColumns(nothing | recorded)

    @staticmethod
    def joined(files: list["StepColumns"], kind: np.dtype[Any]) -> "StepColumns":
        """Return the rows of all files in their order; empties the files column by column, to keep memory low."""
        joined: dict[str, Column] = {}
        for name in kind.names or ():
            parts = [one._columns[name] if name == "rank" else one._columns.pop(name) for one in files]
            joined[name] = _one_after_another(parts, kind[name])
        return StepColumns(joined)


def _one_after_another(parts: list[Column], kind: np.dtype[Any]) -> Column:
    count = sum(map(len, parts))
    if not any(one.any() for one in parts):
        return np.broadcast_to(np.zeros(1, kind), count)
    return np.concatenate(parts).astype(kind, copy=False)


def _is_one(column: Column) -> bool:
    """Return whether all rows have one value, which is held once."""
    return len(column) > 1 and column.strides == (0,)


RowTable = TypeVar("RowTable", Rows, StepColumns)
"""Rows in one array, or column by column."""
