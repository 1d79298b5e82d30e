"""The base of every screen that shows results of the open job.

To write one, derive a class from `ViewScreen`, put it into the list in `kair_tui/tui/screen_registry.py`, and give it
- `questions()`: its questions by name: `{"triage": self.session.question("triage")}`. They are asked in a thread, in
  this order, and again whenever the chosen steps change or `self.reask()` is called. `o` prints them, `e` exports their
  answers and `R` records them;
- `body()`: its widgets, composed empty;
- `show(name, result)`: hands a result to the widgets, on the program's own thread;
- `show_so_far(name, result)`: does the same with what is known of a result while the rest is computed;
and where they make sense
- `rank`: the rank under the cursor, to which other screens go from here; `moment`: what `t` shows over time;
- `FIRST`: the part with the initial focus; `SOON`: the questions to ask before the others; `FIELDS` and `SORTS`: the
  fields of `/`, and the orders of `s`. Both act on the table `MAIN`, whose rows are called `ROWS`; orders in
  `LARGEST_FIRST` are descending. `filter_by` and `sort_by` serve other parts;
- `about_cursor()`: describes the row under the cursor; `make_room()`: adapts to the screen's size;
- `copied()`: the text that `y` copies; `about_waiting()`: the reason for a long wait; `offers(action)`: whether a key
  works now. Slow work that is no question runs through `work_out(work, then)`.
`self.place` is the subject the screen was opened for (`place.rank`, `place.operator`, `place.step`).

The base of screens with rows: a filter, an order, and parts under headings, of which the focused part's is highlighted.
"""

from collections.abc import Mapping, Sequence, Set
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.timer import Timer
from textual.worker import Worker, get_current_worker

from kair.app.question import Question
from kair_engine.cancelling import Cancelled
from kair_engine.errors import KairError
from kair_tui.render.units import count, plural
from kair_tui.render.written import Format
from kair_tui.tui.filtering import Filter, parse_filter
from kair_tui.tui.frame.screen import BaseScreen, Export
from kair_tui.tui.session import Place, Session
from kair_tui.tui.widgets.drawn import CursorMoved, RankOpened
from kair_tui.tui.widgets.lines import Heading
from kair_tui.tui.widgets.table import Table

if TYPE_CHECKING:
    from kair_tui.tui.figure_words import Figures

_LOOK_EVERY_S = 1.0


