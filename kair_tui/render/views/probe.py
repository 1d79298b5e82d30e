"""A probe for people: a line a measurement, beside its peers' where there are some; then the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kair_engine.results.runs.probe import LinkState, Measurement, ProbedMachine
from kair_tui.render.column import ALARM, Cell, Column, Styled
from kair_tui.render.units import count, duration, percent, plural, significant
from kair_tui.render.view import View
from kair_tui.render.words.probe import NAMES, ProbeInWords, change, interval, who

if TYPE_CHECKING:
    from kair_tui.render.page import Page

LINKS: dict[LinkState, str] = {
    "measured": "measured",
    "one_rank": "not measured: that takes several ranks, launched together",
    "no_torch": "not measured: torch.distributed is not installed",
    "no_address": "not measured: nothing says where the ranks meet",
    "failed": "not measured: the ranks did not meet",
}


def _headline(result: ProbeInWords) -> str:
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
    return {"as_fast": "as fast", "cannot_tell": "cannot tell"}.get(row.verdict or "", "–")


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


def _body(result: ProbeInWords, page: Page) -> None:
    page.table(COLUMNS, result.measurements)
    page.line()
    if not result.peers:
        _machine(result, page)
    for machine in (result.machine, *result.peers) if result.peers else ():
        page.fact(who(machine), f"{machine.host}, {machine.device}, {_counters(machine)}, {machine.measured_at}")


def _machine(result: ProbeInWords, page: Page) -> None:
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


VIEW = View[ProbeInWords, Measurement](
    main="measurements", columns=COLUMNS, headline=_headline, body=_body, records=(("measurements", "measurement"),)
)
