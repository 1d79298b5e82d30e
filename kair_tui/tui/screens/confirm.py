"""The screen of `kair confirm`: results of delays so far, and the keys that begin and end them."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Size

from kair.app.answers.confirm import NobodyDelayedError
from kair.app.places import capture_places, store_root
from kair.app.question import Question
from kair.app.stores import OpenStore
from kair_engine.errors import KairError
from kair_engine.results.confirm import ConfirmRun
from kair_tui.commands.confirm import ask_coordinator, stopped
from kair_tui.render.confirm import Tested, cost, how, marks, plot_width, remarks, sentence, tested, tested_columns
from kair_tui.render.units import count, duration, plural
from kair_tui.tui.frame.screen import Export
from kair_tui.tui.frame.view import ViewScreen
from kair_tui.tui.question import line_of
from kair_tui.tui.widgets.header_and_footer import StatusLine
from kair_tui.tui.widgets.lines import Heading, Paragraph, Paragraphs
from kair_tui.tui.widgets.table import Table

_Values = Mapping[str, str]
"""Questions to the coordinator, and its answers."""
_LOOK_S: Final = 1.0
_MOMENT_S: Final = 0.05
_LOW: Final = 30
"""Lines below which the parts stand close together."""
_MARGIN: Final = 3
"""Columns of the table's pointer and scroll bar."""
_HOW_TO_BEGIN = (
    "Short delays prove who holds up a job that runs: a rank, and in other steps all others, are delayed by 1 to 5 % of"
    " a step, and the step grows or does not. b begins; it shows what that can cost, and asks, before any rank is"
    " delayed.",
    "Delays have to be allowed: kair coordinator --allow-delays, or KAIR_CAPTURE_DELAYS=1 of the job.",
)


