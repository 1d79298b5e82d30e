"""The base of every screen that shows results of the open job.

To write one, derive a class from `ViewScreen`, put it into the list in `kair_tui/screens/__init__.py`, and give it
- `questions()`: what it asks, by names of its own: `{"triage": self.session.question("triage")}`. They are asked in a
  thread, in this order, each answer as soon as it is there; asked again whenever the chosen steps change or
  `self.reask()` is called; and they are what `o` prints, `e` exports and `R` records;
- `body()`: its widgets, composed empty;
- `show(name, result)`: hands a result to the widgets, on the program's own thread;
and where they make sense
- `rank`: the rank under the cursor, to which other screens go from here;
- `FIELDS` and `filter_by(filter)`: what `/` can name, and its effect; returns what to say of it;
- `SORTS` and `sort_by(name, descending)`: what `s` goes through, and its effect;
- `copied()`: what `y` copies.
`self.place` says what the screen was opened for (`place.rank`, `place.operator`, `place.step`).
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.worker import Worker, get_current_worker

from kair_engine.errors import KairError
from kair_tui.filtering import Filter, parse_filter
from kair_tui.question import Question
from kair_tui.screens.framed import FramedScreen
from kair_tui.session import Place, Session


class Answered(Message, bubble=False):
    """A question has its answer, or the error that came instead."""

    def __init__(self, name: str, question: Question, result: Any, error: BaseException | None) -> None:  # noqa: ANN401
        super().__init__()
        self.name, self.question, self.result, self.error = name, question, result, error


class ViewScreen(FramedScreen):
    """A screen made from answers to questions."""

    FIELDS: ClassVar[tuple[str, ...]] = ()
    SORTS: ClassVar[tuple[str, ...]] = ()
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("s", "sort", "sort"),
        Binding("S", "reverse", "sort the other way", show=False),
        Binding("A", "all_steps", "all steps again", show=False),
    ]

    def __init__(self, session: Session, place: Place) -> None:
        super().__init__()
        self.session = session
        self.place = place
        self.shown: dict[str, Question] = {}
        """The questions whose answers are on the screen."""
        self._asked: Mapping[str, Question] = {}
        self.waiting: set[str] = set()
        """The questions that have no answer yet."""
        self.filter = ""
        """As it was typed."""
        self._sort: tuple[str, bool] | None = None

    # What a screen writes.

    def questions(self) -> Mapping[str, Question]:
        """What it asks, in the order in which the answers are wanted."""
        raise NotImplementedError

    def show(self, name: str, result: Any) -> None:  # noqa: ANN401
        """Puts the answer to the question of that name on the screen."""
        raise NotImplementedError

    @property
    def rank(self) -> int | None:
        """The rank that it is about, or that is under its cursor."""
        return self.place.rank

    def filter_by(self, wanted: Filter) -> str:
        """Shows what `wanted` lets through, and returns how much that is: `3 of 128 ranks`."""
        raise NotImplementedError

    def sort_by(self, name: str, descending: bool) -> None:
        """Orders what it shows by one of SORTS."""
        raise NotImplementedError

    # Questions and answers.

    @property
    def crumb(self) -> str:
        """`rank 3`, or the screen's name."""
        return self.place.screen if self.place.rank is None else f"{self.place.screen} {self.place.rank}"

    def commands(self) -> Sequence[str]:
        """One line for each question."""
        return [self.session.command(question) for question in self.questions().values()]

    def on_mount(self) -> None:
        """Asks."""
        super().on_mount()
        self.call_after_refresh(self.reask)

    def on_screen_resume(self, event: events.ScreenResume) -> None:
        """Asks again if the steps were changed on another screen."""
        super().on_screen_resume(event)
        if self._asked:
            self.reask()

    def reask(self) -> None:
        """Asks what changed of the questions. What is known is shown at once, the rest when it is there."""
        wanted = dict(self.questions())
        if wanted == self._asked and self.waiting:
            return
        self._asked = wanted
        open_questions = [name for name, question in wanted.items() if self.shown.get(name) != question]
        for name in open_questions:
            self._record(wanted[name])
        unknown = [name for name in open_questions if self.session.known(wanted[name]) is None]
        for name in open_questions:
            if name not in unknown:
                self._show(name, wanted[name], self.session.known(wanted[name]))
        self.waiting = set(unknown)
        self.complain(None)
        self._say_waiting()
        self.show_header()
        if unknown:
            work = partial(self._ask, [(name, wanted[name]) for name in unknown])
            self.kair.in_thread(self, work, group="questions")

    def _ask(self, wanted: Sequence[tuple[str, Question]]) -> None:
        """In a thread. A question that nobody waits for any more is not asked."""
        worker: Worker[Any] = get_current_worker()
        for name, question in wanted:
            if worker.is_cancelled:
                return
            result, error = None, None
            try:
                result = self.session.ask(question)
            except Exception as caught:
                error = caught
            self.post_message(Answered(name, question, result, error))

    def on_answered(self, message: Answered) -> None:
        """Shows an answer that is still wanted."""
        if self._asked.get(message.name) != message.question:
            return
        self.waiting.discard(message.name)
        self._say_waiting()
        if message.error is not None:
            self.complain(message.error)
            return
        self._show(message.name, message.question, message.result)

    def _show(self, name: str, question: Question, result: Any) -> None:  # noqa: ANN401
        self.shown[name] = question
        self.show(name, result)
        if self.filter:
            self._apply_filter(self.filter)
        if self._sort is not None:
            self.sort_by(*self._sort)

    def _say_waiting(self) -> None:
        waiting = [self._asked[name].command for name in self._asked if name in self.waiting]
        self.say(f"asking kair {', '.join(dict.fromkeys(waiting))} {self.look.glyphs.ellipsis}" if waiting else "")

    def _record(self, question: Question) -> None:
        try:
            self.session.recorder.add(self.session.command(question))
        except OSError as error:
            self.say(f"cannot record: {error.strerror or error}", alarm=True)

    # Filter, sort, steps.

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys that have nothing to act on are not offered."""
        if action == "filter":
            return bool(self.FIELDS)
        if action in ("sort", "reverse"):
            return bool(self.SORTS)
        return super().check_action(action, parameters)

    async def action_filter(self) -> None:
        """Asks for a filter."""
        await self.ask_for("filter", self._apply_filter, value=self.filter)

    def _apply_filter(self, text: str) -> None:
        try:
            said = self.filter_by(parse_filter(text, self.FIELDS))
        except KairError as error:
            self.say(f"{error}" + (f" ({error.hint})" if error.hint else ""), alarm=True)
            return
        self.filter = text.strip()
        self.say(f"{said} {self.look.glyphs.dot} filter {text}" if self.filter else "")
        self.show_header()

    def action_sort(self) -> None:
        """By the next of SORTS."""
        at = -1 if self._sort is None else self.SORTS.index(self._sort[0])
        self._sort_by(self.SORTS[(at + 1) % len(self.SORTS)], False)

    def action_reverse(self) -> None:
        """The other way round."""
        name, descending = self._sort or (self.SORTS[0], False)
        self._sort_by(name, not descending)

    def _sort_by(self, name: str, descending: bool) -> None:
        self._sort = (name, descending)
        self.sort_by(name, descending)
        self.say(f"sorted by {name}" + (", reversed" if descending else ""))

    def action_all_steps(self) -> None:
        """Asks about all steps again."""
        self.narrow(None)

    def narrow(self, steps: tuple[int, ...] | None) -> None:
        """Makes every screen about these steps."""
        try:
            self.session.narrow(steps)
        except KairError as error:
            self.say(str(error), alarm=True)
            return
        self.reask()
