"""The screen of a job under `kair mitigate`: sizes, proposals to decide, progress of the data, and plans.

It polls every few seconds, in a thread, while it is in front.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Final, Literal

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Size

from kair.app.places import store_root
from kair.app.question import Question
from kair.app.stores import OpenStore
from kair_engine.errors import KairError
from kair_engine.results.mitigate import MitigateResult, RankRate
from kair_engine.results.store import ListedJob
from kair_tui.commands.mitigate_status import NotMitigatedError, rates
from kair_tui.render.answer import Document, PageOptions
from kair_tui.render.mitigate import PLANS, PROPOSALS, VIEW, RankSizes, ranks_of, sizes_text, what
from kair_tui.render.units import count, plural
from kair_tui.render.written import Format, written
from kair_tui.tui.frame.screen import Export
from kair_tui.tui.frame.view import FilteredScreen
from kair_tui.tui.question import line_of
from kair_tui.tui.screens.mitigation_asking import Looked, looked, ordered
from kair_tui.tui.screens.mitigation_lines import evidence_lines, how_to_begin, shares, standing
from kair_tui.tui.screens.mitigation_tables import (
    JobTable,
    Plans,
    Proposals,
    Ranks,
    Row,
    begins_of,
    end_of,
    rank_columns,
    strip,
)
from kair_tui.tui.session import Place
from kair_tui.tui.widgets.header_and_footer import StatusLine
from kair_tui.tui.widgets.lines import Heading, Paragraph, Paragraphs
from kair_tui.tui.widgets.shares import SharesLine
from kair_tui.tui.widgets.table import Table

_LOOK_S: Final = 2.0
_REST: Final = 10
"""The cost per sample is queried again after this many times as long as the query took."""
_LOW: Final = 32
"""Lines below which the parts share the space."""
_NO_SIZES: Final = "the job has not said yet how many ranks it has"


class MitigationScreen(FilteredScreen):
    """The results of `kair mitigate status` and `history`, and the keys to approve, deny and undo."""

    DEFAULT_CSS = """
    MitigationScreen #about { margin-bottom: 1; }
    MitigationScreen #evidence { max-height: 2; }
    MitigationScreen Table { margin-bottom: 1; }
    MitigationScreen #proposals { height: 2fr; min-height: 2; }
    MitigationScreen #ranks { height: 4fr; min-height: 2; }
    MitigationScreen #plans { height: 2fr; min-height: 2; margin-bottom: 0; }
    MitigationScreen.-low #about, MitigationScreen.-low Table { margin-bottom: 0; }
    MitigationScreen.-low #ranks { height: 3fr; }
    MitigationScreen.-low Table:focus { height: 8fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "app.focus_next", "next part"),
        Binding("u", "undo", "undo"),
        Binding("left_square_bracket", "job(-1)", "job before", key_display="[", show=False),
        Binding("right_square_bracket", "job(1)", "next job", key_display="]", show=False),
    ]
    FIELDS = ("rank", "samples", "differs", "us_per_sample", "fixed_us")
    SORTS = ("us_per_sample", "samples", "differs", "rank")
    LARGEST_FIRST = frozenset({"us_per_sample", "samples", "differs"})
    FIRST, MAIN, ROWS = "#proposals", "#ranks", "rank"
    of_job = False

    def __init__(self) -> None:
        super().__init__()
        self.place = Place("mitigation")
        self._job: str | None = None
        self._jobs: tuple[str, ...] = ()
        """The store's jobs under kair mitigate."""
        self._result: MitigateResult | None = None
        self._rows: list[RankSizes] = []
        self._listed: dict[str | None, Sequence[object]] = {}
        """The rows of each table."""
        self._rates: tuple[RankRate, ...] = ()
        self._is_looking = self._is_rating = False
        self._shown_at = self._not_rated_before = 0.0
        self._complaint = repr(None)
        self._described: tuple[str | None, int | None] = (None, None)
        """The last seen row under the cursor."""

    def body(self) -> ComposeResult:
        """Yield the data's progress, proposals, each rank's sizes, and plans."""
        look = self.look
        yield Paragraphs(look, id="about")
        yield SharesLine(look, id="epoch")
        yield SharesLine(look, id="shards")
        yield Heading(look, "proposals", of="proposals")
        yield Proposals(look, PROPOSALS, id="proposals")
        yield Paragraphs(look, id="evidence")
        yield Heading(look, "ranks", of="ranks")
        yield Ranks(look, rank_columns(self._strip), id="ranks")
        yield Heading(look, "plans", of="plans")
        yield Plans(look, PLANS, id="plans")

    def on_mount(self) -> None:
        """Poll once the screen is painted, and then regularly: the answer loads the engine."""
        self._job = self._wanted_job()
        self._set_out()
        about = f"looking at {self._job or 'the store'} {self.look.glyphs.ellipsis}"
        self.query_one("#about", Paragraphs).show(Paragraph(about, "dim"))
        self.call_after_refresh(self._look)
        self.set_interval(_LOOK_S, self._look_now_and_then)

    def on_screen_resume(self) -> None:
        """Refresh, because much may have been ordered meanwhile."""
        self._jobs = ()
        self._look_now_and_then()

    def make_room(self) -> None:
        """Give sizes over steps the available room."""
        self._list(Ranks, self._rows, again=True)

    def room(self, size: Size) -> dict[str, bool]:
        """Return whether parts stand close together because there are few lines."""
        return {**super().room(size), "-low": size.height < _LOW}

    # Polling.

    def _wanted_job(self) -> str | None:
        """Return the open job, the one under the cursor of the list of jobs, or the named one; None for the latest
        active one.
        """
        from kair_capture.settings import safe_name

        if self.kair.session is not None:
            return safe_name(self.kair.session.name)
        listed = getattr(self.kair.framed_screens[0], "chosen", None)
        if isinstance(listed, ListedJob):
            return listed.name
        named = self.kair.wanted.job or os.environ.get("KAIR_JOB")
        return safe_name(named) if named else None

    def _look_now_and_then(self) -> None:
        if not self.is_current:
            return
        self._look()
        if self._result is not None and not self._is_rating and time.monotonic() >= self._not_rated_before:
            self._rate()

    def _look(self) -> None:
        if not self._is_looking and self.is_whole:
            self._is_looking = True
            self.work_out(partial(looked, self._store, self._job, self._jobs), self._looked, group="look")

    def _rate(self) -> None:
        if self._job is not None:
            self._is_rating = True
            ask = partial(rates, OpenStore(store_root(self._store)), self._job)
            self.work_out(ask, partial(self._rated, self._job, time.monotonic()), group="rates")

    def _rated(self, job: str, began: float, of: tuple[RankRate, ...] | None, error: Exception | None) -> None:
        """Show the cost per sample, which is queried separately because it grows with the steps."""
        self._is_rating, self._not_rated_before = False, time.monotonic() + _REST * (time.monotonic() - began)
        if job != self._job or self._result is None:
            return
        if error is not None:
            self.say(str(error), alarm=True)
        elif of is not None and of != self._rates:
            self._rates = of
            self._take(replace(self._result, rates=of))

    def _looked(self, seen: Looked | None, _: Exception | None) -> None:
        """Show the state, unless it is outdated by another job or a later order."""
        assert seen is not None  # an error is part of it
        if not seen.done:
            self._is_looking = False
        if seen.at < self._shown_at or (self._job is not None and seen.job != self._job):
            return
        self._shown_at, self._job, self._jobs = seen.at, seen.job, seen.jobs
        if seen.job is None or isinstance(seen.error, NotMitigatedError):
            self._tell_how_to_begin()
        elif isinstance(seen.error, KairError) and seen.done:
            self.say_error(seen.error)
        elif seen.result is None:
            self._tell(seen.error)
        else:
            self._tell(None)
            is_first, result = self._result is None, replace(seen.result, rates=self._rates)
            if result != self._result:
                self._take(result)
            if is_first:
                self._look_now_and_then()
            if seen.done:
                self.say(seen.done)

    def _tell(self, error: BaseException | None) -> None:
        """Show news; earlier messages stay, and are not repeated."""
        if repr(error) == self._complaint:
            return
        self._complaint = repr(error)
        if error is not None and self._result is None:
            self.query_one("#about", Paragraphs).show()
        self.complain(error)

    def _take(self, result: MitigateResult) -> None:
        before, self._result = self._result, result
        self._rows = ranks_of(result)
        self._set_out()
        self._show_data(result)
        self._list(Proposals, result.proposals, "nothing is proposed")
        self._list(Ranks, self._rows, "no such rank" if self._rows else _NO_SIZES)
        self._list(Plans, result.history, "no plan was ordered")
        still_open = sum(row.decision == "open" for row in result.proposals)
        said = f"said at {result.said_at[11:19]} UTC " if result.said_at else ""
        attempt = f"attempt {result.attempt}, " if result.attempt else ""
        decided = f"{still_open} open of {count(len(result.proposals))}"
        self.heading("proposals").say([(decided, None)], [(f"{attempt}{said}", None)])
        self.heading("plans").say([(f"{count(len(result.history))} ordered", None)])
        self._show_evidence()
        self.describe_cursor()
        self.refresh_bindings()
        if before is None and self.focused is None:
            self.query_one(Proposals).focus()
        elif before is not None:
            known = {row.number for row in before.proposals}
            new = [row for row in result.proposals if row.number not in known and row.decision == "open"]
            for row in new[:1]:
                self.say(f"proposal {row.number}: {what(row)}", alarm=True)

    def _list(self, kind: type[JobTable[Row]], rows: Sequence[Row], empty: str = "", *, again: bool = False) -> None:
        """Replace rows that have changed."""
        table = self.query_one(kind)
        if rows != self._listed.get(table.id) or again:
            self._listed[table.id] = rows
            table.replace(rows, empty)

    def _show_data(self, result: MitigateResult) -> None:
        self.query_one("#about", Paragraphs).show(*standing(result, self.look))
        samples, shards = shares(result, self.look)
        self.query_one("#epoch", SharesLine).show(f"epoch {result.epoch}", samples)
        self.query_one("#shards", SharesLine).show("shards", shards)
        begins = begins_of(result)
        over = f"steps {count(begins[0])} to {count(end_of(result))}" if begins else ""
        most = f"{self.look.glyphs.bars[-1]} {plural(self._most, 'sample')} a step "
        self.heading("ranks").say([(over, None)], [(most, None)])

    def _tell_how_to_begin(self) -> None:
        """Show how to begin, for a job that is not under kair mitigate."""
        self._result, self._rows, self._rates = None, [], ()
        self._set_out()
        self.query_one("#about", Paragraphs).show(*how_to_begin(self._job, self._jobs))
        self._tell(None)
        self.describe("")
        self.refresh_bindings()

    def _set_out(self) -> None:
        """Show parts once they have content."""
        for part in (*self.query(Heading), *self.query(Table), self.query_one("#evidence", Paragraphs)):
            part.display = self._result is not None
        if self._result is None:
            for line in self.query(SharesLine):
                line.show("", ())

    @property
    def _most(self) -> int:
        return max((max(row.taken) for row in self._rows), default=0)

    def _strip(self, row: RankSizes) -> str:
        return strip(row, self._result, self._most, self.size.width, self.look.glyphs.bars)

    # The cursor.

    @property
    def rank(self) -> int | None:
        """Return the one under the cursor."""
        row = self.query_one(Ranks).chosen
        return None if row is None else row.rank

    def on_table_moved(self) -> None:
        """Show the evidence for the proposal under the cursor."""
        self._show_evidence()

    async def on_table_chosen(self, message: Table.Chosen) -> None:
        """Approve the proposal, or open the rank."""
        if isinstance(message.table, Proposals):
            await self.action_decide("approve")
        elif isinstance(message.table, Ranks) and self.rank is not None:
            if self.kair.session is None:
                self.say("no job is open that a rank could be shown of")
            else:
                self.kair.go_to_rank(self.rank)

    def _show_evidence(self) -> None:
        lines = evidence_lines(self.query_one(Proposals).chosen)
        self.query_one("#evidence", Paragraphs).show(*lines)

    def describe_cursor(self) -> None:
        """Describe the row under the focused part's cursor; an input line has no cursor.

        New data of the same row is no cursor move: a message, such as an order's outcome, stays.
        """
        table = self.focused
        if isinstance(table, JobTable):
            row = (table.id, None if table.chosen is None else table.number(table.chosen))
            before, self._described = self._described, row
            if before != row or not self.query_one(StatusLine).is_message:
                super().describe_cursor()

    def about_cursor(self) -> str:
        """Return the description of the row."""
        table = self.focused
        if not isinstance(table, JobTable) or table.chosen is None:
            return ""
        return self.dotted(*table.about(table.chosen, self._result))

    # Orders.

    async def action_decide(self, verb: Literal["approve", "deny"]) -> None:
        """Ask whether to carry out, or to deny, the proposal under the cursor."""
        row = self.query_one(Proposals).chosen
        if row is None:
            return
        if row.decision != "open":
            self.say(f"proposal {row.number} is {row.decision} already", alarm=True)
            return
        question = Question.of("mitigate", action=verb, named=self._job, number=str(row.number))
        done = "approved, and sent to the job" if verb == "approve" else "denied"
        do = partial(self._do, question, f"proposal {row.number} is {done}")
        await self._ask(f"{verb} {row.number}, {what(row)}? y/n", do)

    async def action_undo(self) -> None:
        """Ask whether to order the previous sizes again."""
        wanted = self._sizes_before()
        if wanted is None:
            return

        def undo() -> None:
            if self._sizes_before() != wanted:
                self.say("the sizes have changed meanwhile: look again", alarm=True)
            else:
                self._do(Question.of("mitigate", action="undo", named=self._job), "the sizes before are ordered")

        await self._ask(f"back to {sizes_text(wanted)}? y/n", undo)

    def _sizes_before(self) -> tuple[int, ...] | None:
        result = self._result
        if result is None or result.plan is None:
            return None
        now = result.plan.sizes
        return next((plan.sizes for plan in reversed(result.in_force) if plan.sizes != now), None)

    async def _ask(self, text: str, do: Callable[[], None]) -> None:
        """Ask first, because it changes a running job: nothing is done without a yes."""

        def answered(typed: str) -> None:
            if typed.strip().lower() in ("y", "yes"):
                do()
            else:
                self.say("nothing was done")

        await self.ask_for(text, answered)

    def _do(self, question: Question, done: str) -> None:
        record = partial(self.app.call_from_thread, self.record)
        order = partial(ordered, question, self._store, self._job, self._jobs, record=record, done=done)
        self.work_out(order, self._looked, group="order")

    def action_job(self, by: int) -> None:
        """Show another job under kair mitigate."""
        at = self._jobs.index(self._job) + by if self._job in self._jobs else min(by, 0)
        self._job, self._result, self._rates = self._jobs[at % len(self._jobs)], None, ()
        for table in self.query(Table):
            table.show(())
        self._listed.clear()
        self._look()

    # Leaving the screen.

    @property
    def _store(self) -> Path | None:
        return self.kair.wanted.store

    def commands(self) -> Sequence[str]:
        """Return `kair mitigate status` and `history`."""
        actions: tuple[str, ...] = ("status", "history") if self._job else ()
        return [line_of(Question.of("mitigate", action=one, named=self._job), "", self._store) for one in actions]

    def exports(self) -> Sequence[Export]:
        """Return all of it."""
        return () if self._result is None else [Export("mitigation", "mitigate", self.commands()[0], self._written)]

    def _written(self, form: Format) -> str:
        answer = Document("mitigate", self._result, None, ())
        return written(answer, VIEW, form, PageOptions(ascii_only=self.look.ascii_only))

    def copied(self) -> str:
        """Return the job's state, the thing under the cursor, and the commands."""
        said = [] if self._result is None else [VIEW.headline(self._result), self.about_cursor()]
        return "\n".join([*filter(None, said), *self.commands()])

    # Filter and sort.

    def offers(self, action: str, of: str = "") -> bool:
        """Offer actions that have a subject."""
        result = self._result
        offered = {
            "decide": result is not None and any(row.decision == "open" for row in result.proposals),
            "undo": self._sizes_before() is not None,
            "job": any(job != self._job for job in self._jobs),
            "filter": bool(self._rows),
            "sort": bool(self._rows),
            "reverse": bool(self._rows),
            "export": result is not None,
            "go_to_rank": self.kair.session is not None,
            "recording": self.kair.session is not None,
            "bookmark": False,
            "note": False,
        }
        return offered.get(action, True) and super().offers(action, of)
