"""The recording's contents for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kair_engine.results.views import Attempt, InfoResult, OperatorUse, RankRecord
from kair_tui.render.answer import ALARM, Cell, Column, Styled
from kair_tui.render.delays import ON_DEVICES
from kair_tui.render.identities import identity_facts
from kair_tui.render.units import count, duration, plural, ranks_in_words, spans, thinned
from kair_tui.render.view import View
from kair_tui.render.watch import state_in_words

if TYPE_CHECKING:
    from kair_tui.render.page import Page

_LISTED = 16
_OPERATORS_SHOWN = 64

_OPERATORS = (
    Column[OperatorUse]("operator", "operator", lambda row: row.operator, align="left", weight=9),
    Column[OperatorUse]("count", "count", lambda row: count(row.count), weight=8),
    Column[OperatorUse]("phases", "phases", lambda row: ", ".join(row.phases) or "–", align="left", weight=7),
)

_MARKS = {
    "no_common_step": "no common step",
    "no_peer": "no peer",
    "fewer_recorded": "fewer than its peers",
}


def _odd(row: RankRecord) -> Cell:
    marks = ", ".join(_MARKS.get(code, code) for code in row.odd)
    return Styled(f"▲ {marks}", ALARM) if marks else ""


_RANKS = (
    Column[RankRecord]("rank", "rank", lambda row: str(row.rank), weight=9),
    Column[RankRecord]("files", "files", lambda row: count(row.files), weight=5),
    Column[RankRecord]("steps", "steps", lambda row: count(row.steps), weight=6),
    Column[RankRecord]("operations", "operations", lambda row: count(row.operations), weight=7),
    Column[RankRecord]("collectives", "collectives", lambda row: count(row.collectives), weight=7),
    Column[RankRecord]("odd", "odd", _odd, align="left", weight=8),
)


_WITHOUT_OPERATIONS = ("steps", "nccl_inspector")


def _headline(result: InfoResult) -> str:
    hosts = f" on {plural(len(result.hosts), 'host')}" if result.hosts else ""
    if result.format == "log":
        return "a log of steps"
    if result.format in _WITHOUT_OPERATIONS:
        return f"{plural(len(result.ranks), 'rank')}{hosts}, {plural(len(result.steps), 'step')} recorded, none sampled"
    return (
        f"{plural(len(result.ranks), 'rank')}{hosts}, {plural(len(result.steps), 'step')}, "
        f"{plural(result.operations, 'operation')} ({result.format})"
    )


def _body(result: InfoResult, page: Page) -> None:
    for name, value in _facts(result):
        page.fact(name, value)
    if len(result.by_rank) > 1:
        page.line()
        page.table(_RANKS, result.by_rank, limit=_LISTED)
    if result.operators:
        page.line()
        page.table(_OPERATORS, result.operators, limit=_OPERATORS_SHOWN)


def _facts(result: InfoResult) -> list[tuple[str, str]]:
    missing = f"; missing: {spans(result.missing_ranks)}" if result.missing_ranks else ""
    if result.format == "log":
        known = [("world size", count(result.world_size))] if result.world_size else []
        ranks = spans(result.ranks) or "no line says whose it is"
        return [*known, ("ranks", ranks), ("recorded", "nothing but how long steps took: kair triage judges that")]
    recorded = result.format in _WITHOUT_OPERATIONS
    facts = [
        ("world size", count(result.world_size)),
        ("ranks", f"{spans(result.ranks)}{missing}"),
        *([] if recorded else [("layout", _layout(result)), ("device", result.device or "not recorded")]),
        ("steps", spans(result.steps) or "none complete"),
        *([] if (short := thinned(result.parts_every)) is None else [("recording", short)]),
        *_ahead(result),
        *(_nothing_sampled(result) if recorded else _of_operations(result)),
        *([] if result.state is None else [("job", state_in_words(result.state, result.hang))]),
        *([("stands" if result.hang == "stalled" else "ended", result.ending)] if result.ending else []),
    ]
    if len(result.attempts) > 1:
        facts += _listing("attempts", {_attempt(one): one.ranks for one in result.attempts})
    facts += _listing("host", result.hosts)
    facts += _listing("role", result.roles)
    for label, texts in identity_facts(result.identities):
        facts += _lines(label, texts)
    return facts


def _nothing_sampled(result: InfoResult) -> list[tuple[str, str]]:
    more = " (kair capture now samples some)" if result.state == "training" else ""
    return [("operations", f"none: nothing was sampled{more}")]


def _of_operations(result: InfoResult) -> list[tuple[str, str]]:
    kinds = ", ".join(f"{kind} {count(number)}" for kind, number in result.operations_by_kind.items())
    matched = f"{count(result.collectives)}, {count(result.matched_collectives)} matched across ranks"
    return [("operations", kinds), ("collectives", matched), ("clocks", _clocks(result))]


def _attempt(one: Attempt) -> str:
    steps = f"steps {one.first_step}-{one.last_step}, median step {duration(one.step_time_us)}"
    return f"{one.number} from {one.began_at[:19].replace('T', ' ')} UTC, {steps}"


def _ahead(result: InfoResult) -> list[tuple[str, str]]:
    """Return, if hosts run ahead of their devices, the effect on steps, and the limit."""
    if result.timed_on == "host":
        return []
    return [("step times", f"{ON_DEVICES} of them"), ("launch queue", _launch_queue(result))]


def _launch_queue(result: InfoResult) -> str:
    if not result.launch_queue_depth:
        return "never seen full"
    least, most = min(result.launch_queue_depth.values()), max(result.launch_queue_depth.values())
    depth = plural(most, "launch", "launches") if least == most else f"{count(least)}-{count(most)} launches"
    return f"{depth} on each stream" if result.launch_queue_per_stream else depth


def _layout(result: InfoResult) -> str:
    if result.layout is None:
        return "not recorded"
    sizes = (("dp", result.layout.dp), ("pp", result.layout.pp), ("tp", result.layout.tp))
    return ", ".join(f"{name} {size}" for name, size in sizes if size is not None) or "not recorded"


def _clocks(result: InfoResult) -> str:
    clock = result.clock
    if clock.source == "none":
        return "not comparable: no collective to align them by"
    if clock.source == "file":
        ends = "" if clock.residual_us is None else f"; collectives end {duration(clock.residual_us)} apart (median)"
        return f"one clock: all ranks are in one file{ends}"
    residual = "unknown" if clock.residual_us is None else duration(clock.residual_us)
    return f"from {clock.source}; residual {residual}, largest offset {duration(clock.max_offset_us)}"


def _listing(label: str, members: dict[str, tuple[int, ...]]) -> list[tuple[str, str]]:
    return _lines(label, [f"{name}: {ranks_in_words(ranks)}" for name, ranks in members.items()])


def _lines(label: str, texts: Sequence[str]) -> list[tuple[str, str]]:
    lines = [(label if index == 0 else "", text) for index, text in enumerate(texts)]
    left = len(lines) - _LISTED
    return lines if left <= 0 else [*lines[:_LISTED], ("", f"… and {left} more")]


VIEW = View[InfoResult, InfoResult](main=None, columns=(), headline=_headline, body=_body)
