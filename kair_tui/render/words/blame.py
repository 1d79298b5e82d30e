"""Blame in words: its headline and sums, and the names of root causes.

Blame tells where waiting came from and accuses nobody: only a test of triage does.
"""

from collections.abc import Sequence

from kair_engine.results.blame import STEP_BEGIN, BlamePath, BlameResult, PathNode, PathPart, RootCause
from kair_tui.render.text import short_name, spaced
from kair_tui.render.units import duration, percent, plural, spans, waited_of

WORTH_NAMING = 0.1
"""Of all waiting: ranks below that are not in the headline."""
_INSTEAD = 1.05
"""An operation that takes this much of what its peers do is told to take longer."""


def blame_headline(result: BlameResult) -> str:
    """The ranks that most of the waiting came from; of an answer about one rank or operator, how much came from it."""
    where = f"step {result.step}" if result.step is not None else f"steps {spans(result.steps)}"
    if result.method == "paper":
        return _deviations(result, where)
    asked = _asked(result)
    if asked:
        came = sum(cause.blamed_us for cause in result.root_causes)
        share = percent(came / result.waiting_us if result.waiting_us else 0.0)
        return f"{share} of the waiting came from {asked}: {duration(came)} of {_waited(result)} in {where}"
    if not result.by_rank:
        collectives = plural(result.collectives, "collective")
        return f"waiting came from no rank: {_waited(result)} in {where} ({collectives})"
    named = [row for row in result.by_rank if row.share >= WORTH_NAMING] or [result.by_rank[0]]
    *before, last = [f"rank {row.rank} ({percent(row.share)})" for row in named[:3]]
    shares = f"{', '.join(before)} and {last}" if before else last
    return f"waiting came from {shares}: {_waited(result)} in {where}{_of_time(result)}"


def _deviations(result: BlameResult, where: str) -> str:
    if not result.by_rank:
        return f"no outlier to walk back from in {where} (the paper's method)"
    first = result.by_rank[0]
    causes = plural(len(result.root_causes), "root cause")
    return f"rank {first.rank}: {causes}, {duration(first.blamed_us)} from the mean over the ranks in {where}"


def blame_totals(result: BlameResult) -> str:
    """All waiting, and how much of it has a cause; the paper's method looks at none."""
    if result.method == "paper":
        return "the paper's method ranks root causes by how far they deviate from the mean over the ranks: no waiting"
    return (
        f"waiting {duration(result.waiting_us)} in {plural(result.collectives, 'collective')}: "
        f"{duration(result.attributed_us)} attributed, {duration(result.unattributed_us)} not"
    )


def _waited(result: BlameResult) -> str:
    return f"the {duration(result.waiting_us)} that ranks together waited"


def _of_time(result: BlameResult) -> str:
    return f", {waited_of(result.waiting_us / result.ranks_time_us, 'their time')}" if result.ranks_time_us else ""


def _asked(result: BlameResult) -> str:
    asked = [] if result.only_operator is None else [f"operators with {result.only_operator!r}"]
    asked += [] if result.only_rank is None else [f"rank {result.only_rank}"]
    return " on ".join(asked)


def path_end(node: PathNode, path: BlamePath) -> str:
    """What was lost at the end of a path, and why: `compute: 23.9 ms instead of 4.09 ms`."""
    cause = spaced(path.cause)
    if node.role_in_path == "edge":
        return f"{cause}: {duration(path.lost_us)} lost there" if path.lost_us else cause
    expected = node.expected_us
    if expected is not None and node.duration_us >= _INSTEAD * expected:
        return f"{cause}: {duration(node.duration_us)} instead of {duration(expected)}"
    return f"{cause}: {duration(path.lost_us)} lost in it" if path.lost_us else cause


def part_in_words(part: PathPart) -> tuple[str, str]:
    """A root cause that is not at a path's end: (who and what, how much of the lateness it explains)."""
    what = f"rank {part.rank} {operator_name(part.operator, is_edge=part.is_edge)}"
    return what, f"{spaced(part.cause)}: {percent(part.share)} of how late that was"


def stop_in_words(before: PathNode, node: PathNode, *, is_first: bool, is_last: bool) -> str:
    """What stands before a stop's operator: `rank 3 came last to `, and then what the stop `before` it waited for."""
    rank = f"rank {node.rank}"
    if is_last and (node.role_in_path == "edge" or not is_first):
        return f"{rank} "
    if is_first and node.kind == "collective":
        return f"{rank} came last to "
    if node.rank != before.rank:
        return f"waited for {rank}{_WAITED_FOR.get(node.kind, ': ')}"
    return f"{rank} {'was held up by' if node.kind in _ON_HOST else 'came after'} "


_WAITED_FOR = {"send": "'s send, ", "recv": "'s receive, ", "collective": " in "}
_ON_HOST = frozenset({"host", "sync", "input", "gc"})


def hops_in_words(hops: Sequence[PathNode]) -> str:
    """Stops that are folded away: `18 hops, ranks 44 → 237`."""
    first, last = hops[0].rank, hops[-1].rank
    which = f"rank {first}" if first == last else f"ranks {first} → {last}"
    return f"{plural(len(hops), 'hop')}, {which}"


def cause_operator(row: RootCause) -> str:
    """The operator of a root cause as people read it, or what stands for one."""
    return operator_name(row.operator, is_edge=row.is_edge)


def operator_name(operator: str | None, *, is_edge: bool) -> str:
    """The same of an operator by its name; None for many that are too small to be named."""
    if operator is None:
        return "smaller idle times" if is_edge else "smaller delays"
    if operator == STEP_BEGIN:
        return "late already when the step began"
    return f"idle before {short_name(operator)}" if is_edge else short_name(operator)
