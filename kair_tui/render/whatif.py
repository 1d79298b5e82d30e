"""The what-if analysis for people: the job's possible savings, and who costs what.

Its verdict, causes and remedies are also put into words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from kair_engine.frozen import dataclass
from kair_engine.ranks import Rank
from kair_engine.results.whatif import (
    ERROR_GATE,
    FIX_KINDS,
    FixPrice,
    PartEffect,
    PricedRanks,
    Remedy,
    SlowdownCause,
    StepPrice,
    WhatifResult,
)
from kair_tui.render.answer import ALARM, DIM, Cell, Column, Styled
from kair_tui.render.delays import absorbed_fix_in_words, lack_of_cores_in_words, stops_in_words, ticks_in_words
from kair_tui.render.drawing import stretches
from kair_tui.render.sentences import filled
from kair_tui.render.terminal import ASCII, UNICODE
from kair_tui.render.text import spaced
from kair_tui.render.units import (
    WORTH_A_FIGURE,
    count,
    duration,
    gain,
    mean_of,
    money,
    one_decimal,
    or_dash,
    percent,
    ranks_in_words,
    signed_duration,
    signed_whole_percent,
    slowdown,
    spans,
    whole_percent,
)
from kair_tui.render.verdict import money_text
from kair_tui.render.view import View

if TYPE_CHECKING:
    from kair_tui.render.page import Branch, Page


_WORTH_MOVING = 0.01
"""Share of a stage's compute: smaller changes are not worth mentioning."""
_MOST = 0.5
"""Share of the slowdown above which a kind of time is named if no cause is known."""
_MUCH = 0.1
"""Share of the slowdown, for one worker."""


def whatif_in_words(result: WhatifResult) -> WhatifResult:
    """Return the answer with its sentences."""
    lost_us = _lost_us(result)
    return replace(
        result,
        causes=tuple(one.changed(text=cause_in_words(one, lost_us)) for one in result.causes),
        remedies=tuple(replace(one, text=remedy_in_words(one)) for one in result.remedies),
        verdict=verdict_in_words(result),
    )


def verdict_in_words(result: WhatifResult) -> str:
    """Return the ranks' costs over all recorded steps, if known; else the replay's result."""
    replayed = _replayed(result)
    if not result.measured:
        return replayed
    return f"measured: {'; '.join(map(_measured, result.measured))}; by the replay of sampled steps: {replayed}"


def _measured(one: PricedRanks) -> str:
    """Return `rank 2 costs 3.72 ms a step since step 99`."""
    since = "" if one.since is None else f" since step {one.since}"
    until = "" if one.until is None else f" until step {one.until}"
    takes = "costs" if len(one.ranks) == 1 else "cost"
    return f"{ranks_in_words(one.ranks)} {takes} {duration(one.time_lost_us_per_step)} a step{since}{until}"


def _replayed(result: WhatifResult) -> str:
    """Return a sentence with the causes and the heatmap's pattern; the largest price comes first."""
    if result.pattern == "none" and result.simulation_error > ERROR_GATE:
        off = percent(result.simulation_error)
        return f"no straggler shows, but the replay is {off} off the recording and may miss some"
    if result.pattern == "none":
        return f"stragglers cost little: the job is {percent(result.slowdown - 1)} slower than without any"
    slower = f"{result.slowdown:.2f} times slower than without any straggler"
    if result.only_fixes:
        return f"{slower}; only fixes were priced"
    words = [cause_in_words(one, _lost_us(result)) for one in result.causes]
    causes = ", and second ".join(words) or f"no single cause{_mostly(result)}"
    return f"{slower}: {causes}; {_pattern(result)}"


def cause_in_words(cause: SlowdownCause, lost_us: float) -> str:
    """Return the cause, where, and its evidence; `lost_us` is what a step loses to all stragglers together."""
    return filled(cause.wording(), {**cause.figures, "cause": cause, "price": _price(cause, lost_us)})


def _lost_us(result: WhatifResult) -> float:
    return result.step_time_us - result.ideal_step_time_us


