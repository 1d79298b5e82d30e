"""The palette of ctrl+p: screens, commands and bookmarks, found by typing a part of their name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input

from kair_tui.cli.registry import COMMANDS, Entry
from kair_tui.render.answer import Note
from kair_tui.tui.bookmarks import Bookmark
from kair_tui.tui.frame.command_line import ask_command, run_command
from kair_tui.tui.frame.completing import beginning
from kair_tui.tui.frame.output import OutputScreen
from kair_tui.tui.frame.screen import BaseScreen
from kair_tui.tui.screen_registry import SCREENS
from kair_tui.tui.session import Place
from kair_tui.tui.widgets.lists.select_list import Choices, Lines
from kair_tui.tui.widgets.styles import styles_of

_NAME_WIDTH = 26


@dataclass(frozen=True)
class Choice:
    """Something to do, with a name and what it is."""

    name: str
    about: str
    do: Callable[[], object]


class ChoiceLine(Input):
    """Where one types; its arrow keys move the cursor of the list."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "choose"),
        Binding("down", "screen.move(1)", "next", key_display="up/down"),
        Binding("up", "screen.move(-1)", "previous", show=False),
    ]


class ChoiceScreen(BaseScreen):
    """Choices to pick one of, narrowed by what is typed."""

    DEFAULT_CSS = """
    ChoiceScreen Input { border: none; height: 1; padding: 0; margin: 1 1; }
    ChoiceScreen Input { background: $background; color: $foreground; }
    ChoiceScreen Input > .input--cursor { text-style: reverse; background: $background; color: $foreground; }
    ChoiceScreen Input > .input--placeholder { text-style: dim; color: $foreground; }
    """

    def __init__(self, title: str, choices: Sequence[Choice]) -> None:
        super().__init__()
        self._title = title
        self._all = choices

    @property
    def crumb(self) -> str:
        """What is chosen."""
        return self._title

    def body(self) -> ComposeResult:
        """A line to type into, and what is left."""
        line = ChoiceLine(placeholder="type to narrow, enter to choose", compact=True)
        line.cursor_blink = False
        yield line
        yield Choices[Choice](self.look, self._draw, lit=True)

    def on_mount(self) -> None:
        """Everything, before something is typed."""
        super().on_mount()
        self.query_one(Choices).show(self._all)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        """Keys are typed here; only these still do something."""
        return action in ("back", "move")

    def on_input_changed(self, event: Input.Changed) -> None:
        """Keeps what has every word that was typed."""
        words = event.value.lower().split()
        kept = [one for one in self._all if all(word in f"{one.name} {one.about}".lower() for word in words)]
        self.query_one(Choices).show(kept)

    def on_input_submitted(self) -> None:
        """Does what the cursor is on."""
        self._take()

    def on_choices_chosen(self) -> None:
        """The same with the mouse."""
        self._take()

    def action_move(self, by: int) -> None:
        """The cursor of the list, while the keyboard stays with the line."""
        self.query_one(Choices).action_move(by)

    def _take(self) -> None:
        chosen = self.query_one(Choices).chosen
        # Enter, twice in a row, chooses once: the second finds the list closed.
        if isinstance(chosen, Choice) and self.is_current:
            self.app.pop_screen()
            chosen.do()

    def _draw(self, choice: Choice, width: int) -> Lines:  # noqa: ARG002
        styles = styles_of(self.look)
        return [[(f" {choice.name:<{_NAME_WIDTH}} ", styles.strong), (choice.about, styles.dim)]]


async def show_choices(screen: BaseScreen, title: str, choices: Sequence[Choice]) -> None:
    """Opens a list over `screen`; what is typed ahead narrows it."""
    over = ChoiceScreen(title, choices)
    await screen.app.push_screen(over)
    if over.is_whole:  # and not closed again before it was made
        over.set_focus(over.query_one(Input))


async def show_palette(screen: BaseScreen) -> None:
    """Opens it over `screen`."""
    kair, session = screen.kair, screen.kair.session
    screens = [
        Choice(f"{entry.key}  {entry.name}", entry.title, partial(kair.go_to_screen, entry.name))
        for entry in SCREENS
        if session is not None or not entry.needs_job
    ]
    bookmarks = session.bookmarks.all() if session is not None else ()
    notes = session.notes.all() if session is not None else ()
    news = kair.job_watch.news
    marks = [Choice(f"m  {mark.title}", "bookmark", partial(_go_to, screen, mark)) for mark in bookmarks]
    commands = [
        Choice(f":  {entry.name}", entry.summary, partial(_run, screen, entry)) for entry in COMMANDS if entry.is_single
    ]
    marks += [Choice(f"N  {note.text}", f"note on {note.about}", partial(_go_to, screen, note)) for note in notes]
    if news:
        seen = "what was different when the job was read again"
        screens.append(Choice("f  changes", seen, partial(_show_news, screen, news)))
    answers = [Choice(f"a  {line}", "what it answered", partial(_look_at, screen, line)) for line in kair.answers]
    await show_choices(screen, "choose", [*answers, *screens, *marks, *commands])


def _run(screen: BaseScreen, entry: Entry) -> None:
    """Runs a command; one that has to be told something is typed to the end first."""
    begun = beginning(entry, getattr(screen, "rank", None))
    if begun is None:
        run_command(screen, entry.name)
    else:
        screen.call_after_refresh(partial(ask_command, screen, begun))


def _look_at(screen: BaseScreen, line: str) -> None:
    screen.app.push_screen(screen.kair.answers.pop(line)())


def _show_news(screen: BaseScreen, news: Sequence[str]) -> None:
    screen.app.push_screen(OutputScreen.of_text(screen, "changes", "\n".join(news)))


def _go_to(screen: BaseScreen, mark: Bookmark | Note) -> None:
    session = screen.kair.session
    assert session is not None
    session.narrow(mark.steps)
    screen.kair.go(Place(mark.screen, mark.rank, mark.operator, mark.step, mark.at_us))