class Rows(Table[Tested]):
    """A row for each rank or group that was delayed, and for each dose of a sweep."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "choose", "open rank")]


class ConfirmScreen(ViewScreen):
    """What `kair confirm --last` shows, live."""

    DEFAULT_CSS = """
    ConfirmScreen #about { margin: 1 0; }
    ConfirmScreen #rows { height: auto; min-height: 4; max-height: 60%; }
    ConfirmScreen #marks { margin-bottom: 1; }
    ConfirmScreen.-low #about, ConfirmScreen.-low #marks { margin: 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("X", "end", "stop the delays"),
        Binding("b", "begin", "begin"),
    ]
    FIRST = "#rows"

    _run: ConfirmRun | None = None
    _rows: Sequence[Tested] = ()
    _is_looking = False
    _refusal = ""
    """Why the coordinator refused the last order; it stays, because a growing job has its own messages."""
    _described = -1
    """The last described row."""

    def questions(self) -> Mapping[str, Question]:
        """Return the last record of delays of the job, whatever steps are chosen."""
        return {"confirm": Question.of("confirm")}

    def exports(self) -> Sequence[Export]:
        """Return the record, once ranks were delayed."""
        return super().exports() if self._run is not None else []

    def body(self) -> ComposeResult:
        """Yield known facts, a forest plot, and further sentences."""
        yield Paragraphs(self.look, id="about")
        yield Heading(self.look, "delays", of="rows")
        yield Rows(self.look, (), id="rows")
        yield Paragraphs(self.look, id="marks")
        yield Paragraphs(self.look, id="remarks")

    def on_mount(self) -> None:
        """Poll while it is in front: the record is rewritten while ranks are delayed."""
        self.set_interval(_LOOK_S, self._look)

    def room(self, size: Size) -> dict[str, bool]:
        """Return whether parts stand close together because there are few lines."""
        return {**super().room(size), "-low": size.height < _LOW}

    # What is known.

    def _look(self) -> None:
        if self.is_current and self.is_whole and self.shown and not (self._is_looking or self.waiting):
            self._is_looking = True
            self.work_out(partial(self.session.ask, Question.of("confirm")), self._looked, group="look")

    def _looked(self, answer: Any, error: Exception | None) -> None:  # noqa: ANN401
        self._is_looking = False
        if error is None and answer.result != self._run:
            before = self._run
            self.show("confirm", answer.result)
            if before is not None and before.state == "running" and answer.result.state == "over":
                self.say("the delays are over", alarm=True)
        elif error is not None and not isinstance(error, NobodyDelayedError):
            self.complain(error)

    def answered(self, name: str, question: Question, result: Any, error: BaseException | None) -> None:  # noqa: ANN401
        """Show the record; that nobody was delayed yet is no error here."""
        super().answered(name, question, result, None if isinstance(error, NobodyDelayedError) else error)

    def show(self, name: str, result: Any) -> None:  # noqa: ANN401, ARG002 - there is one question
        """Hand the record to its widgets, or show how to begin without one."""
        self._run = run = result
        about, rows = self.query_one("#about", Paragraphs), self.query_one(Rows)
        self._rows = () if run is None else tested(run)
        refused = [Paragraph(self._refusal, "alarm")] if self._refusal else []
        for part in (self.heading("rows"), rows):
            part.display = bool(self._rows)
        if run is None:
            nobody = Paragraph(f"no rank of {self.session.name} was ever delayed", "strong")
            about.show(*refused, nobody, *map(Paragraph, _HOW_TO_BEGIN))
        else:
            style = "alarm" if run.verdict == "confirmed" else "strong"
            about.show(*refused, Paragraph(sentence(run), style), Paragraph(how(run)), Paragraph(cost(run)))
            self.query_one("#marks", Paragraphs).show(Paragraph(marks(run, self._rows, self.look.glyphs), "dim"))
            self.query_one("#remarks", Paragraphs).show(*map(Paragraph, remarks(run)))
            self.heading("rows").say([(f"{self._state(run)}", None)])
        self.make_room()
        self.refresh_bindings()
        if self._rows and self.focused is None:  # a hidden widget loses the keyboard
            rows.focus()

    def make_room(self) -> None:
        """Give the plot the available width; the cursor stays on its row."""
        if self._run is None:
            return
        table = self.query_one(Rows)
        at, width = table.at, plot_width(self._rows, self.size.width - _MARGIN)
        table.show(self._rows, columns=tested_columns(self._run, self._rows, width, self.look.glyphs))
        table.move_to(min(at, max(len(self._rows) - 1, 0)))

    @staticmethod
    def _state(run: ConfirmRun) -> str:
        """Return whether delays go on, and when that was known."""
        at = f"{run.at[11:19]} UTC" if run.at else ""
        words = {"running": "delays go on", "over": "over", "unheard": "the coordinator is gone"}
        return ", ".join(filter(None, (words[run.state], at)))

    # The cursor.

    @property
    def rank(self) -> int | None:
        """Return the rank under the cursor."""
        row = self.query_one(Rows).chosen
        return None if row is None else row.rank

    def on_table_chosen(self) -> None:
        """Go to the rank."""
        self.open_rank()

    def describe_cursor(self) -> None:
        """Describe the row; new figures of the same row keep a message."""
        at = self.query_one(Rows).at
        if at != self._described or not self.query_one(StatusLine).is_message:
            self._described = at
            super().describe_cursor()

    def about_cursor(self) -> str:
        """Return all figures of the row, also those that do not fit into the table."""
        row = self.query_one(Rows).chosen
        if row is None:
            return ""
        change = row.change if isinstance(row.change, str) else row.change.text
        slack = f"slack {row.slack}" if row.slack not in ("–", "(control)") else ""
        by = f"{plural(row.n, 'step')} by {duration(row.estimate.dose_us)}"
        return self.dotted(row.who, by, f"a step {change}", slack)

    # Orders.

    def _asking(self, do: str, asked: _Values) -> Callable[[], _Values]:
        return partial(ask_coordinator, capture_places(str(self.session.trace.job.stored_in)), do, asked)

    def offers(self, action: str, of: str = "") -> bool:
        """Offer the end of running delays, else their begin."""
        is_on = self._run is not None and self._run.state == "running"
        if action in ("begin", "end"):
            return self.session.trace.job.stored_in is not None and is_on == (action == "end")
        return (action != "export" or self._run is not None) and super().offers(action, of)

    def action_end(self) -> None:
        """End the delays at once."""
        store, places = OpenStore(store_root(self.session.store)), capture_places(str(self.session.trace.job.stored_in))
        self.work_out(partial(stopped, store, places), self._ended, group="order")

    def _ended(self, run: ConfirmRun | None, error: Exception | None) -> None:
        if error is not None:
            self._refused(error)
            return
        self._record(stop=True)
        self.show("confirm", run)
        self.say("the delays are taken back: no rank is delayed any more")

    async def action_begin(self) -> None:
        """Ask whom to accuse, then the coordinator for its terms; nothing is done without a yes."""
        await self.ask_for("whom: 5, or 5 worth, or all; nothing for the slowest", self._plan)

    def _plan(self, typed: str) -> None:
        self._say_refusal("")
        words = typed.split()
        asked = {"ranks": ",".join(one for one in words if one != "worth"), "worth": str(int("worth" in words))}
        self.work_out(self._asking("plan", asked), partial(self._planned, asked), group="order")

    async def _planned(self, asked: _Values, terms: _Values | None, error: Exception | None) -> None:
        if terms is None:
            self._refused(error)
            return
        if self.is_asking:  # the line before is being taken down
            self.set_timer(_MOMENT_S, partial(self._planned, asked, terms, error))
            return
        ranks = terms["ranks"]
        who = f"rank {ranks}" if ranks else "random halves"
        by, most = (duration(float(terms[name])) for name in ("dose_us", "most_us"))
        label = f"delay {who} by {by} for about {count(int(terms['needed']))} steps, at most {most} lost? y/n"

        def begin(typed: str) -> None:
            if typed.strip().lower() in ("y", "yes"):
                self.work_out(self._asking("start", asked), partial(self._begun, asked), group="order")
            else:
                self.say("nothing was done")

        await self.ask_for(label, begin)

    def _begun(self, asked: _Values, _: _Values | None, error: Exception | None) -> None:
        if error is not None:
            self._refused(error)
            return
        ranks = asked["ranks"]
        self._record(rank=ranks if ranks != "all" else None, everybody=ranks == "all", worth=asked["worth"] == "1")
        self.say("begun: X takes the delays back, and leaving this screen does not")
        self._look()

    def _record(self, **how: Any) -> None:  # noqa: ANN401
        question = Question.of("confirm", job=self.session.source.name, **how)
        self.record(line_of(question, "", self.session.store))

    def _refused(self, error: Exception | None) -> None:
        if isinstance(error, KairError):
            self._say_refusal(f"{error} ({error.hint})" if error.hint else str(error))
        else:
            self.complain(error)

    def _say_refusal(self, text: str) -> None:
        if text != self._refusal:
            self._refusal = text
            self.show("confirm", self._run)