_PUBLISHED: Final = {
    "zb_h1": "schedule the pipeline as ZB-H1, with as much memory as 1F1B",
    "zb_2p": "schedule the pipeline as ZB-2p (handcrafted: ZB-H2), with twice the memory",
    "zb_cpu": "schedule the pipeline as ZB-2p, with transfers by the CPU",
    "reschedule": "warm up longer before slow links, with transfers by the CPU",
    "larger_microbatches": "merge every two microbatches into one",
    "redealt_microbatches": "deal microbatches to data-parallel ranks by how fast these are",
    "partial_collectives": "let collectives not wait for the last rank",
}


_BEYOND_CHANCE = 0.54
"""Spearman's rank correlation that chance reaches in 5 % of 11 runs: below it, prices do not rank savings."""


def price_in_words(remedy: Remedy) -> list[str]:
    """Return how reliable a remedy's price is: its range, its results on public runs, and its assumptions."""
    if remedy.saved_range_us is None:
        return []
    saved = " to ".join(dict.fromkeys(signed_duration(of) for of in remedy.saved_range_us))
    checked = "never compared with measurements"
    if (of := remedy.checked) is not None:
        checked = (
            f"predicted steps were {whole_percent(of.median_error)} off on {of.runs} public runs, "
            f"rank correlation of savings {of.rank_correlation:+.2f}"
        )
        checked = checked if of.rank_correlation >= _BEYOND_CHANCE else f"not to be trusted: {checked}"
    return [
        f"{remedy.remedy.replace('_', '-')}: saves {saved} a step; {checked}",
        *(f"  assumed: {text}" for text in remedy.assumed),
        f"  source: {remedy.source}",
    ]


def remedy_in_words(remedy: Remedy) -> str:
    """Return what to do."""
    if remedy.remedy in _PUBLISHED:
        return _PUBLISHED[remedy.remedy]
    if remedy.remedy == "sorted_microbatches":
        ranks = f"the {remedy.dp_ranks} data-parallel ranks"
        return f"deal the microbatches of a step to {ranks} by their length, longest first"
    if remedy.collection_us is not None:
        how = f"every {remedy.every_steps} steps (assumed), {duration(remedy.collection_us)} each"
        return f"plan garbage collection: all ranks collect at one common step, {how}"
    changes = [of_stage for of_stage in remedy.compute_change_by_stage.items() if abs(of_stage[1]) >= _WORTH_MOVING]
    moves = ", ".join(f"stage {stage} {signed_whole_percent(change)}" for stage, change in changes)
    return f"even out what the stages compute, by moving layers: {moves} of its compute"


def _mostly(result: WhatifResult) -> str:
    kind, saved_us = next(iter(result.saved_by_operator_type_us.items()), ("", 0.0))
    lost_us = _lost_us(result)
    share = saved_us / lost_us if lost_us > 0 else 0.0
    return f", mostly {spaced(kind)} ({_of_slowdown(share)})" if share >= _MOST else ""


def _pattern(result: WhatifResult) -> str:
    """Return which workers are slow, possibly together: the tables show the saving of fixing one."""
    rank = next(iter(result.by_rank or result.by_rank_approximate), None)
    stage = next(iter(result.by_stage), None)
    last = ", the last row," if result.by_stage and stage == max(result.by_stage) else ""
    return {
        "one_worker": f"one worker, rank {rank}, is slower than all others",
        "few_workers": f"a few workers are slower than others, rank {rank} most",
        "one_stage": f"stage {stage}{last} is slower than others",
        "diffuse": _spread(result),
        "unknown": "workers were not priced one by one",
    }[result.pattern]


def _spread(result: WhatifResult) -> str:
    largest = max((*result.saved_by_rank_us.values(), *result.saved_by_rank_at_most_us.values()), default=0.0)
    if largest < _MUCH * _lost_us(result):
        return "no worker by itself costs much"
    return "the cost is spread over all workers"


def _price(cause: SlowdownCause, lost_us: float) -> str:
    """Return the saving per step without it, and its share of the total loss."""
    share = cause.share or 0.0
    return f"{duration(share * lost_us)} a step, {_of_slowdown(share)}"


