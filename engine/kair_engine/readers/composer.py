"""Reads Composer's traces: events of its training loop, for one rank or all ranks of a node."""

import re
from pathlib import Path
from typing import Final

from kair_engine.readers.chrome_events import load
from kair_engine.readers.fragment_writer import RankRecording, Rows, steps_from, write_recording
from kair_engine.readers.paths import MAX_RANKS
from kair_engine.readers.step_marks import Mark
from kair_engine.trace.model import FragmentInfo

_BATCH: Final = "event/batch"
_FORWARD: Final = re.compile(r"^event/(forward|loss)$")
_INPUT: Final = re.compile(r"(^|/)dataloader(/|$)")
_LANE: Final = "thread training loop"
_TOGETHER: Final = f"{_LANE} communication"


def read_composer(source: Path, out: Path, *, rank_hint: int | None = None) -> FragmentInfo:  # noqa: ARG001
    """Write `source` as the fragment `out`, and return its description; its events state their ranks.

    Composer does not record collectives by themselves. They lie in the backward pass, which all ranks leave together
    once the gradients are summed. The pass stands for them, so a slow backward pass on one rank looks slow on all.
    Raises NotATraceError, InputError if it holds no events of a training loop, OSError if the disk is full.
    """
    trace = load(source)
    rows: dict[int, Rows] = {}
    marks: dict[int, list[Mark]] = {}
    for event, start, duration in trace.complete():
        rank = event.pid
        if not isinstance(rank, int) or not 0 <= rank < MAX_RANKS:
            continue
        if event.text == _BATCH:
            of_rank = marks.setdefault(rank, [])
            of_rank.append(Mark(f"batch {_number(event.of_args('batch'), len(of_rank))}", start, start + duration))
        else:
            kind, phase = _kind(event.text)
            lane, group = (_TOGETHER, "all ranks") if kind == "collective" else (_LANE, None)
            rows.setdefault(rank, Rows()).add(lane, event.text, kind, start, duration, phase=phase, group=group)
    ranks = [
        RankRecording(rank, rows[rank], steps_from(marks.get(rank, []), rows[rank]), _LANE) for rank in sorted(rows)
    ]
    return write_recording(
        source,
        out,
        ranks,
        form="composer",
        rank_known=True,
        has_device=False,
        mark="event/batch",
        warnings=trace.warnings(source),
    )


def _kind(name: str) -> tuple[str, str | None]:
    if _INPUT.search(name):
        return "input", "input"
    if _FORWARD.match(name):
        return "compute", "forward"
    return ("collective", "backward") if name == "event/backward" else ("host", None)


def _number(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and 0 <= value < 10**9 else otherwise
