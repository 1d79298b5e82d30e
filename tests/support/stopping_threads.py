"""Traces of ranks whose threads stand still at times, and what the kernel measured of them; times in µs."""

from dataclasses import replace
from pathlib import Path

from support.trace_builder import trace

from kair_engine.trace.model import StepTimes, Trace

STEPS, RANKS = 6, 4
USUAL = 500
ALL = {(step, rank) for step in range(STEPS) for rank in range(RANKS)}


def steps(
    folder: Path,
    took: dict[tuple[int, int], float],
    *,
    usual: dict[int, float] | None = None,
    meet: int = 100,
    met: dict[int, int] | None = None,
    count: int = STEPS,
) -> Trace:
    """Each rank's thread runs an operator of 500 µs and one of 300, then all `meet` for 100 µs; an update takes 50.

    `took` says by (step, rank) how long the first one takes instead, `usual` by rank how long it always does; `met` by
    step how long they meet.
    """
    lines = []
    for step in range(count):
        begin = step * 100_000
        first = {rank: took.get((step, rank), (usual or {}).get(rank, USUAL)) for rank in range(RANKS)}
        end = begin + max(first.values()) + 300 + (met or {}).get(step, meet)
        lines.append(f"step {step}: {begin}+{end + 50 - begin}")
        for rank, length in first.items():
            at = begin + length + 300
            lines.append(f"{rank} main | mm {begin}+{length} | relu {begin + length}+300")
            lines.append(f"{rank} th2 | allreduce@dp#{step} {at}+{end - at}")
            lines.append(f"{rank} main | update {end}+50")
    return trace(folder, "\n".join(lines))


def measured(
    made: Trace,
    own: dict[tuple[int, int], float],
    ready: dict[tuple[int, int], float],
    communication: float = -1e-3,
    *,
    times: tuple[int, int] = (-1, -1),
    helpers: float = -1e-3,
) -> Trace:
    """The trace with what its threads had of the processor, in µs by (step, rank).

    They ran 950 µs of each step, or `own`, and in them computed but for what they were `ready` without a core: while
    they wait 100 µs for the collective, busily, too. In each step gloo's thread lacked a core for `communication`,
    and other threads of the process computed for `helpers`. `times` says how often a quota and a signal stopped the
    processes in each step.
    """
    rows = []
    for row in made.job.step_times.rows():
        cell = row[1], row[0]
        missing = ready.get(cell, 0.0)
        computed = own.get(cell, USUAL + 450.0) - missing
        cpu, delay, of_communication, helped = (round(1e3 * one) for one in (computed, missing, communication, helpers))
        throttled, halted = times
        rows.append((*row[:5], cpu, delay, throttled, of_communication, halted, -1, helped))
    return replace(made, job=replace(made.job, step_times=StepTimes.of_rows(rows)))