_ALL: Final = 0.995
"""Share of the slowdown that is printed as 100 %. Several parts can each be all of it, or more, by a replay's error."""


def _of_slowdown(share: float) -> str:
    return "all of the slowdown" if share >= _ALL else f"{whole_percent(share)} of the slowdown"


_SHOWN = 10
_LABEL, _CELL, _MARGIN, _WIDEST = 10, 9, 26, 100
"""Widths in the heat map: of its labels, of a cell with a figure, of everything else; and the limit of all cells."""


_TYPES: Final = ("operation type", "kind of time")
_ALONE: Final = {**dict.fromkeys(_TYPES, "S_t"), "rank": "S_w"}
"""The paper's names for S of one part [W]."""
_LEVELS, _DARK = (0.05, 0.25, 0.5, 0.75), 3
"""Shares of the largest S_w − 1 at which a heatmap cell gets darker; and the first level with colour."""
_SLOWED = 0.1
"""S − 1 of a job that counts as slowed [W]: below it, not even the slowest worker is dark."""


@dataclass(frozen=True)
class Part:
    """One part of the job, and the saving of its fix in the recorded step."""

    sort: str
    """`kind of time`, `stage` …"""
    part: str
    saved_us: float
    saved: float
    """As a share of the step."""
    gpu_hours_per_day: float
    slowdown: float | None
    """S with only this part as recorded and all else ideal; of an operation type S_t, of a worker S_w [W]."""
    ranks: tuple[Rank, ...] = ()
    """Of a row of ranks whose fixes save the same time: all of them; `slowdown` is then their largest."""

    @property
    def is_worth_a_line(self) -> bool:
        """Whether its price is not printed as zero."""
        return self.saved >= WORTH_A_FIGURE


def sorts_of(
    of: WhatifResult | StepPrice,
) -> list[tuple[str, str, Mapping[Any, float], Mapping[Any, float]]]:
    """Return (the sort of parts, their label, the saving of each fix, µs, S of each alone)."""
    kinds = "kind of time" if set(of.saved_by_operator_type_us) <= set(FIX_KINDS) else "operation type"
    hosts = (of.saved_by_host_us, of.by_host) if isinstance(of, WhatifResult) else ({}, {})
    return [
        (kinds, "", of.saved_by_operator_type_us, of.by_operator_type),
        ("stage", "stage ", of.saved_by_stage_us, of.by_stage),
        ("data-parallel rank", "dp ", of.saved_by_dp_rank_us, of.by_dp_rank),
        ("host", "", *hosts),
        ("rank", "rank ", of.saved_by_rank_us, of.by_rank),
    ]


def parts_of(result: WhatifResult) -> dict[str, tuple[Part, ...]]:
    """Return the job's parts by sort, the costliest first; of very many ranks those that can save most."""
    found = {
        sort: tuple(_part(result, sort, f"{label}{key}", saved, alone.get(key)) for key, saved in of.items())
        for sort, label, of, alone in sorts_of(result)
    }
    return {**found, "rank": _with_shared_rows(result)}


def _with_shared_rows(result: WhatifResult) -> tuple[Part, ...]:
    """Return the ranks' parts; those that save the same, which they share, have one row."""
    rows = []
    for ranks in result.ranks_by_saving:
        alone = max((result.by_rank[rank] for rank in ranks if rank in result.by_rank), default=None)
        row = _part(result, "rank", ranks_in_words(ranks), result.saved_by_rank_us[ranks[0]], alone)
        rows.append(replace(row, ranks=ranks))
    return tuple(rows)


def _part(result: WhatifResult, sort: str, part: str, saved_us: float, slowdown: float | None) -> Part:
    saved = saved_us / result.step_time_us if result.step_time_us else 0.0
    # Saved hours are proportional to the saved share of the step.
    hours = saved * result.gpu_hours_per_day / result.waste if result.waste else 0.0
    return Part(sort, part, saved_us, saved, hours, slowdown)


def _headline(result: WhatifResult) -> str:
    return result.verdict


