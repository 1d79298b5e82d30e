"""Reads Horovod's timeline: the coordinator's file records when each rank was ready for each tensor."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from kair_engine.errors import InputError
from kair_engine.readers.chrome_events import ChromeTrace, load
from kair_engine.readers.fragment_writer import RankRecording, Rows, write_recording
from kair_engine.readers.paths import MAX_RANKS
from kair_engine.readers.step_marks import Steps
from kair_engine.trace.model import FragmentInfo

_NEGOTIATE: Final = "NEGOTIATE_"
_LANE: Final = "thread horovod"
_GROUP: Final = "all ranks"
_BEFORE: Final = "before "
"""Name prefix of a rank's own work, of whatever kind, until it is ready for the next tensor."""


@dataclass
class _Call:
    """One collective: when each rank was ready, and its end, in ns."""

    tensor: str
    operation: str
    begin: int
    ready: dict[int, int] = field(default_factory=dict)
    end: int = 0


def read_horovod(source: Path, out: Path, *, rank_hint: int | None = None) -> FragmentInfo:  # noqa: ARG001
    """Write `source` as the fragment `out`, and return its description: all ranks, on the coordinator's clock.

    Between collectives a rank works; no details are recorded. Raises NotATraceError, InputError if no rank reports that
    it is ready (files of ranks other than the coordinator), OSError if the disk is full.
    """
    trace = load(source)
    calls = [call for call in _calls(trace) if call.ready and call.end > max(call.ready.values())]
    if not calls:
        hint = "give the timeline that rank 0 wrote (HOROVOD_TIMELINE), with the negotiation in it"
        raise InputError(f"{source.name} says of no rank when it was ready", hint)
    steps = _steps(calls)
    ranks = sorted({rank for call in calls for rank in call.ready})
    recordings = [RankRecording(rank, _rows(calls, rank, steps), steps, _LANE) for rank in ranks]
    return write_recording(
        source,
        out,
        recordings,
        form="horovod",
        rank_known=True,
        has_device=False,
        world_size=max(ranks) + 1,
        mark="HOROVOD_TIMELINE_MARK_CYCLES marks none either",
        warnings=trace.warnings(source),
    )


def _calls(trace: ChromeTrace) -> list[_Call]:
    """Return the collectives in the order of their begin; each tensor is a process of the timeline."""
    tensors = trace.process_names()
    open_calls: dict[str, _Call] = {}
    depth: dict[str, int] = {}
    done: list[_Call] = []
    for event in trace.events:
        key, at = str(event.pid), event.begin
        if at is None:
            continue
        if event.ph == "B" and event.text.startswith(_NEGOTIATE):
            operation = event.text.removeprefix(_NEGOTIATE).lower()
            open_calls[key] = _Call(tensors.get(key, key), operation, at)
            depth[key] = 1
        elif key not in open_calls:
            continue
        elif event.ph == "X" and event.text.isdecimal() and len(event.text) < 10 and int(event.text) < MAX_RANKS:
            open_calls[key].ready.setdefault(int(event.text), at)
        elif event.ph == "B":
            depth[key] += 1
        elif event.ph == "E":
            depth[key] -= 1
            open_calls[key].end = max(open_calls[key].end, at)
            # The negotiation ends before the operation begins: the call is over when the operation ends.
            if depth[key] == 0:
                done.append(open_calls[key])
                depth[key] = 0
    unique = {id(call): call for call in done}
    return sorted(unique.values(), key=lambda call: call.begin)


def _steps(calls: list[_Call]) -> Steps:
    """Return steps from each begin of the first tensor to the next: every tensor is reduced once a step."""
    counts: dict[str, int] = {}
    for call in calls:
        counts[call.tensor] = counts.get(call.tensor, 0) + 1
    most = max(counts.values())
    first = next(call.tensor for call in calls if counts[call.tensor] == most)
    # Work before the first tensor belongs to its step, which begins where the previous collectives ended on all ranks.
    begins, over = [], None
    for call in calls:
        if call.tensor == first:
            earliest = min(call.ready.values())
            begins.append(earliest if over is None else min(over, earliest))
        over = max(over or call.end, call.end)
    if len(begins) > 2:
        # Only the end of the first step is recorded.
        begins = begins[1:]
    ends = [*begins[1:], max(call.end for call in calls)]
    return Steps(np.arange(len(begins)), np.array(begins), np.array(ends), f"the tensor {first}")


def _rows(calls: list[_Call], rank: int, steps: Steps) -> Rows:
    rows = Rows()
    busy: list[tuple[int, int, str]] = []
    for call in calls:
        ready = call.ready.get(rank)
        if ready is None:
            continue
        name = f"{call.operation} {call.tensor}"
        rows.add(f"{_LANE} communication", name, "collective", ready, call.end - ready, group=_GROUP)
        busy.append((ready, call.end, name))
    free = min(int(steps.begin[0]), *(ready for ready, _, _ in busy))
    for ready, end, name in sorted(busy):
        if ready > free:
            rows.add(_LANE, _BEFORE + name, "compute", free, ready - free)
        free = max(free, end)
    return rows
