"""The matrix screen: pairwise Kolmogorov-Smirnov distances of the ranks' completion curves."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from kair.app.question import Question
from kair_engine.results.localize import GroupScore, LocalizeResult, RankScore
from kair_tui.render.localize import VIEW
from kair_tui.render.units import count, plural, score, spans
from kair_tui.tui.filtering import Filter
from kair_tui.tui.frame.view import ViewScreen
from kair_tui.tui.pointers import accused_ranks, known_triage, led_elsewhere, where_else
from kair_tui.tui.session import Place, Session
from kair_tui.tui.widgets.distances import DistanceMatrix, HostDistances
from kair_tui.tui.widgets.lines import Heading, Paragraph, Paragraphs, Piece, level_legend

RANKS_IN_A_MATRIX: Final = 1024
"""A million distances of 32 bytes, kept for every choice of steps."""


class MatrixScreen(ViewScreen):
    """A cell for every two ranks; a line for every host if there are too many ranks."""

    DEFAULT_CSS = "MatrixScreen #said { margin: 1 0; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("percent_sign", "normalise", "shares", key_display="%"),
        Binding("W", "whole_run", "whole run"),
        Binding("a", "across_roles", "all pairs, or within roles", show=False),
    ]
    FIELDS = ("rank", "host", "mean")
    SORTS = ("distance", "host")
    FIRST = "#matrix"

    def __init__(self, session: Session, place: Place) -> None:
        super().__init__(session, place)
        self._normalised = self._whole_run = False
        self._by_host = self._has_cells
        self._descending = False
        self._result: LocalizeResult | None = None
        self._kept: frozenset[int] | None = None

    @property
    def _has_cells(self) -> bool:
        return len(self.session.trace.job.ranks) <= RANKS_IN_A_MATRIX

    def questions(self) -> Mapping[str, Question]:
        """Return the distances of all ranks, or their summary per host."""
        how = {"method": "paper", "whole_run": self._whole_run, "normalized": self._normalised}
        whole = {"matrix": True} if self._has_cells else {"by": "host"}
        return {"distances": self.session.question("localize", **how, **whole)}

    def body(self) -> ComposeResult:
        """Yield the result in a sentence, and the distances."""
        yield Paragraphs(self.look, id="said")
        yield Heading(self.look, "distances", of="matrix")
        yield DistanceMatrix(self.look) if self._has_cells else HostDistances(self.look, id="matrix")

    def show(self, name: str, result: LocalizeResult) -> None:  # noqa: ARG002
        """Show the matrix or the list."""
        first, self._result = self._result is None, result
        ranks = len(result.scores)
        if self._matrix is not None:
            self._matrix.show(result)
        farthest = self._farthest
        said = led_elsewhere(self.session, farthest, self._headlines(result))
        if not self._has_cells:
            limit = f"shown for up to {count(RANKS_IN_A_MATRIX)} ranks"
            has = f"{count(ranks)} ranks have {count(ranks * ranks)} distances"
            said.append(Paragraph(f"{has}: {limit}. These are the mean distances of each host's ranks.", "dim"))
        self.query_one("#said", Paragraphs).show(*said)
        if self._matrix is None:
            self._list_hosts()
        else:
            self._list_ranks()
            instead = where_else(self.session, farthest)
            wanted = self.place.rank if instead is None or self.place.rank is not None else instead[1]
            if first and wanted is not None:
                self._matrix.move_to(wanted)
        self._explain()
        self.describe_cursor()

    def _headlines(self, result: LocalizeResult) -> list[str]:
        """Return the command's headlines; with different roles first the farthest rank within its role."""
        matrix = self._matrix
        if matrix is None or not matrix.within_roles:
            return [VIEW.headline(result)]
        worst = matrix.scores[0]
        mean = f"rank {worst.rank} lies farthest from its role {worst.role}, {score(worst.score)} on average"
        return [f"{mean} (a ranking, no verdict is drawn from it; a compares all pairs)"]

    def _explain(self) -> None:
        """Write what is compared, and the distances at which cells get darker."""
        matrix = self._matrix
        what = f"{'over the run' if self._whole_run else 'per step'}{', shares' if self._normalised else ''}"
        if matrix is not None and matrix.within_roles:
            what += ", within roles"
        legend: list[Piece] = []
        if matrix is not None:
            digits = 2 if self._normalised else 1
            legend = level_legend(self.look, [f"{limit:.{digits}f}" for limit in matrix.limits])
        self.query_one(Heading).say([(what, None)], legend)

    # The pair, or the host, under the cursor.

    @property
    def _matrix(self) -> DistanceMatrix | None:
        return next(iter(self.query(DistanceMatrix)), None)

    @property
    def _group(self) -> GroupScore | None:
        return None if self._has_cells else self.query_one(HostDistances).chosen

    @property
    def rank(self) -> int | None:
        """Return the rank of the row; for a host the one with the highest score."""
        if self._matrix is not None:
            return self._matrix.rank
        group = self._group
        of_host = frozenset(group.ranks) if group else frozenset()
        return next((row.rank for row in self._scores if row.rank in of_host), None)

    @property
    def _scores(self) -> Sequence[RankScore]:
        if self._matrix is not None:
            return self._matrix.scores
        return self._result.scores if self._result else ()

    @property
    def _farthest(self) -> tuple[int, ...]:
        """Return as many of the farthest ranks as triage accuses."""
        accused = accused_ranks(known_triage(self.session))
        return tuple(row.rank for row in self._scores[: max(len(accused), 1)])

    def follow(self, rank: int) -> None:
        """Move the cursor with the user."""
        if self._matrix is not None:
            self._matrix.move_to(rank)

    def about_cursor(self) -> str:
        """Describe the cell under the cursor."""
        dot, matrix = f" {self.look.glyphs.dot} ", self._matrix
        if matrix is None:
            group = self._group
            return "" if group is None else f"{group.group}{dot}ranks {spans(group.ranks)}{dot}farthest {self.rank}"
        if matrix.pair is None:
            return ""
        mean: dict[int, RankScore] = {row.rank: row for row in self._scores}
        one, other = (mean[rank] for rank in matrix.pair)
        has_hosts = len({row.host for row in self._scores}) > 1
        names = [f"{row.rank} on {row.host}" if has_hosts else str(row.rank) for row in (one, other)]
        if one is other:
            return f"rank {names[0]}{dot}mean distance {score(one.score)}"
        if not matrix.are_compared(one.rank, other.rank):
            return f"ranks {names[0]} and {names[1]}{dot}of different roles: not compared (a compares all)"
        distance = matrix.text(matrix.distance(one.rank, other.rank))
        return f"ranks {' and '.join(names)}{dot}distance {distance}{dot}means {score(one.score)}, {score(other.score)}"

    def copied(self) -> str:
        """Return the result, the thing under the cursor, and the commands."""
        said = [] if self._result is None else [VIEW.headline(self._result)]
        return "\n".join([*said, self.about_cursor(), *self.commands()])

    # What is compared.

    def action_normalise(self) -> None:
        """Show counts of operators, or shares of each rank's own."""
        self._normalised = not self._normalised
        self.reask()

    def action_across_roles(self) -> None:
        """Show all pairs, or only those of ranks that run the same program."""
        if self._matrix is not None and self._matrix.has_roles and self._result is not None:
            self._matrix.compare_across_roles(self._matrix.within_roles)
            self.show("distances", self._result)

    def action_whole_run(self) -> None:
        """Compare step by step, or over the whole recording."""
        self._whole_run = not self._whole_run
        self.reask()

    # Filter and sort.

    def filter_by(self, wanted: Filter) -> str:
        """Leave out ranks that do not match; return their number."""
        kept = frozenset(
            row.rank for row in self._scores if wanted.matches({"rank": row.rank, "host": row.host, "mean": row.score})
        )
        self._kept = kept if wanted.terms else None
        self._list()
        return f"{count(len(kept))} of {plural(len(self._scores), 'rank')}"

    def sort_by(self, name: str, descending: bool) -> None:
        """Sort host by host, or the farthest rank first."""
        self._by_host, self._descending = name == "host", descending
        self._list()

    def _list(self) -> None:
        if self._matrix is None:
            self._list_hosts()
        else:
            self._list_ranks()
        self.describe_cursor()

    def _list_ranks(self) -> None:
        assert self._matrix is not None
        rows = [row for row in self._scores if self._kept is None or row.rank in self._kept]
        if self._by_host:
            rows.sort(key=lambda row: row.rank)
            first: dict[str | None, int] = {}
            for row in rows:
                first.setdefault(row.host, row.rank)
            rows.sort(key=lambda row: first[row.host])
        if self._descending:
            rows.reverse()
        self._matrix.list_ranks([row.rank for row in rows], by_host=self._by_host)

    def _list_hosts(self) -> None:
        assert self._result is not None
        kept = self._kept
        groups = [row for row in self._result.groups if kept is None or kept & frozenset(row.ranks)]
        if self._by_host:
            groups.sort(key=lambda group: group.ranks)
        if self._descending:
            groups.reverse()
        self.query_one(HostDistances).show_hosts(groups)