COLUMNS = (
    Column[StepPrice]("step", "step", lambda row: str(row.step), weight=9),
    Column[StepPrice]("measured_us", "measured", lambda row: duration(row.measured_us), weight=6),
    Column[StepPrice]("replayed_us", "replayed", lambda row: duration(row.replayed_us), weight=7),
    Column[StepPrice]("ideal_us", "ideal", lambda row: duration(row.ideal_us), weight=7),
    Column[StepPrice]("slowdown", "S", lambda row: slowdown(row.slowdown), weight=8),
)

_FIXES = (
    Column[FixPrice]("fix", "fix", lambda row: row.fix, align="left", weight=9),
    Column[FixPrice]("step_time_us", "step", lambda row: duration(row.step_time_us), weight=8),
    Column[FixPrice]("saved_us", "saved/step", lambda row: signed_duration(row.saved_us), weight=8),
    Column[FixPrice]("throughput_gain", "throughput", lambda row: gain(row.throughput_gain), weight=7),
    Column[FixPrice]("gpu_hours_per_day", "GPU-hours/day", lambda row: one_decimal(row.gpu_hours_per_day), weight=6),
    Column[FixPrice]("cost_per_day", "cost/day", money_text, weight=6),
)

_REMEDIES = (
    Column[Remedy]("text", "remedy", lambda row: row.text, align="left", weight=9),
    Column[Remedy]("step_time_us", "step", lambda row: duration(row.step_time_us), weight=8),
    Column[Remedy]("saved_us", "saved/step", lambda row: signed_duration(row.saved_us), weight=8),
)


def _parts(sort: str, parts: Sequence[Part], page: Page, *, loses_time: bool) -> None:
    if not parts:
        return
    # A type can slow an ideal job down although fixing it saves nothing in this one.
    slows = 1 + WORTH_A_FIGURE if sort in _TYPES else float("inf")
    worth = [part for part in parts if page.options.wide or part.is_worth_a_line or (part.slowdown or 1.0) >= slows]
    if not worth:
        page.line(f"No {sort} costs anything{' by itself: several lose time together' if loses_time else ''}.")
        page.line()
        return
    columns = (
        Column[Part]("part", sort, lambda row: row.part, align="left", weight=9),
        Column[Part]("saved_us", "saves/step", lambda row: signed_duration(row.saved_us), weight=9),
        Column[Part]("saved", "of the step", lambda row: percent(row.saved), weight=8),
        Column[Part]("gpu_hours_per_day", "GPU-hours/day", lambda row: one_decimal(row.gpu_hours_per_day), weight=7),
        Column[Part]("slowdown", _ALONE.get(sort, "S"), _slowdown_alone, weight=8),
    )
    page.table(columns, worth, limit=_SHOWN)
    if (hidden := len(parts) - len(worth)) and len(worth) <= _SHOWN:
        page.line(f"… and {count(hidden)} more that {'costs' if hidden == 1 else 'cost'} nothing", DIM)
    page.line()


def _slowdown_alone(row: Part) -> str:
    return ("up to " if len(row.ranks) > 1 else "") + or_dash(row.slowdown, slowdown)


def _facts(result: WhatifResult, page: Page) -> None:
    inexact = result.simulation_error > ERROR_GATE
    if inexact:
        page.line(simulation_in_words(result), ALARM)
        page.line()
    page.fact("step", _times(result))
    page.fact("slowdown S", f"{slowdown(result.slowdown)}: {_without_any(result)}")
    if slowdown(result.peer_slowdown) != slowdown(result.slowdown):
        ideal = f"peers take {duration(result.peer_ideal_step_time_us)}"
        page.fact("to peers", f"{slowdown(result.peer_slowdown)}: {ideal}; S is the published figure, against the mean")
    slowest = f"the slowest 3 % of workers (rank {spans(result.slowest_ranks)})"
    if result.slowest_workers is not None:
        page.fact("M_W", _effect(result.slowest_workers, slowest, wide=page.options.wide))
    if result.last_stage is not None:
        page.fact("M_S", _effect(result.last_stage, "the last stage", wide=page.options.wide))
    if result.forward_backward_correlation is not None and result.forward_variation is not None:
        page.fact(
            "microbatches",
            f"forward and backward correlate by {result.forward_backward_correlation:.3f} within a rank; "
            f"the forward varies by {percent(result.forward_variation)}",
        )
    if not inexact:
        page.fact("replay error", simulation_in_words(result))
    _standing_still(result, page)
    page.line()


