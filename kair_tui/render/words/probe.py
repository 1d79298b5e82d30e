"""A comparison of probes in words: whether it confirms the accusation, in one sentence."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

from kair_engine.probe.recording import is_busy
from kair_engine.results.runs.probe import Measurement, MeasureName, ProbedMachine, ProbeResult
from kair_tui.render.units import percent

NAMES: Final[dict[MeasureName, str]] = {
    "gpu_matrix_product": "matrix product on the GPU",
    "gpu_memory_copy": "copy in GPU memory",
    "cpu_matrix_product": "matrix product on the CPU",
    "cpu_memory_copy": "copy in main memory",
    "python_loop": "Python loop",
    "wake_up": "wake-up from sleep",
    "all_reduce_64_kib": "all-reduce of 64 KiB",
    "all_reduce_1_mib": "all-reduce of 1 MiB",
    "all_reduce_16_mib": "all-reduce of 16 MiB",
}
PUBLISHED: Final = (
    "identical GPUs were published to differ by 8 % on average (Sinha et al., “Not All GPUs Are Created Equal”, SC'22)"
)
_TOLD: Final = 3
"""Measurements that a sentence names; the table has them all."""


@dataclass(frozen=True)
class ProbeInWords(ProbeResult):
    """The result with its sentence."""

    summary: str | None = None
    """Whether the accusation is confirmed; null where nothing was compared."""


def probe_in_words(result: ProbeResult) -> ProbeInWords:
    """The result, told."""
    told = {field.name: getattr(result, field.name) for field in fields(result)}
    return ProbeInWords(**told, summary=None if result.verdict is None else _summary(result))


def who(machine: ProbedMachine) -> str:
    """`rank 5`, or the host of one that was probed without a rank."""
    return machine.host if machine.rank is None else f"rank {machine.rank}"


def change(slowdown: float) -> str:
    """`12 % slower`, `3 % faster`; three times and more as `3.1 times as long`."""
    if slowdown >= 3:
        return f"{slowdown:.1f} times as long"
    whole = round(100 * (slowdown - 1))
    return "as fast" if whole == 0 else f"{abs(whole)} % {'slower' if whole > 0 else 'faster'}"


def interval(row: Measurement) -> str:
    """`10–14 %`, in times where it reaches three; a minus for faster."""
    low, high = row.slowdown_low, row.slowdown_high
    if low is None or high is None:
        return "–"
    if high >= 3:
        return f"{low:.1f}–{high:.1f} times"
    ends = [f"{100 * (end - 1):.0f}".replace("-0", "0").replace("-", "−") for end in (low, high)]
    return f"{ends[0]}{' to ' if '−' in ends[0] or '−' in ends[1] else '–'}{ends[1]} %"


def _summary(result: ProbeResult) -> str:
    whose = who(result.machine)
    if result.verdict == "confirmed":
        return f"confirmed: {whose}'s {_all_of(_with_verdict(result, 'slower'))}{_busy(result.machine)}"
    if result.verdict == "cannot_tell":
        unsure = _with_verdict(result, "cannot_tell")
        return f"cannot tell: {whose}'s {_all_of(unsure)}; probe both again with nothing else running, --seconds 60"
    worst = max(result.measurements, key=lambda row: row.slowdown or 0)
    return (
        f"not confirmed: {whose} is within what devices of one type differ by (at most {change(worst.slowdown or 1)}: "
        f"{NAMES[worst.name]}; {PUBLISHED}){_spells(result)}"
    )


def _with_verdict(result: ProbeResult, verdict: str) -> list[Measurement]:
    """Those rows, the slowest first."""
    rows = [row for row in result.measurements if row.verdict == verdict]
    return sorted(rows, key=lambda row: -(row.slowdown or 0))


def _all_of(rows: Sequence[Measurement]) -> str:
    told = [f"{NAMES[row.name]} is {change(row.slowdown or 1)} ({interval(row)})" for row in rows[:_TOLD]]
    return ", ".join(told) + (f" and {len(rows) - _TOLD} more" if len(rows) > _TOLD else "")


def _busy(machine: ProbedMachine) -> str:
    share = machine.counters.run_queue_share
    waited = f"; it waited for a core {percent(share or 0)} of the time, taken by other programs"
    return waited if is_busy(machine) else ""


def _spells(result: ProbeResult) -> str:
    """Medians hide what is slow now and then."""
    rows = [NAMES[row.name] for row in result.measurements if row.pattern == "spells"]
    return f"; its {', '.join(rows)} came in spells, which a longer probe shows better" if rows else ""