class FilteredScreen(BaseScreen):
    """Rows that can be filtered by FIELDS and sorted by SORTS; without them the keys are not offered."""

    FIELDS: ClassVar[tuple[str, ...]] = ()
    SORTS: ClassVar[tuple[str, ...]] = ()
    LARGEST_FIRST: ClassVar[frozenset[str]] = frozenset()
    """Those of SORTS that begin with the largest."""
    MAIN: ClassVar[str] = ""
    """The table that is filtered and sorted, as a selector; if empty, the FIRST part."""
    ROWS: ClassVar[str] = "row"
    """The name of its rows."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("s", "sort", "sort"),
        Binding("S", "reverse", "sort the other way", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.filter = ""
        """As typed."""
        self._typed = ""
        """The invalid text, to be corrected."""
        self._sort: tuple[str, bool] | None = None

    def heading(self, of: str) -> Heading:
        """Return the heading over the widget of that id; a hidden one while the screen is closing."""
        there = (heading for heading in self.query(Heading) if heading.of == of)
        return next(there, None) or Heading(self.look, "", of=of)

    @property
    def main(self) -> Table[Any]:
        """Return the table that is filtered and sorted."""
        return self.query_one(self.MAIN or self.FIRST, Table)

    def describe_cursor(self) -> None:
        """Describe the thing under the focused part's cursor in the status line."""
        self.describe(self.about_cursor())

    def about_cursor(self) -> str:
        """Return the description."""
        return ""

    @on(CursorMoved)
    def cursor_moved(self) -> None:
        """Describe the new row, unless the screen is closing."""
        if self.is_whole:
            self.describe_cursor()

    @on(RankOpened)
    def rank_opened(self, message: RankOpened) -> None:
        """Go to the rank's screen."""
        self.kair.go_to_rank(message.rank)

    def on_descendant_focus(self) -> None:
        """Highlight the heading of the focused part."""
        for heading in self.query(Heading):
            heading.light(self.focused is not None and heading.of == self.focused.id)
        self.describe_cursor()

    def filter_by(self, wanted: Filter) -> str:
        """Show rows that match, and return their number: `3 of 128 ranks`."""
        self.main.filter(wanted)
        self.describe_cursor()  # now, so that it does not replace the next message
        return f"{count(self.main.count)} of {plural(self.main.total, self.ROWS)}"

    def sort_by(self, name: str, descending: bool) -> None:
        """Order what it shows by one of SORTS."""
        self.main.sort(name, descending=descending != (name in self.LARGEST_FIRST))
        self.describe_cursor()

    def apply_filter_and_order(self) -> None:
        """Apply filter and order to new rows."""
        if self.filter:
            self._apply_filter(self.filter)
        if self._sort is not None:
            self.sort_by(*self._sort)

    def offers(self, action: str, of: str = "") -> bool:
        """Offer the filter if there are fields, and leaving it if there is one."""
        if action == "filter":
            return bool(self.FIELDS)
        if action in ("sort", "reverse"):
            return bool(self.SORTS)
        return (action == "back" and bool(self.filter)) or super().offers(action, of)

    async def action_filter(self) -> None:
        """Ask for a filter."""
        await self.ask_for("filter", self._apply_filter, value=self._typed)

    def action_back(self) -> None:
        """Remove a filter first, because it explains why few rows are shown."""
        if self.filter:
            self._apply_filter("")
        else:
            super().action_back()

    def _apply_filter(self, text: str) -> None:
        """Apply it; an invalid one removes the filter."""
        self._typed = text
        try:
            wanted, wrong = parse_filter(text, self.FIELDS), None
        except KairError as error:
            wanted, wrong = parse_filter("", self.FIELDS), error
        said = self.filter_by(wanted)
        self.filter = wanted.text.strip()
        if wrong is not None:
            self.say_error(wrong, before="no filter: ")
        else:
            self.say(f"{said} {self.look.glyphs.dot} filter {text}" if self.filter else "")
        self.show_header()
        self.refresh_bindings()

    def action_sort(self) -> None:
        """Sort by the next of SORTS."""
        at = -1 if self._sort is None else self.SORTS.index(self._sort[0])
        self._sort_by(self.SORTS[(at + 1) % len(self.SORTS)], False)

    def action_reverse(self) -> None:
        """Reverse the order."""
        name, descending = self._sort or (self.SORTS[0], False)
        self._sort_by(name, not descending)

    def _sort_by(self, name: str, descending: bool) -> None:
        self._sort = (name, descending)
        self.sort_by(name, descending)
        self.say(f"sorted by {name}" + (", reversed" if descending else ""))


