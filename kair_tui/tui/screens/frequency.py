"""The time-frequency screen: when each rank ran an operator less often than its peers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from kair.app.question import Question
from kair_engine.results.rank import RankProfileResult, SubgraphTime
from kair_engine.results.views import FrequencyResult, InfoResult
from kair_tui.render.frequency import VIEW
from kair_tui.render.text import short_name
from kair_tui.render.units import count, duration, one_decimal, plural
from kair_tui.render.warnings import warnings_in_words
from kair_tui.tui.filtering import Filter
from kair_tui.tui.frame.command_line import Choice, ChoiceScreen
from kair_tui.tui.frame.view import ViewScreen
from kair_tui.tui.pointers import led_elsewhere, where_else
from kair_tui.tui.widgets.frequency_heat import FrequencyHeat
from kair_tui.tui.widgets.lines import Heading, Paragraph, Paragraphs
from kair_tui.tui.widgets.styles import styles_of

WINDOWS: Final = (10, 20, 50, 100, 200, 500, 1000)
_USUAL: Final = 100

_SHORT = 24
"""Length of a name in the path at the top."""


class FrequencyScreen(ViewScreen):
    """Ranks down, time to the right."""

    DEFAULT_CSS = "FrequencyScreen #said { margin: 1 0; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "choose", "choose operator"),
        Binding("plus,equals_sign", "windows(1)", "windows", key_display="+ -"),
        Binding("minus", "windows(-1)", "fewer windows", show=False),
    ]
    FIELDS = ("rank", "host", "state", "degraded", "operations")
    SORTS = ("degraded", "rank")
    FIRST = "#frequency"

    _phase: str | None = None
    _scope: str | None = None
    _windows = _USUAL
    _result: FrequencyResult | None = None
    _operators: InfoResult | None = None
    _scopes: tuple[SubgraphTime, ...] | None = None
    _choosing = False
    _order: tuple[int, ...] = ()
    _kept: frozenset[int] | None = None

    def questions(self) -> Mapping[str, Question]:
        """Return the counts; and what can be counted once that is to be chosen."""
        windows = None if self._windows == _USUAL else self._windows
        ask = self.session.question
        what = {"operator": self.place.operator, "phase": self._phase, "scope": self._scope}
        counts = ask("frequency", **what, windows=windows)
        if not self._choosing:
            return {"counts": counts}
        # Any rank shows the scopes: all run one program, or one per stage.
        rank = self.session.trace.job.ranks[0] if self.rank is None else self.rank
        return {"counts": counts, "operators": ask("info", operators=True), "scopes": ask("rank", rank=rank)}

    def body(self) -> ComposeResult:
        """Yield the result in a sentence, and the map."""
        yield Paragraphs(self.look, id="said")
        yield Heading(self.look, "ranks", of="frequency")
        self._heat = FrequencyHeat(self.look)
        yield self._heat

    @property
    def crumb(self) -> str:
        """Return the name with what is counted."""
        what = self.place.operator or self._phase or self._scope
        return f"frequency {short_name(what, _SHORT)}" if what else "frequency"

    def show(self, name: str, result: Any) -> None:  # noqa: ANN401
        """Give the counts to the map, and the countable things to the chooser."""
        if name == "counts":
            self._show_counts(result)
            return
        if name == "operators":
            self._operators = result
        else:
            profile: RankProfileResult = result
            self._scopes = tuple(row for row in profile.subgraphs if row.sort == "scope")
        if self._choosing and self._operators is not None and self._scopes is not None:
            self._choosing = False
            self._choose()

    def _show_counts(self, result: FrequencyResult) -> None:
        first = self._result is None
        self._result = result
        fewer = {window.rank for window in result.degraded}
        said = led_elsewhere(self.session, fewer, [VIEW.headline(result)])
        warnings = warnings_in_words(result.warnings)
        said += [Paragraph(f"warning: {warning.message}", "dim") for warning in warnings]
        self.query_one("#said", Paragraphs).show(*said)
        self._heat.show(result, self.session.trace.job.hosts)
        instead = where_else(self.session, fewer)
        wanted = self.place.rank if instead is None or self.place.rank is not None else instead[1]
        if first and wanted is not None:
            self._heat.move_to(wanted)
        self._order = self._order or tuple(row.rank for row in result.counts)
        self._list_ranks()
        self._explain()
        self.describe_cursor()

    def _explain(self) -> None:
        styles, glyphs = styles_of(self.look), self.look.glyphs
        assert self._result is not None
        window = f"{plural(self._result.windows, 'window')} of {duration(self._result.window_us)}"
        legend = [(f"{glyphs.weak_alarm} degraded  ", styles.levels[2]), (f"{glyphs.alarm} missing", styles.alarm)]
        self.query_one(Heading).say([(f"how often in {window}", None)], legend)

    # What is counted.

    def action_choose(self) -> None:
        """Choose among all operators, phases and annotated scopes of the recording."""
        if self._operators is not None and self._scopes is not None:
            self._choose()
            return
        self._choosing = True
        self.reask()

    def _choose(self) -> None:
        assert self._operators is not None
        assert self._scopes is not None
        used = self._operators.operators
        phases = Counter[str]()
        for row in used:
            phases.update(dict.fromkeys(row.phases, 1))
        of_stage = [
            Choice(phase, f"phase, {plural(number, 'operator')}", partial(self._count, phase=phase))
            for phase, number in phases.items()
        ]
        scopes = [
            Choice(
                self.look.safe(short_name(row.subgraph)),
                "what runs within this scope",
                partial(self._count, scope=row.subgraph),
            )
            for row in self._scopes
        ]
        operators = [
            Choice(
                self.look.safe(short_name(row.operator)),
                f"{count(row.count)} in {', '.join(row.phases) or 'no phase'}",
                partial(self._count, operator=row.operator),
            )
            for row in used
        ]
        every = Choice("everything", "all operators", self._count)
        self.app.push_screen(ChoiceScreen("count", [every, *of_stage, *scopes, *operators]))

    def _count(self, *, operator: str | None = None, phase: str | None = None, scope: str | None = None) -> None:
        self.place, self._phase, self._scope = replace(self.place, operator=operator), phase, scope
        self.reask()

    def action_windows(self, by: int) -> None:
        """Use more or fewer windows."""
        at = WINDOWS.index(self._windows) + by
        if 0 <= at < len(WINDOWS):
            self._windows = WINDOWS[at]
            self.reask()

    # The cell under the cursor.

    @property
    def rank(self) -> int | None:
        """Return the rank of the row."""
        return self._heat.rank

    def follow(self, rank: int) -> None:
        """Move the cursor with the user."""
        self._heat.move_to(rank)

    def about_cursor(self) -> str:
        """Describe the cell under the cursor."""
        heat, result = self._heat, self._result
        if heat.rank is None or result is None:
            return ""
        windows, hosts = heat.windows, self.session.trace.job.hosts
        host = hosts.get(heat.rank) if len(set(hosts.values())) > 1 else None
        which = f"window {windows.start}" if len(windows) == 1 else f"windows {windows.start}-{windows.stop - 1}"
        parts = [
            f"rank {heat.rank}" + (f" on {host}" if host else ""),
            f"{which} at {duration(windows.start * result.window_us)}",
            *(() if heat.shortfalls else (plural(heat.counted, "operation"),)),
        ]
        for state, sign in (("missing", self.look.glyphs.alarm), ("degraded", self.look.glyphs.weak_alarm)):
            low = [
                f"{count(one.count)} of {one_decimal(one.expected)}" for one in heat.shortfalls if one.state == state
            ]
            if low:
                parts.append(f"{sign} {state}: {', '.join(low)}")
        if (operator := heat.meanwhile) is not None:
            parts.append(f"in {self.look.safe(short_name(operator))}")
        return self.dotted(*parts)

    def copied(self) -> str:
        """Return the result, the thing under the cursor, and the commands."""
        said = [] if self._result is None else [VIEW.headline(self._result)]
        return "\n".join([*said, self.about_cursor(), *self.commands()])

    # Filter and sort.

    def filter_by(self, wanted: Filter) -> str:
        """Leave out rows of ranks that do not match; return their number."""
        rows = list(self._rows())
        kept = frozenset(row["rank"] for row in rows if wanted.matches(row))
        self._kept = kept if wanted.terms else None
        self._list_ranks()
        return f"{count(len(kept))} of {plural(len(rows), 'rank')}"

    def sort_by(self, name: str, descending: bool) -> None:
        """Sort by number, or with the most degraded windows first."""
        rows = sorted(self._rows(), key=lambda row: row["rank"])
        if name == "degraded":
            rows.sort(key=lambda row: row["degraded"], reverse=not descending)
        elif descending:
            rows.reverse()
        self._order = tuple(row["rank"] for row in rows)
        self._list_ranks()

    def _list_ranks(self) -> None:
        self._heat.list_ranks([rank for rank in self._order if self._kept is None or rank in self._kept])
        self.describe_cursor()

    def _rows(self) -> Sequence[dict[str, Any]]:
        """Return the ranks as they can be filtered and sorted."""
        if self._result is None:
            return []
        low = Counter(window.rank for window in self._result.degraded)
        states: dict[int, set[str]] = {}
        for window in self._result.degraded:
            states.setdefault(window.rank, set()).add(window.state)
        hosts = self.session.trace.job.hosts
        return [
            {
                "rank": row.rank,
                "host": hosts.get(row.rank, ""),
                "state": " ".join(sorted(states.get(row.rank, ()))),
                "degraded": low[row.rank],
                "operations": sum(row.counts),
            }
            for row in self._result.counts
        ]
