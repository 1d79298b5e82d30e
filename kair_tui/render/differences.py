"""Differences between ranks, changes, and events near the begin of a finding, in words."""

from collections.abc import Sequence
from typing import Final

from kair_engine.results.evidence import Difference, Happening
from kair_engine.results.triage import Finding, TriageResult
from kair_engine.trace.measures import MEASURES
from kair_tui.render.hangs import stands_still
from kair_tui.render.text import spaced
from kair_tui.render.units import clock, count, duration, plural, ranks_in_words, significant

_SHOWN: Final = 5
"""Lines of each sort: the others are counted."""
_HOSTS_NAMED: Final = 3
_UNSET: Final = "(unset)"


def difference_lines(result: TriageResult, *, wide: bool = False) -> list[str]:
    """Return a line for each difference; unless `wide`, only for the first ones."""
    return _first([difference_in_words(one) for one in result.differences], "difference", wide)


def happening_lines(result: TriageResult, *, wide: bool = False) -> list[str]:
    """Return a line for each event; unless `wide`, only for the first ones."""
    findings = result.findings
    lines = [
        happening_in_words(one, findings[one.finding - 1]) for one in result.happenings if one.finding <= len(findings)
    ]
    return _first([f"near its begin: {line}" for line in lines], "event", wide)


def _first(lines: Sequence[str], noun: str, wide: bool) -> list[str]:
    shown = [*lines] if wide else [*lines[:_SHOWN]]
    left = len(lines) - len(shown)
    return [*shown, f"and {plural(left, f'more {noun}')}: kair triage -o wide"] if left else shown


def difference_in_words(one: Difference) -> str:
    """Return `differs: rank 3 (node-7): environment NCCL_ALGO is Ring; 31 others have it unset`."""
    has = f"{whose(one.ranks, one.hosts)}: {one.what} is {_value(one.value)}"
    if one.against == "peers":
        others = f"{count(one.others)} {'other has' if one.others == 1 else 'others have'}"
        return f"differs: {has}; {others} {'it unset' if one.usual == _UNSET else one.usual}"
    if one.against == "attempt":
        same = f"; on {plural(one.others, 'other rank')} it is as it was" if one.others else ""
        return f"changed since attempt {one.of}: {has}, it was {_value(one.usual)}{same}"
    return f"other than in {one.of}: {one.what} is {_value(one.value)}, it was {_value(one.usual)}"


def happening_in_words(one: Happening, finding: Finding) -> str:
    """Return `14:02:40 ± 5 s: XID 63 on gpu:GPU-5f3e… (rank 3), 11 s before rank 3 became slow (…); nothing on …`."""
    bound = f" ± {duration(one.bound_ns / 1e3)}" if one.bound_ns else ""
    where = f" on {_entity(one)}"
    ranks = f" ({ranks_in_words(one.ranks)})" if one.ranks else ""
    return f"{clock(one.at_ns)} UTC{bound}: {_what(one)}{where}{ranks}, {_when(one, finding)}; {_others(one)}"


def whose(ranks: tuple[int, ...], hosts: tuple[str, ...]) -> str:
    """Return `ranks 8-15 (node-1)`."""
    named = ", ".join(hosts[:_HOSTS_NAMED]) + (f" and {len(hosts) - _HOSTS_NAMED} more" if hosts[_HOSTS_NAMED:] else "")
    return f"{ranks_in_words(ranks)} ({named})" if named else ranks_in_words(ranks)


def _value(text: str) -> str:
    return "unset" if text == _UNSET else text or "empty"


def _what(one: Happening) -> str:
    row = MEASURES.get(one.name)
    words = spaced(one.name) if row is None else row.words
    if row is not None and row.kind == "event":
        code = "" if one.value is None else f" {one.value:g}"
        return f"{words}{code}" + (f" ({one.text})" if one.text else "")
    unit = "" if row is None or row.unit in ("", "1") else f" {row.unit}"
    now = one.text if one.value is None else f"{one.value:g}" if one.value % 1 == 0 else significant(one.value)
    return f"{words} became {now}{unit}"


def _entity(one: Happening) -> str:
    """Return `GPU-5f3e…`, `mlx5_3/1 of node-7`, `node-7`."""
    kind, _, name = one.entity.partition(":")
    if not name:
        return one.host or "a host that is not named"
    name = f"{kind} {name}" if kind in ("pid", "gpu index") else name
    return name if one.host is None or kind == "gpu" else f"{name} of {one.host}"


def _when(one: Happening, finding: Finding) -> str:
    who = ranks_in_words(finding.ranks) if finding.ranks else "the job"
    what = "the job stood still" if stands_still(finding) else f"{who} became slow"
    step = "" if finding.since is None else f"step {count(finding.since)}, "
    began = f"{what} ({step}{clock(one.at_ns + one.before_s * 1e9)} UTC)"
    apart = f"{duration(abs(one.before_s) * 1e6)} {'before' if one.before_s >= 0 else 'after'} {began}"
    return apart if one.order_known else f"{apart}, as far as the clocks show"


def _others(one: Happening) -> str:
    if one.on_others:
        return f"also on {plural(one.on_others, 'other')}"
    if one.others_observed:
        return f"nothing on {plural(one.others_observed, 'peer')}"
    return "no source covers the others"
