"""Step times: a row for every step of every rank, summed from the records of its threads' rings."""

import time
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from kair_capture.job.processor_time import WORD_BITS
from kair_capture.ring.layout import Kind
from kair_capture.wire.messages import ROW_BYTES

ROW: Final = np.dtype(
    [
        ("rank", "<u4"),
        ("step", "<u4"),
        ("begin_us", "<u8"),  # Unix, by the host's clock
        ("flags", "<u4"),  # bits of StepFlag
        ("step_us", "<u4"),
        ("self_us", "<u4"),  # the step without what was waited in collectives
        ("forward_us", "<u4"),
        ("backward_us", "<u4"),
        ("optimizer_us", "<u4"),
        ("input_us", "<u4"),
        ("waited_us", "<u4"),
        ("gc_us", "<u4"),
        ("cpu_us", "<u4"),  # that the training thread computed; 0 where that is not told
        ("delay_us", "<u4"),  # that it was ready and had no core
    ]
)
"""Times of one row; all but `begin_us` saturate at 71 minutes."""
assert ROW.itemsize == ROW_BYTES
COLUMNS: Final = ROW.names or ()
Rows = npt.NDArray[Any]
"""A structured array of ROW, or of a ring's records."""

PHASES: Final = ("forward", "backward", "optimizer", "input")
MOST_SCOPES: Final = 64
"""The script's own, of a step and rank."""
_MOST: Final = 0xFFFF_FFFF


class ScopeSum(NamedTuple):
    """One scope in one step of one rank."""

    rank: int
    step: int
    begin_us: int
    """Of the step, Unix, by the host's clock."""
    scope: str
    time_us: int
    """How much of the step it covers; within each other, and on several threads at once, it counts once."""
    calls: int


def rows_of(rank: int, records: Rows, phase_of: dict[int, str], unix_minus_monotonic_ns: int | None = None) -> Rows:
    """A row for each STEP record among `records`, which are of one rank's rings together.

    `phase_of` gives the phase of a name's number. Records of steps without a STEP record are left out. Overlapping
    waits, and scopes of one name within each other, count once.
    """
    steps = records[records["kind"] == Kind.STEP]
    rows = np.zeros(len(steps), ROW)
    shift = _unix_minus_monotonic(records) if unix_minus_monotonic_ns is None else unix_minus_monotonic_ns
    for row, step in zip(rows, steps, strict=True):
        begin, length = int(step["time_ns"]), int(step["value"])
        own = records[records["step"] == step["step"]]
        waited = _covered(own[own["kind"] == Kind.COLLECTIVE], begin, begin + length)
        row["rank"], row["step"], row["flags"] = rank, step["step"], step["extra"]
        row["begin_us"] = max(begin + shift, 0) // 1000
        row["cpu_us"], row["delay_us"] = int(step["detail"]) & _MOST, int(step["detail"]) >> WORD_BITS
        row["step_us"], row["waited_us"] = _us(length), _us(waited)
        row["self_us"] = _us(length - waited)
        row["gc_us"] = _us(_covered(own[own["kind"] == Kind.GC], begin, begin + length))
        scopes = own[own["kind"] == Kind.SCOPE]
        for phase in PHASES:
            numbers = [number for number, text in phase_of.items() if text == phase]
            of_phase = scopes[np.isin(scopes["name"], numbers)]
            if phase == "input":
                of_phase = np.concatenate([of_phase, own[own["kind"] == Kind.INPUT]])
            row[f"{phase}_us"] = _us(_covered(of_phase, begin, begin + length))
    return rows


def scope_sums(rows: Rows, records: Rows, name_of: dict[int, str]) -> list[ScopeSum]:
    """For each of `rows` what the scopes in `name_of` (number → name) cover of it: the MOST_SCOPES longest."""
    wanted = records[(records["kind"] == Kind.SCOPE) & np.isin(records["name"], list(name_of))]
    steps = records[records["kind"] == Kind.STEP]
    found: list[ScopeSum] = []
    for row, step in zip(rows, steps, strict=True):
        begin, end = int(step["time_ns"]), int(step["time_ns"]) + int(step["value"])
        # A job that was stopped and started again has two steps of this number.
        is_within = (wanted["time_ns"] <= end) & (wanted["time_ns"] + wanted["value"] >= begin)
        own = wanted[(wanted["step"] == step["step"]) & is_within]
        place = (int(row["rank"]), int(row["step"]), int(row["begin_us"]))
        of_step = []
        for number in np.unique(own["name"]).tolist():
            calls = own[own["name"] == number]
            of_step.append(ScopeSum(*place, name_of[number], _us(_covered(calls, begin, end)), len(calls)))
        found += sorted(of_step, key=lambda one: -one.time_us)[:MOST_SCOPES]
    return found


def _covered(records: Rows, begin: int, end: int) -> int:
    """How much of a step the records' intervals cover together, ns; those of another step of this number, nothing."""
    covered, until = 0, begin
    for start, length in sorted(zip(records["time_ns"].tolist(), records["value"].tolist(), strict=True)):
        stop = min(start + length, end)
        covered += max(stop - max(start, until), 0)
        until = max(until, stop)
    return covered


def _unix_minus_monotonic(records: Rows) -> int:
    """From the latest pair of clocks among the records, else as this process sees them (one host, the same clocks)."""
    pairs = records[records["kind"] == Kind.CLOCK]
    if len(pairs):
        return int(pairs["value"][-1]) - int(pairs["time_ns"][-1])
    return time.time_ns() - time.monotonic_ns()


def _us(nanoseconds: int) -> int:
    return min(max(nanoseconds, 0) // 1000, _MOST)
