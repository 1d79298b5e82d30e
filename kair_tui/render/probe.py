"""A probe for people: a line per measurement, compared with its peers' if there are any; then the machine.

A comparison of probes also has a sentence: whether it confirms the accusation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kair_engine.results.probe import LinkState, Measurement, MeasureName, ProbedMachine, ProbeResult
from kair_tui.render.answer import ALARM, Cell, Column, Styled
from kair_tui.render.units import count, duration, percent, plural, significant
from kair_tui.render.view import View

if TYPE_CHECKING:
    from kair_tui.render.page import Page


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
_NAMED: Final = 3
"""Measurements that a sentence names; the table has them all."""


def probe_in_words(result: ProbeResult) -> ProbeResult:
    """Return the result with its sentence."""
    return replace(result, summary=None if result.verdict is None else _summary(result))


def who(machine: ProbedMachine) -> str:
    """Return `rank 5`, or the host of a probe without a rank."""
    return machine.host if machine.rank is None else f"rank {machine.rank}"


def change(slowdown: float) -> str:
    """Return `12 % slower`, `3 % faster`; from three times on `3.1 times as long`."""
    if slowdown >= 3:
        return f"{slowdown:.1f} times as long"
    whole = round(100 * (slowdown - 1))
    return "as fast" if whole == 0 else f"{abs(whole)} % {'slower' if whole > 0 else 'faster'}"


def interval(row: Measurement) -> str:
    """Return `10–14 %`, as factors from three times on; with a minus for faster."""
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
        return f"undecided: {whose}'s {_all_of(unsure)}; probe both again with nothing else running, --seconds 60"
    worst = max(result.measurements, key=lambda row: row.slowdown or 0)
    return (
        f"not confirmed: {whose} is within what devices of one type differ by (at most {change(worst.slowdown or 1)}: "
        f"{NAMES[worst.name]}; {PUBLISHED}){_spells(result)}"
    )


def _with_verdict(result: ProbeResult, verdict: str) -> list[Measurement]:
    """Return the rows with this verdict, the slowest first."""
    rows = [row for row in result.measurements if row.verdict == verdict]
    return sorted(rows, key=lambda row: -(row.slowdown or 0))


def _all_of(rows: Sequence[Measurement]) -> str:
    shown = [f"{NAMES[row.name]} is {change(row.slowdown or 1)} ({interval(row)})" for row in rows[:_NAMED]]
    return ", ".join(shown) + (f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else "")


def _busy(machine: ProbedMachine) -> str:
    share = machine.counters.run_queue_share
    waited = f"; it waited for a core {percent(share or 0)} of the time, taken by other programs"
    return waited if machine.is_busy else ""


def _spells(result: ProbeResult) -> str:
    """Return the measurements that are slow now and then, which medians hide."""
    rows = [NAMES[row.name] for row in result.measurements if row.pattern == "spells"]
    return f"; its {', '.join(rows)} came in spells, which a longer probe shows better" if rows else ""


LINKS: dict[LinkState, str] = {
    "measured": "measured",
    "one_rank": "not measured: that takes several ranks, launched together",
    "no_torch": "not measured: torch.distributed is not installed",
    "no_address": "not measured: nothing says where the ranks meet",
    "failed": "not measured: the ranks did not meet",
}


def _headline(result: ProbeResult) -> str:
    if result.summary is not None:
        return result.summary
    machine = result.machine
    name = machine.host if machine.rank is None else f"rank {machine.rank} on {machine.host}"
    return f"{name}: {machine.device}, measured for {machine.seconds:g} s"


def _figure(row: Measurement, value: float | None) -> str:
    if value is None:
        return "–"
    if row.unit == "us":
        return duration(value)
    if row.unit == "loops_per_s":
        return f"{significant(value / 1e6)} M/s"
    if row.unit == "gb_per_s":
        return f"{significant(value)} GB/s"
    return f"{significant(value / 1e3)} TFLOP/s" if value >= 999.5 else f"{significant(value)} GFLOP/s"


def _spread(row: Measurement) -> str:
    return percent((row.upper_quartile - row.lower_quartile) / row.median)


def _slowdown(row: Measurement) -> str:
    return "–" if row.slowdown is None else change(row.slowdown)


def _verdict(row: Measurement) -> Cell:
    if row.verdict == "slower":
        return Styled("▲ slower", ALARM)
    return {"as_fast": "as fast", "cannot_tell": "undecided"}.get(row.verdict or "", "–")


def _over_time(row: Measurement) -> str:
    return "in spells" if row.pattern == "spells" else row.pattern


COLUMNS = (
    Column[Measurement]("name", "measurement", lambda row: NAMES[row.name], align="left", weight=9),
    Column[Measurement]("median", "median", lambda row: _figure(row, row.median), weight=8),
    Column[Measurement]("peer_median", "peers", lambda row: _figure(row, row.peer_median), weight=7),
    Column[Measurement]("slowdown", "against peers", _slowdown, weight=9),
    Column[Measurement]("slowdown_low", "interval", interval, weight=8),
    Column[Measurement]("verdict", "verdict", _verdict, align="left", weight=9),
    Column[Measurement]("lower_quartile", "half within", _spread, weight=4),
    Column[Measurement]("pattern", "over time", _over_time, align="left", weight=6),
    Column[Measurement]("values", "times", lambda row: count(len(row.values)), weight=2),
    Column[Measurement]("work", "of", lambda row: row.work, align="left", weight=3),
)


def _body(result: ProbeResult, page: Page) -> None:
    page.table(COLUMNS, result.measurements)
    page.line()
    if not result.peers:
        _machine(result, page)
    for machine in (result.machine, *result.peers) if result.peers else ():
        page.fact(who(machine), f"{machine.host}, {machine.device}, {_counters(machine)}, {machine.measured_at}")


def _machine(result: ProbeResult, page: Page) -> None:
    machine = result.machine
    page.fact("host thread", _counters(machine))
    page.fact("link", LINKS[result.link])
    page.fact("versions", ", ".join(f"{name} {version}" for name, version in machine.versions.items()))


def _counters(machine: ProbedMachine) -> str:
    counters = machine.counters
    parts = [plural(machine.cpus, "core")]
    if counters.cpu_quota is not None:
        parts.append(f"limited to {counters.cpu_quota:g}")
    if counters.throttled_periods:
        parts.append(f"stopped by that limit {plural(counters.throttled_periods, 'time')}")
    if counters.run_queue_share is not None:
        parts.append(f"waited for a core {percent(counters.run_queue_share)} of the time")
    if counters.involuntary_switches_per_s is not None:
        parts.append(f"{significant(counters.involuntary_switches_per_s)} involuntary switches a second")
    return ", ".join(parts)


VIEW = View[ProbeResult, Measurement](
    main="measurements", columns=COLUMNS, headline=_headline, body=_body, records=(("measurements", "measurement"),)
)