class ViewScreen(FilteredScreen):
    """A screen made from answers to questions."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("A", "all_steps", "all steps again", show=False),
        Binding("C", "cancel", "cancel", show=False),
        Binding("C", "ask_again", "ask again"),
    ]

    SOON: ClassVar[frozenset[str]] = frozenset()
    """Names of questions that are asked before the others, as they are answered sooner."""

    def __init__(self, session: Session, place: Place) -> None:
        super().__init__()
        self.session = session
        self.place = place
        self.shown: dict[str, Question] = {}
        """The questions whose answers are on the screen."""
        self._asked: Mapping[str, Question] = {}
        self._said = ""
        """The message about them."""
        self.waiting: set[str] = set()
        """Questions without an answer yet."""
        self._looked_at: dict[str, Any] = {}
        """What is known of their results, as it was shown last."""
        self._cancelled: Mapping[str, Question] = {}
        """Cancelled questions, asked again only on request."""
        self._waits_since = self._waited_s = 0.0
        """When it was asked, and how long cancelled ones were waited for."""
        self._clock: Timer | None = None

    # What a screen defines.

    def questions(self) -> Mapping[str, Question]:
        """Return its questions, in the order in which answers are wanted."""
        raise NotImplementedError

    def show(self, name: str, result: Any) -> None:  # noqa: ANN401
        """Put the answer to the question of that name on the screen."""
        raise NotImplementedError

    def show_so_far(self, name: str, result: Any) -> None:  # noqa: ANN401
        """Show what is known of a result whose rest is being computed."""

    def about_waiting(self) -> str:
        """Return the known reason for a long wait."""
        return ""

    @property
    def rank(self) -> int | None:
        """Return its rank, or the one under its cursor."""
        return self.place.rank

    @property
    def moment(self) -> Place:
        """Return the centre of a timeline from here: the thing under its cursor."""
        return Place("timeline", rank=self.rank, operator=self.place.operator, step=self.place.step)

    @property
    def place_under_cursor(self) -> Place:
        """Return the subject of a bookmark or a note."""
        return self.place

    def figures(self) -> "Figures":
        """Return explanations of the figures of screens of its name."""
        from kair_tui.tui.figure_words import OF_SCREEN  # not for the first paint

        return OF_SCREEN.get(self.place.screen, ())

    # Questions and answers.

    @property
    def crumb(self) -> str:
        """`rank 3`, or the screen's name."""
        return self.place.screen if self.place.rank is None else f"{self.place.screen} {self.place.rank}"

    def commands(self) -> Sequence[str]:
        """Return one line for each question."""
        return [self.session.command(question) for question in self.questions().values()]

    def exports(self) -> Sequence[Export]:
        """Return its answers."""
        return [
            Export(name, question.command, self.session.command(question), partial(self._written, question))
            for name, question in self.shown.items()
        ]

    def _written(self, question: Question, form: Format) -> str:
        return self.session.written(question, form, ascii_only=self.look.ascii_only)

    def on_mount(self) -> None:
        """Ask its questions."""
        self.call_after_refresh(self.reask)

    def on_screen_resume(self) -> None:
        """Ask again if the steps were changed on another screen."""
        if self._asked:
            self.reask()

    def on_choices_chosen(self) -> None:
        """Do the action of enter."""
        self.open_rank()

    def open_rank(self) -> None:
        """Go to the screen of the rank under the cursor."""
        if self.rank is not None:
            self.kair.go_to_rank(self.rank)

    def reask(self) -> None:
        """Ask changed questions. Known answers are shown at once, others as they arrive."""
        if not self.is_whole:
            return  # The screen was left, or is not built yet and will ask by itself.
        wanted = dict(self.questions())
        if wanted == self._asked and self.waiting:
            return
        self._asked = wanted
        answers = {name: self.session.known(question) for name, question in wanted.items()}
        known = {name: answer for name, answer in answers.items() if answer is not None}
        self._keep_cancelled({*known})
        open_questions = [
            name
            for name, question in wanted.items()
            if self.shown.get(name) != question and name not in self._cancelled
        ]
        for name in open_questions:
            self.record(self.session.command(wanted[name]))
        unknown = [name for name in open_questions if name not in known]
        for name in open_questions:
            if name in known:
                self._show(name, wanted[name], known[name].result)
        self.waiting = set(unknown)
        self._looked_at = {}
        self._waits_since = monotonic()
        self.complain(None)
        self._show_so_far()
        self._say_waiting()
        self.show_header()
        if unknown:
            unknown.sort(key=lambda name: name not in self.SOON)
            work = partial(self._ask, [(name, wanted[name]) for name in unknown])
            self.kair.in_thread(self, work, group="questions")

    def renewed(self) -> None:
        """Ask everything again after the job was re-read, now or when the screen is in front."""
        self.shown.clear()
        self.waiting, self._cancelled = set(), {}
        if self.is_current and self.is_whole:
            self.reask()

    def _ask(self, wanted: Sequence[tuple[str, Question]]) -> None:
        """Ask in a thread. A question that is no longer wanted is not asked, or no longer computed."""
        worker: Worker[Any] = get_current_worker()
        for name, question in wanted:
            if worker.is_cancelled:
                return
            result, error = None, None
            try:
                result = self.session.ask(question, partial(self._waits_for, name, question)).result
            except Cancelled:
                continue
            except Exception as caught:
                error = caught
            self.call_later(self.answered, name, question, result, error)

    def _waits_for(self, name: str, question: Question) -> bool:
        """Return whether an answer is wanted; its worker may have been replaced while the question stays."""
        return name in self.waiting and self._asked.get(name) == question and self.is_running

    def answered(self, name: str, question: Question, result: Any, error: BaseException | None) -> None:  # noqa: ANN401
        """Show an answer that is still wanted, or the error."""
        if self._asked.get(name) != question or not self.is_whole:
            return
        self.waiting.discard(name)
        self._keep_cancelled({name})
        self._say_waiting()
        if error is not None:
            self.complain(error)
        else:
            self._show(name, question, result)

    def _show(self, name: str, question: Question, result: Any) -> None:  # noqa: ANN401
        self.shown[name] = question
        self.show(name, result)
        self.apply_filter_and_order()

    def _say_waiting(self) -> None:
        """Show what is waited for, unless there is a newer message."""
        before, self._said = self._said, self._about_waiting_now()
        if self._said:
            self.say(self._said)
        elif before and self.said == before:
            self.say("")
        if self.waiting:
            self._clock = self._clock or self.set_interval(_LOOK_EVERY_S, self._look)
        elif self._clock is not None:
            self._clock.stop()
            self._clock = None

    def _about_waiting_now(self) -> str:
        """Return what is waited for and for how long, or what no longer is; empty without either."""
        names = [name for name in self._asked if name in (self.waiting or self._cancelled)]
        commands = f"kair {', '.join(dict.fromkeys(self._asked[name].command for name in names))}"
        if not self.waiting:
            return f"cancelled {commands} after {int(self._waited_s)} s: C asks again" if names else ""
        seconds = int(monotonic() - self._waits_since)
        cancel = f" {seconds} s {self.look.glyphs.dot} C cancels" if seconds >= 1 else ""
        far = next((far for name in names if (far := self.session.how_far.get(self._asked[name]))), "")
        about = f": {far}" if far else self.about_waiting()
        return f"asking {commands}{about} {self.look.glyphs.ellipsis}{cancel}"

    def _look(self) -> None:
        """Show what is known by now, and update the time unless there is a newer message."""
        if self.waiting and self.is_whole and self.is_current:
            is_newest = self.said == self._said
            self._show_so_far()  # which describes the cursor
            if is_newest:
                self._say_waiting()

    def _show_so_far(self) -> None:
        for name in [name for name in self._asked if name in self.waiting]:
            known = self.session.so_far.get(self._asked[name])
            if known is not None and known is not self._looked_at.get(name):
                self._looked_at[name] = known
                self.show_so_far(name, known)

    # Waiting can be cancelled.

    def offers(self, action: str, of: str = "") -> bool:
        """Offer to cancel waiting, or to ask again."""
        if action == "cancel":
            return bool(self.waiting)
        if action == "ask_again":
            return bool(self._cancelled) and not self.waiting
        return super().offers(action, of)

    def _keep_cancelled(self, answered: Set[str]) -> None:
        """Keep those that the screen would still ask, and that have no answer."""
        before = self._cancelled
        self._cancelled = {
            name: question
            for name, question in before.items()
            if self._asked.get(name) == question and name not in answered
        }
        if before != self._cancelled:
            self.refresh_bindings()

    def action_cancel(self) -> None:
        """Cancel unanswered questions, also those asked ahead, which may be the same."""
        self.workers.cancel_group(self, "questions")
        self.workers.cancel_group(self.app, "ahead")
        self._cancelled = {name: self._asked[name] for name in self.waiting}
        self._waited_s = monotonic() - self._waits_since
        self.waiting = set()
        self._say_waiting()
        self.refresh_bindings()

    def action_ask_again(self) -> None:
        """Ask the cancelled questions."""
        self._cancelled = {}
        self.reask()
        self.refresh_bindings()

    # Steps.

    def action_all_steps(self) -> None:
        """Ask about all steps again."""
        self.narrow(None)

    def narrow(self, steps: tuple[int, ...] | None) -> None:
        """Make every screen about these steps."""
        try:
            self.session.narrow(steps)
        except KairError as error:
            self.say(str(error), alarm=True)
            return
        self.reask()
