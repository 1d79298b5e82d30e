"""Counts operations by their texts, a batch of steps at a time."""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from kair_engine.arrays import NONE, Bools
from kair_engine.trace.columns import Columns, read_columns
from kair_engine.trace.model import Trace
from kair_engine.trace.steps.step_batches import step_batches


def count_operations(
    trace: Trace,
    names: Sequence[str],
    chosen: Callable[[Columns], Bools] | None = None,
    *,
    also: Sequence[str] = (),
) -> dict[tuple[str, ...], int]:
    """How many operations of the chosen steps have the same texts in the columns `names`; the most frequent first.

    Equally many are in the order of their texts, of which null's is empty. `chosen` tells which count, by those
    columns and those of `also`.
    """
    counts: Counter[tuple[str, ...]] = Counter()
    for steps in step_batches(trace):
        rows = read_columns(trace, (*names, *also), steps)
        counts.update(_counted(rows if chosen is None else rows.chosen(chosen(rows)), names))
    order = sorted(counts, key=lambda texts: (-counts[texts], texts))
    return {texts: counts[texts] for texts in order}


def _counted(rows: Columns, names: Sequence[str]) -> dict[tuple[str, ...], int]:
    spans = [len(rows.texts[name]) + 1 for name in names]
    key = np.zeros(len(rows), dtype=np.int64)
    for name, span in zip(names, spans, strict=True):
        key = key * span + (rows.of[name] - NONE)
    keys, counts = np.unique(key, return_counts=True)
    places = np.unravel_index(keys, spans)
    texts = [np.array(["", *rows.texts[name]], dtype=object)[at] for name, at in zip(names, places, strict=True)]
    return dict(zip(zip(*texts, strict=True), counts.tolist(), strict=True))
