"""Collectives for people: bandwidth of groups and links compared with their siblings, overlap, and TFLOP/s."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kair_engine.results.collectives import (
    CollectivesResult,
    GroupTransfers,
    MatrixProducts,
    ProductShape,
    RankRates,
)
from kair_tui.render.answer import DIM, Column
from kair_tui.render.localize import flag
from kair_tui.render.text import short_name
from kair_tui.render.units import (
    count,
    duration,
    mean_step,
    one_decimal,
    or_dash,
    p_value,
    percent,
    plural,
    ranks_in_words,
    significant,
    size,
)
from kair_tui.render.view import View

if TYPE_CHECKING:
    from kair_tui.render.page import Page

_LISTED_RANKS: Final = re.compile(r"\s*\[[\d\s,]*\]$")
_LONGEST_NAME: Final = 24
_OF_KINDS: Final = {"send_recv": "send", "grouped_send_recv": "grouped sends"}
_NAMED: Final = 3
"""Slow groups and ranks in the first line."""


def kind_name(row: GroupTransfers) -> str:
    """Return the usual name of a kind: `all-reduce`."""
    return _OF_KINDS.get(row.kind, row.kind.replace("_", "-"))


def group_name(row: GroupTransfers) -> str:
    """Return `3: ranks 4-7`, `rank 4 → rank 8`; the ranks alone if the group has no name."""
    if row.kind == "send_recv":
        return f"rank {row.ranks[0]} → rank {row.ranks[-1]}"
    name = short_name(_LISTED_RANKS.sub("", row.group or ""), _LONGEST_NAME)
    return f"{name}: {ranks_in_words(row.ranks)}" if name else ranks_in_words(row.ranks)


def bandwidth(gb_per_s: float | None) -> str:
    """Return `196 GB/s`, `8.20 MB/s`."""
    if gb_per_s is None:
        return "–"
    return f"{significant(gb_per_s)} GB/s" if gb_per_s >= 1 else f"{significant(1e3 * gb_per_s)} MB/s"


def compute_rate(tflop_per_s: float | None) -> str:
    """Return `209 TFLOP/s`, `28.4 GFLOP/s`."""
    if tflop_per_s is None:
        return "–"
    return f"{significant(tflop_per_s)} TFLOP/s" if tflop_per_s >= 1 else f"{significant(1e3 * tflop_per_s)} GFLOP/s"


def relative(ratio: float | None) -> str:
    """Return `0.61 ×`."""
    return or_dash(ratio, "{:.2f} ×".format)


def group_text(row: GroupTransfers) -> str:
    """Return `rank 4 → rank 8: send 41.0 GB/s, 0.19 × its 7 siblings (p <1e-6)`."""
    rate = bandwidth(row.bus_gb_per_s) if row.bus_gb_per_s is not None else duration(row.transfer_us)
    siblings = "sibling" if row.siblings == 1 else plural(row.siblings, "sibling")
    ratio = f", {relative(row.ratio)} its {siblings}" if row.siblings else ""
    chance = "" if row.p_value is None else f" (p {p_value(row.p_value)})"
    return f"{group_name(row)}: {kind_name(row)} {rate}{ratio}{chance}"


def rank_text(row: RankRates) -> str:
    """Return `rank 5: matrix products 171 TFLOP/s, 0.82 × its peers (p 0.0002)`."""
    rate = compute_rate(row.product_tflop_per_s)
    ratio = "" if row.product_ratio is None else f", {relative(row.product_ratio)} its peers"
    chance = "" if row.product_p_value is None else f" (p {p_value(row.product_p_value)})"
    return f"rank {row.rank}: matrix products {rate}{ratio}{chance}"


def collectives_headline(result: CollectivesResult) -> str:
    """Return what is slower than its siblings; else that nothing is, or that there was nothing to compare."""
    slow = [group_text(row) for row in result.groups if row.slow]
    slow += [rank_text(row) for row in result.by_rank if row.products_slow]
    if slow:
        more = f"; and {len(slow) - _NAMED} more" if len(slow) > _NAMED else ""
        return f"slow: {'; '.join(slow[:_NAMED])}{more}"
    if not result.compared and not any(row.differs for row in result.groups):
        return "nothing is compared: that takes four groups, links or ranks that do the same, and three steps"
    differing = min((row for row in result.groups if row.differs), key=lambda row: row.ratio or 1.0, default=None)
    clear = f"no group, link or rank is slower than its siblings beyond chance ({result.compared} compared)"
    if differing is None:
        return clear
    return f"open: {group_text(differing)}, and {differing.siblings + 1} cannot say which is usual; {clear}"


def overlap_text(result: CollectivesResult) -> str:
    """Return how much of the communication is covered; the bar of a triage separates waiting."""
    if result.overlap is None or result.exposed_us is None or result.most_exposed_us is None:
        return "no communication in the chosen steps"
    return (
        f"computing covers {percent(result.overlap)} of communication and the waiting in it (median of the ranks); "
        f"{duration(result.exposed_us)} a step are not covered, most on rank {result.most_exposed_rank}: "
        f"{duration(result.most_exposed_us)}"
    )


def products_text(products: MatrixProducts | None) -> str:
    """Return the rate of matrix products."""
    if products is None:
        return "matrix products: no shapes are recorded (PyTorch's profiler records them with record_shapes=True)"
    return (
        f"matrix products: {compute_rate(products.tflop_per_s)} (median of the ranks, by the time of "
        f"{'their kernels' if products.timed_on == 'device' else 'the operators'}), least on rank {products.min_rank}: "
        f"{compute_rate(products.min_tflop_per_s)}; they are {percent(products.share_of_compute)} of computing"
    )


def _members(row: GroupTransfers) -> str:
    missing = row.members - len(row.ranks)
    return f"{row.members} ({missing} not recorded)" if missing > 0 else str(row.members)


COLUMNS = (
    Column[GroupTransfers](
        "group", "group or link", group_name, align="left", weight=9, full=lambda row: row.group or group_name(row)
    ),
    Column[GroupTransfers]("kind", "kind", kind_name, align="left", weight=9),
    Column[GroupTransfers]("members", "n", _members, weight=4),
    Column[GroupTransfers]("hosts", "hosts", lambda row: or_dash(row.hosts), weight=5),
    Column[GroupTransfers](
        "message_bytes", "size", lambda row: or_dash(row.message_bytes, lambda given: size(round(given))), weight=8
    ),
    Column[GroupTransfers]("calls", "per step", lambda row: one_decimal(row.calls), weight=4),
    Column[GroupTransfers]("transfer_us", "transfer", lambda row: duration(row.transfer_us), weight=7),
    Column[GroupTransfers]("bus_gb_per_s", "bus bandwidth", lambda row: bandwidth(row.bus_gb_per_s), weight=9),
    Column[GroupTransfers](
        "algorithm_gb_per_s", "algorithm bandwidth", lambda row: bandwidth(row.algorithm_gb_per_s), detail=True
    ),
    Column[GroupTransfers]("ratio", "ratio", lambda row: relative(row.ratio), weight=8),
    Column[GroupTransfers]("siblings", "siblings", lambda row: or_dash(row.siblings or None, count), weight=6),
    Column[GroupTransfers]("p_value", "p", lambda row: p_value(row.p_value), weight=5),
    Column[GroupTransfers]("slow", "", lambda row: flag(row.slow), align="left", weight=8),
)

RANK_COLUMNS = (
    Column[RankRates]("rank", "rank", lambda row: str(row.rank), weight=9),
    Column[RankRates]("communication_us", "communication", lambda row: duration(row.communication_us), weight=7),
    Column[RankRates]("overlap", "covered", lambda row: or_dash(row.overlap, percent), weight=9),
    Column[RankRates]("exposed_us", "exposed", lambda row: duration(row.exposed_us), weight=8),
    Column[RankRates]("waiting_us", "waiting in it", lambda row: duration(row.waiting_us), weight=6),
    Column[RankRates](
        "product_tflop_per_s", "matrix products", lambda row: compute_rate(row.product_tflop_per_s), weight=9
    ),
    Column[RankRates]("product_ratio", "vs peers", lambda row: relative(row.product_ratio), weight=8),
    Column[RankRates]("product_p_value", "p", lambda row: p_value(row.product_p_value), weight=5),
    Column[RankRates]("products_slow", "", lambda row: flag(row.products_slow), align="left", weight=8),
)


def _shape(row: ProductShape) -> str:
    product = f"{row.m}×{row.k} · {row.k}×{row.n}"
    return f"{count(row.batch)} of {product}" if row.batch > 1 else product


SHAPE_COLUMNS = (
    Column[ProductShape]("", "matrix product", _shape, align="left", weight=9),
    Column[ProductShape]("calls", "per step", lambda row: one_decimal(row.calls), weight=5),
    Column[ProductShape]("us_per_step", "time a step", lambda row: duration(row.us_per_step), weight=6),
    Column[ProductShape]("tflop_per_s", "median rank", lambda row: compute_rate(row.tflop_per_s), weight=9),
    Column[ProductShape]("min_tflop_per_s", "least", lambda row: compute_rate(row.min_tflop_per_s), weight=8),
    Column[ProductShape]("min_rank", "on rank", lambda row: str(row.min_rank), weight=8),
)
_SHAPES_SHOWN: Final = 8


def _body(result: CollectivesResult, page: Page) -> None:
    if result.groups:
        page.table(COLUMNS, result.groups)
        unlisted = result.total_groups - len(result.groups)
        if unlisted > 0:
            page.line(f"… and {count(unlisted)} more (--limit)", DIM)
        page.line()
    elif not result.total_groups:
        page.line("no such transfers between recorded ranks", DIM)
        page.line()
    page.line(overlap_text(result))
    page.line(products_text(result.products))
    if result.products is not None:
        page.table(SHAPE_COLUMNS, result.products.shapes, limit=_SHAPES_SHOWN)
    if result.by_rank:
        page.line()
        page.table(RANK_COLUMNS, result.by_rank)
    page.line()
    page.line(mean_step(result.step_time_us, result.steps), DIM)
    page.line("transfer: from the last member's arrival on; bus bandwidth: by nccl-tests' formulas", DIM)


VIEW = View[CollectivesResult, GroupTransfers](
    main="groups",
    columns=COLUMNS,
    headline=collectives_headline,
    body=_body,
    records=(("groups", "group"), ("by_rank", "rank")),
)
