"""The what-if screen: how fast the job would be without any straggler, what each part costs, and fixes to choose."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.geometry import Size

from kair.app.candidates import MIN_COST, Worker, workers, workers_alone
from kair.app.question import Answer, Question
from kair_engine.errors import KairError, UsageError
from kair_engine.results.mitigate import SimulatedPolicy
from kair_engine.results.money import GpuCost
from kair_engine.results.triage import TriageResult
from kair_engine.results.whatif import ERROR_GATE, HIGHEST_COST, Fix, StepPrice, WhatifResult
from kair_tui.render.delays import lack_of_cores_in_words, stops_in_words, ticks_in_words
from kair_tui.render.mitigate import replayed_columns, savings_in_words
from kair_tui.render.triage import fix_option, gain_in_words, title
from kair_tui.render.units import count, duration, percent, percent_in_legend, plural, slowdown, spans
from kair_tui.render.verdict import money_text
from kair_tui.render.warnings import warnings_in_words
from kair_tui.render.whatif import absorbed_lines, darker_from, simulation_in_words, sorts_of
from kair_tui.tui.filtering import Filter
from kair_tui.tui.fix_selection import in_words, priced_by_triage
from kair_tui.tui.frame.view import ViewScreen
from kair_tui.tui.session import Place, Session
from kair_tui.tui.widgets.bars import PriceBars, StepBars, prices_of
from kair_tui.tui.widgets.fix_list import FixList, ListedFix, as_arguments, in_order, typed_fix
from kair_tui.tui.widgets.grid import COSTS as COST_LIMITS
from kair_tui.tui.widgets.grid import WorkerHeat
from kair_tui.tui.widgets.grid_layout import by_host, by_position, position_words
from kair_tui.tui.widgets.lines import Heading, Paragraph, Paragraphs, level_legend
from kair_tui.tui.widgets.styles import styles_of
from kair_tui.tui.widgets.table import Table

_SHORT, _WIDE = 32, 150
"""Lines below which the parts share the space, and columns from which they stand side by side."""
_NOTABLE_STOPS = 0.001
"""Share of the step below which stopped threads are not mentioned."""
_HUNDREDTH = 0.01
_FIX_EXAMPLE = "rank=3+kind=compute"
_ADVISED = ("continuous", "continuous-deadline", "deterministic")
"""Policies whose savings are listed with the fixes."""


class WhatifScreen(ViewScreen):
    """The answer, the fixes, and their parts."""

    DEFAULT_CSS = """
    WhatifScreen #verdict { margin: 1 0; }
    WhatifScreen #step_bars { margin-bottom: 1; }
    WhatifScreen #parts { height: 1fr; layout: vertical; }
    WhatifScreen #left { height: 1fr; min-height: 4; }
    WhatifScreen #right { height: auto; }
    WhatifScreen #fixes { height: 1fr; min-height: 3; margin-bottom: 1; }
    WhatifScreen #mitigation { height: 4; margin-bottom: 1; }
    WhatifScreen.-short #mitigation { display: none; }
    WhatifScreen #workers { margin-bottom: 1; }
    WhatifScreen #prices { max-height: 8; }
    WhatifScreen.-short #verdict { margin: 0; }
    WhatifScreen.-short #fixes, WhatifScreen.-short #workers { margin-bottom: 0; }
    WhatifScreen.-short #workers { max-height: 3; }
    WhatifScreen.-short #workers:focus { max-height: 6; }
    WhatifScreen.-short #prices { max-height: 3; }
    WhatifScreen.-short #prices:focus { max-height: 6; }
    WhatifScreen.-wide #parts { layout: horizontal; }
    WhatifScreen.-wide #left, WhatifScreen.-wide #right { width: 1fr; height: 1fr; }
    WhatifScreen.-wide #left { padding-right: 2; }
    WhatifScreen.-wide #prices { max-height: 100%; height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "app.focus_next", "next part"),
        Binding("plus,equals_sign", "add", "type a fix", key_display="+"),
        Binding("v", "regroup", "by kind, stage, host, rank"),
        Binding("b", "alone", "S_w or saved"),
        Binding("left_square_bracket", "step(-1)", "step before", key_display="[", show=False),
        Binding("right_square_bracket", "step(1)", "next step", key_display="]", show=False),
        Binding("dollar_sign", "cost", "what a GPU hour costs", key_display="$", show=False),
        Binding("backspace", "clear", "choose no fix", show=False),
    ]
    FIELDS = ("fix", "origin", "saved_us", "chosen")
    SORTS = ("saved", "fix")
    FIRST = "#fixes"
    SOON = frozenset({"triage"})

    def __init__(self, session: Session, place: Place) -> None:
        super().__init__(session, place)
        self._result: WhatifResult | None = None
        self._so_far: WhatifResult | None = None
        """What is known of the first result while the rest is replayed."""
        self._fixes = session.fixes
        """They stay chosen when the screen is left."""
        self._together: tuple[Fix, ...] = ()
        """The fixes whose joint price is queried: meanwhile others can be chosen."""
        self._cost_per_day: str | None = None
        self._absorbed: list[str] = []
        """The fixes that hosts absorb."""
        self._filter = Filter("", ())
        self._order: tuple[str, bool] | None = None
        self._at_step: int | None = None
        """Index of one of the analysis's steps; None for their mean."""
        self._sort_of_parts = 0
        self._alone = True
        """Whether workers show S_w, else their fix's saving."""
        self._workers: dict[int, Worker] = {}
        """The shown step's workers, with their fixes' savings."""
        self._slowdowns: dict[int, Worker] = {}
        """The same, with what each adds to an ideal job."""

    # Questions.

    def questions(self) -> Mapping[str, Question]:
        """Return the job's costs, triage's findings; then all fixes separately, and the chosen ones together."""
        questions = {"whatif": self.session.question("whatif"), "triage": self.session.question("triage")}
        # The fixes are known once both have answered.
        if self._result is not None and "triage" not in self.waiting and self._fixes.alone:
            questions["fixes"] = self._about(self._fixes.alone)
            questions["mitigation"] = self.session.question("mitigate", policy=_ADVISED)
        if self._together:
            questions["chosen"] = self._about(self._together)
        return questions

    def _about(self, fixes: Sequence[Fix]) -> Question:
        return self.session.question("whatif", **as_arguments(fixes), gpu_cost=self.session.gpu_cost)

    # The frame.

    def body(self) -> ComposeResult:
        """Yield the answer, the fixes, and their parts next to or below them."""
        look = self.look
        yield Paragraphs(look, id="verdict")
        yield StepBars(look, id="step_bars")
        with Container(id="parts"):
            with Vertical(id="left"):
                yield Heading(look, "fixes", of="fixes")
                yield FixList(look, id="fixes")
                yield Heading(look, "mitigation", of="mitigation")
                yield Table[SimulatedPolicy](look, (), id="mitigation")
            with Vertical(id="right"):
                yield Heading(look, "workers", of="workers")
                yield WorkerHeat(look)
                yield Heading(look, "prices", of="prices")
                yield PriceBars(look, id="prices")

    def room(self, size: Size) -> dict[str, bool]:
        """Return whether parts stand side by side because there is room."""
        return {**super().room(size), "-wide": size.width >= _WIDE, "-short": size.height < _SHORT}

    def show(self, name: str, result: Any) -> None:  # noqa: ANN401
        """Hand a result to its widgets."""
        if name == "whatif":
            self._result, self._so_far = result, None
            self._at_step = None
            self._fixes.about(result)
            said = [Paragraph(result.verdict, "strong")]
            if result.simulation_error > ERROR_GATE:
                said.append(Paragraph(simulation_in_words(result), "alarm"))
            self.query_one("#verdict", Paragraphs).show(*said)
            self._show_bars()
            self._show_parts()
        elif name == "triage":
            self._fixes.found(result.findings)
            self._show_known(result)
        elif name == "fixes":
            self._fixes.priced(self._fixes.alone, result.fixes)
            self._cost_per_day = None if result.cost_per_day is None else money_text(result)
            self._absorbed = absorbed_lines(result)
            self._show_bars()
        elif name == "mitigation":
            columns = replayed_columns(result.replay)
            self.query_one("#mitigation", Table).show(result.simulated, columns=columns)
            self.heading("mitigation").say([(savings_in_words(result.simulated, result.replay), None)])
        elif self._together == self._wanted():
            self.query_one(StepBars).choose(len(self._fixes.chosen), result.fixes[-1])
        self._list_fixes()
        self._go_on()

    def show_so_far(self, name: str, result: Any) -> None:  # noqa: ANN401
        """Show the step and the prices of parts as they are replayed; an older answer stays until all of it is new."""
        if name == "whatif" and self._result is None:
            self._so_far = result
            self._fixes.about(result)
            self._show_bars()
            self._show_parts()
            self._list_fixes()

    @property
    def _known(self) -> WhatifResult | None:
        return self._so_far if self._result is None else self._result

    def answered(self, name: str, question: Question, result: Any, error: BaseException | None) -> None:  # noqa: ANN401
        """Continue with the next possible questions."""
        super().answered(name, question, result, error)
        if error is not None:
            self._go_on()

    def _go_on(self) -> None:
        """Ask what follows from known answers, unless that was asked already."""
        if "chosen" not in self.waiting:
            self._together = self._wanted()
        if not self._together:
            self.shown.pop("chosen", None)
        if dict(self.questions()) != dict(self._asked):
            self.call_after_refresh(self.reask)

    def _wanted(self) -> tuple[Fix, ...]:
        return tuple(in_order(fix for fixes in self._fixes.chosen for fix in fixes))

    def _show_known(self, triage: TriageResult) -> None:
        """Show triage's known findings, with the prices of its replay, while all else is replayed."""
        if self._result is not None:
            return
        texts = [triage.summary, gain_in_words(triage)]
        said = [Paragraph(text, "strong") for text in texts if text]
        self.query_one("#verdict", Paragraphs).show(*said)
        self.query_one(StepBars).show_recorded(triage.step_time_us)
        if self._so_far is not None:
            return
        found = [
            ListedFix(f"{number} {title(finding)}", (), "", *priced_by_triage(finding))
            for number, finding in enumerate(triage.findings, 1)
        ]
        fixes = self.query_one(FixList)
        fixes.show_fixes(found, frozenset())
        about = "found by triage, at its prices:" if found else "being replayed"
        self.heading("fixes").say([(about, None)], [(fixes.titles, None)] if found else [])

    def _show_bars(self) -> None:
        if self._known is not None:
            self.query_one(StepBars).show(self._known, self._cost_per_day)

    # Fixes.

    def _list_fixes(self) -> None:
        result = self._known
        if result is None:
            return
        fixes = [fix for fix in self._fixes.listed() if self._filter.matches(self._fixes.fields(fix))]
        if self._order is not None:
            name, descending = self._order
            by = {"saved": lambda fix: -(fix.saved_us or 0.0), "fix": lambda fix: fix.text}[name]
            fixes.sort(key=by, reverse=descending)
        warnings = warnings_in_words(self.session.trace.job.warnings, result.warnings)
        notes = [*self._absorbed, *(f"warning: {warning.message}" for warning in warnings), *self._rests_on(result)]
        listed = [*fixes, *self._fixes.remedies(), *map(ListedFix, notes)]
        self.query_one(FixList).show_fixes(listed, frozenset(self._fixes.chosen))
        styles, glyphs = styles_of(self.look), self.look.glyphs
        chosen = f"{len(self._fixes.chosen)} chosen" if self._fixes.chosen else "none chosen"
        noted = [(f"  {glyphs.alarm} {plural(len(warnings), 'warning')}", styles.base)] if warnings else []
        titles = self.query_one(FixList).titles
        alone = "each alone" if self._so_far is None else "each alone, so far"
        self.heading("fixes").say([(f"{chosen}; {alone}:", None), *noted], [(titles, None)])
        if self.query_one(FixList).has_focus:
            self.describe_cursor()

    def _rests_on(self, result: WhatifResult) -> list[str]:
        stops = result.host_stops
        notable = stops is not None and stops.share_of_step >= _NOTABLE_STOPS
        stopped = [f"an average rank's threads stop {stops_in_words(vars(stops))}"] if notable else []
        if stops is not None and stops.cores is not None:
            stopped.append(f"measured: {lack_of_cores_in_words(stops.cores, result.step_time_us)}")
        if stops is not None and stops.tick_us is not None:
            stopped.append(ticks_in_words(stops.tick_us, stops.ticked_share))
        return [
            *stopped,
            *([] if result.simulation_error > ERROR_GATE else [f"simulation {simulation_in_words(result)}"]),
        ]

    def on_fix_list_toggled(self, message: FixList.Toggled) -> None:
        """Choose the fix, or drop it; the step's time follows."""
        self._fixes.toggle(message.fix.fixes)
        self._reprice()

    def _reprice(self) -> None:
        self.query_one(StepBars).choose(len(self._fixes.chosen), None)
        self._list_fixes()
        self._go_on()

    def action_clear(self) -> None:
        """Drop all chosen fixes."""
        self._fixes.chosen = ()
        self._reprice()

    async def action_add(self) -> None:
        """Ask for a fix."""
        await self.ask_for(f"a fix, like {_FIX_EXAMPLE}", self._add)

    def _add(self, text: str) -> None:
        if not text.strip():
            return
        try:
            fix = typed_fix(text)
        except KairError as error:
            self.say(str(error), alarm=True)
            return
        self.say(f"trying {fix_option(fix)} {self.look.glyphs.ellipsis}")
        ask = partial(self.session.ask, self._about([fix]), lambda: self.is_running)
        self.work_out(ask, partial(self._tried, fix), group="typed")

    def _tried(self, fix: Fix, _: Answer | None, error: Exception | None) -> None:
        """List a fix that fits the recording, and choose it."""
        if isinstance(error, KairError):
            self.say_error(error)
            return
        if error is not None:
            raise error
        self.say("")
        self._fixes.add(fix)
        self._reprice()

    async def action_cost(self) -> None:
        """Ask for the price of a GPU hour."""
        await self.ask_for("a GPU hour costs", self._price_in_money, value=f"{self.session.gpu_cost or ''}")

    def _price_in_money(self, text: str) -> None:
        try:
            cost = GpuCost.of(text) if text.strip() else None
        except UsageError as error:
            self.say(f"{error}: {error.hint}", alarm=True)
            return
        if cost is not None and cost > HIGHEST_COST:
            self.say(f"a GPU hour costs {HIGHEST_COST:,.0f} at most", alarm=True)
            return
        self.session.gpu_cost = cost
        self.reask()

    # Costs.

    def _show_parts(self) -> None:
        result = self._known
        if result is None:
            return
        step = self._step(result)
        job = self.session.trace.job
        found, alone = workers(result, step), workers_alone(result, step)
        self._workers = {one.rank: one for one in found}
        self._slowdowns = {one.rank: one for one in alone}
        ranks = self._workers or self._slowdowns
        groups = by_position(ranks, job.layout)
        aligned = bool(groups)
        groups = groups or by_host(ranks, job.hosts)
        heat = self.query_one(WorkerHeat)
        heat.alone = (self._alone or not found) and bool(alone)
        heat.limits = darker_from(1 + one.costs for one in alone) if heat.alone else COST_LIMITS
        heat.show(alone if heat.alone else found)
        heat.group(groups, aligned=aligned)
        if self.place.rank is not None:
            heat.move_to(self.place.rank)
        figures = map(_slowdown_in_legend if heat.alone else percent_in_legend, heat.limits)
        legend = level_legend(self.look, [*figures]) if found or alone else []
        about = "" if step is None else f"step {step.step}: S {slowdown(step.slowdown)}, "
        rows = f"by {position_words(groups)}" if aligned else "by host"
        shown = f"{about}{rows}" if found else f"{about}too many to price each"
        if self._so_far is not None:
            shown = f"{rows}; savings follow" if alone else "being replayed"
        what = [("S_w " if heat.alone else "costs ", None)] if legend else []
        self.heading("workers").say([(shown, None)], [*what, *legend])
        self._show_prices(result, step)
        self.describe_cursor()

    def _show_prices(self, result: WhatifResult, step: StepPrice | None) -> None:
        first, *others = sorts_of(result if step is None else step)
        sorts = [first, *(sort for sort in others if len(sort[2]) > 1)]
        title, label, of, alone = sorts[self._sort_of_parts % len(sorts)]
        now = (result.step_time_us, result.ideal_step_time_us) if step is None else (step.replayed_us, step.ideal_us)
        prices = prices_of(of, alone, label=label, step_us=now[0], ideal_us=now[1], least=MIN_COST)
        self.query_one(PriceBars).show_prices(prices)
        about = f"by {title}: what the fix of each saves, and S alone"
        if self._so_far is not None:
            about = f"by {title}: what the fix of each saves; the rest follows" if of else "being replayed"
        self.heading("prices").say([(about, None)])

    def _step(self, result: WhatifResult) -> StepPrice | None:
        return None if self._at_step is None else result.per_step[self._at_step]

    def action_regroup(self) -> None:
        """Show prices by the next sort of parts."""
        self._sort_of_parts += 1
        if self._known is not None:
            self._show_prices(self._known, self._step(self._known))
            self.describe_cursor()

    def action_alone(self) -> None:
        """Show workers with their fixes' savings, or with S_w again."""
        self._alone = not self._alone
        self._show_parts()

    def action_step(self, by: int) -> None:
        """Show workers and prices of the next step; before the first and after the last comes their mean."""
        if self._result is not None:
            places = [None, *range(len(self._result.per_step))]
            self._at_step = places[(places.index(self._at_step) + by) % len(places)]
            self._show_parts()

    # The cursor.

    @property
    def rank(self) -> int | None:
        """Return the first rank of the thing under the cursor, else the costliest one."""
        if isinstance(self.focused, FixList) and self.focused.chosen is not None and self.focused.chosen.ranks:
            return self.focused.chosen.ranks[0]
        if isinstance(self.focused, PriceBars) and self.focused.chosen is not None:
            priced = self.focused.chosen.rank
            if priced is not None:
                return priced
        return self.query_one(WorkerHeat).rank

    def follow(self, rank: int) -> None:
        """Move the cursor with the user."""
        self.query_one(WorkerHeat).move_to(rank)

    def about_cursor(self) -> str:
        """Describe the thing under the focused part's cursor."""
        if isinstance(self.focused, FixList):
            return self._about_fix(self.focused.chosen)
        if isinstance(self.focused, WorkerHeat):
            return self._about_worker(self.focused)
        if isinstance(self.focused, PriceBars) and (price := self.focused.chosen) is not None:
            costs = "" if price.costs_us is None else f": {duration(price.costs_us)} of a step ({percent(price.costs)})"
            return f"{price.part}{costs}"
        return self.described

    def _about_fix(self, fix: ListedFix | None) -> str:
        if fix is None or not fix.fixes:
            return "a remedy: it cannot be chosen as a fix" if fix is not None and fix.saved_us is not None else ""
        return in_words(fix.fixes)

    def _about_worker(self, heat: WorkerHeat) -> str:
        layout = self.session.trace.job.layout
        alone = self._slowdowns.get(heat.rank) if heat.rank is not None else None
        saved = self._workers.get(heat.rank) if heat.rank is not None else None
        row = saved or alone
        if row is None:
            return ""
        stages, dp_ranks = (layout.pipeline_stage, layout.dp_rank) if layout is not None else ({}, {})
        place = [f"pp {stages[row.rank]}"] if row.rank in stages else []
        place += [f"dp {dp_ranks[row.rank]}"] if row.rank in dp_ranks else []
        cell = f" (of {spans(heat.ranks)})" if len(heat.ranks) > 1 else ""
        at_most = "" if row.exact else "at most "
        return self.dotted(
            f"rank {row.rank}{cell}",
            self.session.trace.job.hosts.get(row.rank, ""),
            " ".join(place),
            "" if alone is None else f"S_w {'' if alone.exact else 'at most '}{1 + alone.costs:.3f}",
            "" if saved is None else f"costs {at_most}{duration(saved.costs_us)} a step ({percent(saved.costs)})",
        )

    def copied(self) -> str:
        """Return the verdict, the three bars, the thing under the cursor, and the commands."""
        verdict = [self._result.verdict] if self._result is not None else []
        fixes = self.query_one(FixList)
        about = [self._about_fix(fixes.chosen)] if fixes.has_focus else [self._about_worker(self.query_one(WorkerHeat))]
        return "\n".join([*verdict, *self.query_one(StepBars).lines, *filter(None, about), *self.commands()])

    # Filter and sort.

    def filter_by(self, wanted: Filter) -> str:
        """Keep the fixes that match."""
        self._filter = wanted
        self._list_fixes()
        listed = self._fixes.listed()
        kept = sum(wanted.matches(self._fixes.fields(fix)) for fix in listed)
        return f"{count(kept)} of {plural(len(listed), 'fix', 'fixes')}"

    def sort_by(self, name: str, descending: bool) -> None:
        """Sort by savings, or by text."""
        self._order = (name, descending)
        self._list_fixes()


def _slowdown_in_legend(limit: float) -> str:
    """Return the S_w at which a cell gets darker, with enough decimals to differ from 1."""
    return f"{1 + limit:.{2 if limit >= _HUNDREDTH else 3}f}"