def _body(result: WhatifResult, page: Page) -> None:
    _facts(result, page)
    for sort, parts in parts_of(result).items():
        if sort != "data-parallel rank":
            _parts(sort, parts, page, loses_time=result.waste >= WORTH_A_FIGURE)
    if result.by_operator_type:
        page.line("S_t, S_w, S: the step with only that part as recorded and all else ideal, over the ideal step", DIM)
        page.line("saves/step of a rank: all its delays undone; a finding's price: its fix alone", DIM)
        if any(len(part.ranks) > 1 and part.is_worth_a_line for part in parts_of(result)["rank"]):
            page.line(
                "ranks in one row save the same, no more than all transfers do: what they share is saved once", DIM
            )
        page.line()
    _heatmap(result, page)
    if result.fixes:
        page.table(_FIXES, result.fixes)
        page.line()
    for line in absorbed_lines(result):
        page.line(line)
    if result.absorbed:
        page.line()
    if result.remedies:
        page.table(_REMEDIES, result.remedies)
        page.line()
        for remedy in result.remedies:
            for line in price_in_words(remedy):
                page.line(line)
        if any(remedy.saved_range_us is not None for remedy in result.remedies):
            page.line()
    without_delays = any(duration(row.measured_us) != duration(row.replayed_us) for row in result.per_step)
    columns = [column for column in COLUMNS if column.key != "replayed_us" or without_delays or page.options.wide]
    page.table(columns, result.per_step, limit=_SHOWN)


def _standing_still(result: WhatifResult, page: Page) -> None:
    """Write the threads' stops, as far as known."""
    stops = result.host_stops
    if stops is None:
        return
    if stops.per_step:
        page.fact("threads stop", f"on an average rank {stops_in_words(vars(stops))}")
    if stops.cores is not None:
        page.fact("lack of cores", f"measured: {lack_of_cores_in_words(stops.cores, result.step_time_us)}")
    if stops.tick_us is not None:
        page.fact("threads wait", ticks_in_words(stops.tick_us, stops.ticked_share))


def absorbed_lines(result: WhatifResult) -> list[str]:
    """Return the fixes of hosts that save nothing because hosts are ahead of their devices."""
    return [f"absorbed: {absorbed_fix_in_words(one, result.step_time_us)}" for one in result.absorbed]


def _without_any(result: WhatifResult) -> str:
    """Return S, with money only if the price of a GPU hour is known."""
    price = "" if result.cost_per_day is None else f", {money(result.cost_per_day, result.currency)}"
    hours = f"{one_decimal(result.gpu_hours_per_day)} GPU-hours{price} a day"
    return f"without any straggler a step takes {percent(result.waste)} less ({hours})"


def _times(result: WhatifResult) -> str:
    replayed, measured = duration(result.step_time_us), duration(result.measured_step_time_us)
    taken = measured if replayed == measured else f"{replayed} without launch delays ({measured} measured)"
    return f"{taken}, ideal {duration(result.ideal_step_time_us)}; {mean_of(result.steps)}"


def simulation_in_words(result: WhatifResult) -> str:
    """Return the simulation's error, and whether it exceeds the paper's limit."""
    off = percent(result.simulation_error)
    left_out = "(delays that no recorded operation explains are left out)"
    if result.simulation_error <= ERROR_GATE:
        return f"{off} {left_out}"
    return f"read the figures with care: the replay error is {off}, above {whole_percent(ERROR_GATE)} {left_out}"


def _effect(effect: PartEffect, part: str, *, wide: bool) -> str:
    alone = f"; alone in an ideal job it adds {percent(effect.share_alone)} of it" if wide else ""
    return f"{percent(effect.share_removed)} of the slowdown would go away if {part} were ideal{alone}"


