"""The steps of a recording that is read whole: from its ranges, else from what its devices repeat."""

from collections.abc import Sequence

import numpy as np

from kair_engine.readers.columns import Int64s
from kair_engine.readers.fragment_writer import Rows
from kair_engine.readers.optimizer_marks import between_optimizers
from kair_engine.readers.repeating import repetition
from kair_engine.readers.step_marks import Mark, Steps, marked_steps, one_step
from kair_engine.trace.format import KINDS, STREAM_PREFIX


def steps_from(marks: Sequence[Mark], rows: Rows) -> Steps:
    """The steps that ranges tell, else what repeats on a stream, else the whole recording as one."""
    if not len(rows):
        return marked_steps(marks, np.empty(0, np.int64)) or one_step((0, 0))
    work, extent = np.sort(rows.column("moment")), rows.extent()
    return marked_steps(marks, work) or between_optimizers(marks, work, extent) or _repeating(rows) or one_step(extent)


def _repeating(rows: Rows) -> Steps | None:
    """What repeats on a stream, of those with most operations first; cut by launches where they are known."""
    kind, lane = rows.column("kind"), rows.column("lane")
    works = np.flatnonzero(kind != KINDS.index("scope"))
    computes = (kind[works] == KINDS.index("compute")) | (kind[works] == KINDS.index("collective"))
    often = np.bincount(lane[works], weights=computes, minlength=len(rows.lanes.texts))
    for stream in np.argsort(-often, kind="stable").tolist():
        if often[stream] and rows.lanes.texts[stream].startswith(STREAM_PREFIX):
            of_stream = works[lane[works] == stream]
            of_stream = of_stream[np.argsort(rows.column("start")[of_stream], kind="stable")]
            if (found := repetition(rows.column("name")[of_stream], rows.names.texts)) is not None:
                begin, end = _windows(rows, of_stream, found.bounds)
                return Steps(np.arange(len(begin)), begin, end, found.told_by)
    return None


def _windows(rows: Rows, stream: Int64s, bounds: Int64s) -> tuple[Int64s, Int64s]:
    """Begins and ends of steps between places in a stream: after what is before each was launched, or has run."""
    moment, start = rows.column("moment")[stream], rows.column("start")[stream]
    over = np.where(moment < start, moment + 1, start + rows.column("duration")[stream])
    edges = np.append(rows.extent()[0], over)[bounds]
    return edges[:-1], edges[1:]
