"""A matrix of curve distances: a cell for every two ranks, or of very many ranks a line per host."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import ClassVar, Final

from textual.binding import Binding, BindingType

from kair_engine.results.localize import GroupScore, LocalizeResult, RankScore
from kair_tui.render.localize import distance_digits
from kair_tui.render.terminal import Look
from kair_tui.render.units import plural, score, spans
from kair_tui.tui.widgets.heat import Axis, RankHeat
from kair_tui.tui.widgets.lines import Piece
from kair_tui.tui.widgets.lists import Choices

TIMES_USUAL: Final = (1.25, 1.5, 1.75, 2.0)
"""Multiples of the median rank's mean distance from which a cell is one level darker."""

_HOST: Final = 16
_BAR: Final = 24


class DistanceMatrix(RankHeat):
    """A row and a column for every rank, hosts set apart."""

    HEADER = 2
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "next_far(1)", "next farthest"),
        Binding("p", "next_far(-1)", "farthest rank before", show=False),
    ]

    def __init__(self, look: Look) -> None:
        super().__init__(look, id="matrix")
        self._distances: tuple[tuple[float, ...], ...] = ()
        self._place: dict[int, int] = {}
        """Each rank's index in the matrix."""
        self._scores: dict[int, RankScore] = {}
        """The farthest first."""
        self._result: LocalizeResult | None = None
        self._across_roles = False
        self._pair: tuple[int, int] | None = None
        self._by_host = True
        self._has_hosts = False
        self._largest, self._digits = 0.0, 1
        self._with_figures = False
        self.limits: tuple[float, ...] = ()
        """Distances from which a cell is one level darker."""

    # What is shown.

    def show(self, result: LocalizeResult) -> None:
        """Show all distances; the cursor stays on its pair, or goes to the farthest rank and its farthest peer."""
        assert result.matrix is not None
        self._result, self._distances = result, result.matrix
        self._place = {rank: place for place, rank in enumerate(sorted(row.rank for row in result.scores))}
        self._scores = {row.rank: row for row in self._judged(result.scores)}
        self._has_hosts = len({row.host for row in result.scores}) > 1
        self._largest = max(map(max, result.matrix), default=0.0)
        self._digits = distance_digits(self._largest)
        usual = median(row.score for row in self._scores.values()) if self._scores else 0.0
        self.limits = tuple(times * usual for times in TIMES_USUAL)
        if (self._pair is None or self._pair[0] not in self._scores) and result.scores:
            farthest = next(iter(self._scores))
            self._pair = (farthest, self._farthest_from(farthest))
        self.rearrange()

    @property
    def within_roles(self) -> bool:
        """Whether only ranks of one role are compared: stages differ far more than any straggler."""
        return not self._across_roles and self.has_roles

    @property
    def has_roles(self) -> bool:
        """Return whether there are several roles, some with more than one rank."""
        rows = () if self._result is None else self._result.scores
        return 1 < len({row.role for row in rows}) < len(rows)

    @property
    def scores(self) -> Sequence[RankScore]:
        """Return every rank with its mean distance from compared ranks, the farthest first."""
        return tuple(self._scores.values())

    def compare_across_roles(self, across: bool) -> None:
        """Compare all pairs, or only those within a role."""
        self._across_roles, self._pair = across, None
        if self._result is not None:
            self.show(self._result)

    def _judged(self, scores: Sequence[RankScore]) -> Iterable[RankScore]:
        if not self.within_roles:
            return scores
        of_role: dict[str, list[int]] = {}
        for row in scores:
            of_role.setdefault(row.role, []).append(row.rank)
        found = []
        for row in scores:
            peers = [self.distance(row.rank, other) for other in of_role[row.role] if other != row.rank]
            found.append(replace(row, score=fmean(peers) if peers else 0.0))
        return sorted(found, key=lambda row: -row.score)

    def are_compared(self, one: int, other: int) -> bool:
        """Return whether their distance is meaningful here."""
        return not self.within_roles or self._scores[one].role == self._scores[other].role

    def list_ranks(self, ranks: Sequence[int], *, by_host: bool) -> None:
        """Show these on both sides, in this order; `by_host` if hosts are contiguous."""
        self._ranks, self._by_host = ranks, by_host
        if self._pair is not None and ranks:
            row, column = self._pair
            self._pair = (row if row in ranks else ranks[0], column if column in ranks else ranks[0])
        self.rearrange()

    # What is under the cursor.

    @property
    def pair(self) -> tuple[int, int] | None:
        """Return the ranks of the row and of the column."""
        return (self._ranks[self.row], self._ranks[self.column]) if self._ranks else None

    @property
    def rank(self) -> int | None:
        """Return the rank of the row."""
        return self.pair[0] if self.pair else None

    def distance(self, one: int, other: int) -> float:
        """Return the distance between two ranks."""
        return self._distances[self._place[one]][self._place[other]]

    def text(self, distance: float) -> str:
        """Return a distance as the command prints it."""
        return f"{distance:.{self._digits}f}"

    def point(self, row: int, column: int) -> None:
        """Keep the cursor's pair when the cells are laid out again."""
        super().point(row, column)
        self._pair = self.pair

    def action_next_far(self, by: int) -> None:
        """Go to the rank with the next lower mean distance, and its farthest peer."""
        shown = frozenset(self._ranks)
        ranking = [rank for rank in self._scores if rank in shown]
        if not ranking:
            return
        at = ranking.index(self._ranks[self.row])
        on_farthest = self._ranks[self.column] == self._farthest_from(ranking[at])
        rank = ranking[(at + by) % len(ranking)] if on_farthest else ranking[at]
        self.point(self._ranks.index(rank), self._ranks.index(self._farthest_from(rank)))

    def _farthest_from(self, rank: int) -> int:
        row = self._distances[self._place[rank]]
        shown = self._ranks or sorted(self._scores)
        return max(shown, key=lambda other: (other != rank, self.are_compared(rank, other), row[self._place[other]]))

    # How it is drawn.

    def lay_out(self, width: int, height: int) -> None:  # noqa: ARG002
        """Draw figures in the cells if they fit, else two columns per cell, else one."""
        ranks = self._ranks
        hosts = [self.host_of(rank) for rank in ranks]
        self.measure_labels(ranks)
        self.right = max((len(score(row.score)) for row in self._scores.values()), default=0) + 3
        borders: tuple[int, ...] = ()
        if self._by_host:
            borders = tuple(at for at in range(1, len(hosts)) if hosts[at] != hosts[at - 1])
        if len(borders) * 2 > len(ranks):
            borders = ()
        figures = len(self.text(self._largest)) + 5
        axes = (Axis(len(ranks), figures, borders, 2), Axis(len(ranks), 2, borders), Axis(len(ranks), 1, borders))
        self.columns = next((axis for axis in axes if axis.length <= width - self.left - self.right), axes[-1])
        self.rows = axes[-1]
        self._with_figures = self.columns is axes[0]
        one, other = self._pair or (0, 0)
        self.row, self.column = (ranks.index(rank) if rank in ranks else 0 for rank in (one, other))

    def host_of(self, rank: int) -> str:
        """Return the rank's host."""
        return self.safe(self._scores[rank].host or "") if self._has_hosts else ""

    def header(self, line: int) -> tuple[Sequence[Piece], Sequence[tuple[int, Piece]], Sequence[Piece]]:
        """Return the hosts of the columns; under them as many ranks as fit."""
        dim = self.text_styles.dim
        if line == 0:
            starts = [0, *self.columns.borders] if self._by_host and self._ranks else []
            ends = [*self.columns.borders, self.columns.count] if starts else []
            over = [
                (self.columns.start(first), (self.host_of(self._ranks[first])[: self._span(first, end)], dim))
                for first, end in zip(starts, ends, strict=True)
            ]
            return (), over, [(f"{'mean':>{self.right}}", dim)]
        over, free = [], 0
        for column, rank in enumerate(self._ranks):
            start, text = self.columns.start(column), str(rank)
            if start >= free and start + len(text) <= self.columns.length:
                over.append((start, (text, dim)))
                free = start + len(text) + 1
        return self.label_of("rank", "host", dim), over, [(f"{'distance':>{self.right}}", dim)]

    def _span(self, first: int, end: int) -> int:
        return self.columns.start(end - 1) + self.columns.size - self.columns.start(first)

    def label(self, row: int, line: int) -> Sequence[Piece]:  # noqa: ARG002
        """Return the rank, and its host where a new one begins."""
        rank = self._ranks[row]
        host = self.host_of(rank)
        begins = row == 0 or host != self.host_of(self._ranks[row - 1])
        style = self.text_styles.strong if self._level(self._scores[rank].score) > 1 else self.text_styles.base
        return self.label_of(str(rank), host if begins else "", style)

    def cell(self, row: int, column: int, line: int) -> Piece:  # noqa: ARG002
        """Return a character for the distance of the two."""
        one, other, size = self._ranks[row], self._ranks[column], self.columns.size
        if one == other:
            return (self.look.glyphs.dash * min(size, 2)).ljust(size), self.text_styles.dim
        if not self.are_compared(one, other):
            return " " * size, self.text_styles.base
        distance = self.distance(one, other)
        level = self._level(distance)
        sign = self.look.glyphs.levels[level]
        sign = sign if level == 0 else sign * min(size, 2)
        text = f"{sign:<2} {self.text(distance)}" if self._with_figures else sign
        return text.ljust(size), self.text_styles.levels[level]

    def _level(self, distance: float) -> int:
        return sum(distance >= limit > 0 for limit in self.limits)

    def total(self, row: int, line: int) -> Sequence[Piece]:  # noqa: ARG002
        """Return the rank's mean distance: its score."""
        of_rank = self._scores[self._ranks[row]].score
        style = self.text_styles.strong if self._level(of_rank) > 1 else self.text_styles.dim
        return [(f"{score(of_rank):>{self.right}}", style)]


