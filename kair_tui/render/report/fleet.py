"""The report of a fleet: how often stragglers occur, what they cost, and on which hosts."""

from collections.abc import Iterator
from typing import Final

from kair_engine.results.store import FleetResult
from kair_tui.render.fleet import (
    COLUMNS,
    GROUP_COLUMNS,
    HOST_COLUMNS,
    SLOW_BY,
    accused_hosts,
    fleet_headline,
    ledger_lines,
    shares_in_words,
    slow_text,
    spread_in_words,
    waste_text,
)
from kair_tui.render.report.content import Block, Command, Facts, Node, Report, Section, Text, Tone, Tree, table
from kair_tui.render.report.pictures import shares
from kair_tui.render.units import count, one_decimal, slowdown
from kair_tui.render.verdict import money_text
from kair_tui.render.warnings import warnings_in_words

_JOBS, _HOSTS, _GROUPS = 50, 20, 30
_SOME: Final = 2


def fleet_report(result: FleetResult, command: str, made: str) -> Report:
    """Return the report; `command` repeats the query."""
    tone: Tone = "alarm" if any(host.recurs for host in result.hosts) else "open" if result.with_straggler else "fine"
    return Report(
        kicker=f"all jobs of {result.store}",
        badge=f"{result.with_straggler} of {len(result.jobs)} with a straggler",
        tone=tone,
        lead=fleet_headline(result),
        facts=_facts(result),
        sections=tuple(_sections(result, command)),
        made=made,
    )


def _facts(result: FleetResult) -> Facts:
    pairs = [
        ("jobs", count(len(result.jobs))),
        (f"slowed by {SLOW_BY} or more", slow_text(result)),
        ("median S", "–" if result.median_slowdown is None else slowdown(result.median_slowdown)),
        ("waste", waste_text(result)),
        ("GPU-hours a day that fixes save", one_decimal(result.gpu_hours_per_day)),
    ]
    if result.cost_per_day is not None:
        pairs.append(("cost a day", money_text(result)))
    return Facts(tuple(pairs))


def _sections(result: FleetResult, command: str) -> Iterator[Section]:
    yield Section("How much jobs are slowed down", tuple(_spread(result)))
    for by, name in (("size", "By size"), ("week", "By week"), ("cause", "By cause")):
        groups = [group for group in result.groups if group.by == by]
        yield Section(name, (table(GROUP_COLUMNS, groups, _GROUPS),))
    hosts = accused_hosts(result)
    again = [host.host for host in hosts if host.recurs]
    said = (
        f"Accused more often than chance has it: {', '.join(again)}."
        if again
        else "None more often than chance has it."
    )
    yield Section(
        "Hosts that are accused", (Text(said), table(HOST_COLUMNS, hosts, _HOSTS)) if hosts else (Text("None."),)
    )
    if lines := ledger_lines(result):
        yield Section("What came true, and who is slow in job after job", tuple(map(Text, lines)))
    yield Section("Jobs, the costliest first", (table(COLUMNS, result.jobs, _JOBS), Command(command)))
    if warnings := warnings_in_words(result.warnings):
        yield Section("Jobs that are left out", (Tree(tuple(Node(one.message) for one in warnings)),))


def _spread(result: FleetResult) -> Iterator[Block]:
    yield Text(shares_in_words(result))
    yield Text(spread_in_words(result))
    if len(result.distribution) >= _SOME:
        yield shares(result.distribution)