def darker_from(slowdowns: Iterable[float]) -> tuple[float, ...]:
    """Return the values of S_w − 1 at which a cell gets darker: relative to the largest, if the job is slow."""
    most = max((*(one - 1 for one in slowdowns), _SLOWED))
    return tuple(share * most for share in _LEVELS)


def _heatmap(result: WhatifResult, page: Page) -> None:
    draw_heatmap(result.heatmap, len(result.by_rank), page, staged=result.is_staged)


def draw_heatmap(heatmap: Sequence[Sequence[float]], exact: int, page: Page, *, staged: bool) -> None:
    """Draw a row per stage and a cell per data-parallel rank, or one row of all ranks: S with one worker as recorded.

    `exact` is the number of workers that were replayed: values of the others are upper bounds.
    """
    columns = max(map(len, heatmap), default=0)
    cells = len(heatmap) * columns
    if page.options.plain or cells < 2 or max(map(max, heatmap)) - 1 < WORTH_A_FIGURE:
        return
    limits = darker_from(one for row in heatmap for one in row)
    axes = "rows: stages, columns: data-parallel ranks" if staged else "columns: ranks"
    at_most = ", or at most" if exact < cells else ""
    glyphs = (ASCII if page.options.ascii_only else UNICODE).levels
    figures = columns * _CELL <= min(page.options.width - _LABEL, _WIDEST)
    width = columns if figures else min(columns, _WIDEST, max(page.options.width - _MARGIN, 10))
    page.line(f"S_w: slowdown by each worker alone{at_most} ({axes})")
    for stage, row in enumerate(heatmap):
        drawn: list[tuple[str, str]] = [(f"{f'stage {stage}' if staged else 'ranks':<{_LABEL}}", "")]
        for part in stretches(columns, width):
            # The maximum, because a mean would hide a costly rank.
            worst = max(row[part.start : part.stop])
            level = sum(worst - 1 >= limit for limit in limits)
            figure = f" {worst:.3f}".ljust(_CELL - 1) if figures else ""
            drawn.append((glyphs[level] + figure, ALARM if level >= _DARK else ""))
        page.pieces([*drawn, ("" if figures else f"  {min(row):.3f} to {max(row):.3f}", "")])
    together = f"; each cell is the worst of {columns / width:.1f} columns" if width < columns else ""
    page.line(f"{'columns':<{_LABEL}}0 to {columns - 1}, from the left{together}", DIM)
    scale = (f"{glyph} from {1 + limit:.3f}" for glyph, limit in zip(glyphs[1:], limits, strict=True))
    page.line(f"{'scale':<{_LABEL}}{glyphs[0]} from 1, {', '.join(scale)}", DIM)
    page.line()


def _tree(result: WhatifResult, page: Page) -> None:
    def grow(root: Branch, safe: Callable[[Cell], Any]) -> None:
        for sort, parts in parts_of(result).items():
            if not parts:
                continue
            branch = root.add(safe(f"by {sort}"))
            for part in parts[:_SHOWN]:
                alone = f", {_ALONE.get(sort, 'S')} {or_dash(part.slowdown, slowdown)}" if page.options.wide else ""
                saved = f"saves {duration(max(part.saved_us, 0.0))} a step, {percent(max(part.saved, 0.0))}"
                branch.add(safe(f"{part.part}: {saved}{alone}"))
            if len(parts) > _SHOWN:
                branch.add(safe(f"… and {count(len(parts) - _SHOWN)} more"))
        for fix in result.fixes:
            root.add(
                safe(f"fix {fix.fix} saves {duration(fix.saved_us)} a step: {gain(fix.throughput_gain)} throughput")
            )
        for line in absorbed_lines(result):
            root.add(safe(line))
        for remedy in result.remedies:
            root.add(safe(f"{remedy.text} saves {duration(remedy.saved_us)} a step"))

    page.tree(Styled(f"a step takes {_times(result)}", ALARM if result.pattern != "none" else ""), grow)


VIEW = View[WhatifResult, StepPrice](
    main="per_step",
    columns=COLUMNS,
    headline=_headline,
    body=_body,
    records=(("per_step", "step"), ("fixes", "fix"), ("remedies", "remedy")),
    tree=_tree,
)