class HostDistances(Choices[GroupScore]):
    """Mean distances of hosts, the farthest first."""

    _largest = 0.0
    _host_width = 0

    def show_hosts(self, groups: Sequence[GroupScore]) -> None:
        """Show the scores summed up by host."""
        self._largest = max((group.mean_score for group in groups), default=0.0)
        self._host_width = max((len(self._host(group)) for group in groups), default=0)
        self.show(groups)

    def _host(self, group: GroupScore) -> str:
        return self.safe(group.group)[:_HOST]

    def line_of(self, item: GroupScore, width: int) -> list[Piece]:  # noqa: ARG002
        """Return the host's mean distance with a bar, and its highest rank."""
        styles, glyphs = self.text_styles, self.look.glyphs
        share = item.mean_score / self._largest if self._largest else 0.0
        bar = glyphs.full * round(share * _BAR)
        ranks = f"{'rank' if len(item.ranks) == 1 else 'ranks'} {spans(item.ranks, 3)}"
        return [
            (f" {self._host(item):<{self._host_width}}  ", styles.base),
            (f"{score(item.mean_score):>12}  ", styles.strong),
            (f"{bar:<{_BAR}}  ", styles.dim),
            (f"highest {score(item.max_score):>12}  ", styles.base),
            (self.safe(f"{plural(len(item.ranks), 'rank')}: {ranks}"), styles.dim),
        ]
