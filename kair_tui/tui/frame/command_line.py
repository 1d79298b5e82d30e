"""The command line of `:`: runs a `kair` command in place, about the open job.

Also completes an unfinished line (commands, options, and names in the open job), and has the palette of ctrl+p:
screens, commands and bookmarks, found by a part of their name.
"""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

import click
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input

from kair.app.notes import Bookmark
from kair.app.question import Note
from kair.app.step_choice import parse_steps
from kair_tui.cli.app import command
from kair_tui.cli.failures import ExitCode, explained
from kair_tui.cli.registry import COMMANDS, Entry
from kair_tui.render.answer import UNLIMITED, PageOptions
from kair_tui.tui.frame.output import OutputScreen
from kair_tui.tui.frame.screen import BaseScreen, Program
from kair_tui.tui.frame.view import ViewScreen
from kair_tui.tui.screen_registry import screens_of
from kair_tui.tui.session import Place
from kair_tui.tui.widgets.lines import Piece
from kair_tui.tui.widgets.lists import Choices

if TYPE_CHECKING:
    from textual.app import App

    from kair_tui.shell.session import ShellState


_SIDES = 3
"""Columns that the text page leaves free, including its scroll bar."""
_KEPT = 9
"""Late answers that are kept to be looked at."""


async def ask_command(screen: BaseScreen, begun: str = "") -> None:
    """Ask for the line, starting with `begun`."""

    def complete(line: str) -> str | None:
        kair = screen.kair
        if kair.session is not None:
            kair.shell_state.hold(kair.session, kair.session.steps)
        return completed(line, kair.worked, kair.shell_state, getattr(screen, "rank", None))

    await screen.ask_for(":", partial(run_command, screen), value=begun, complete=complete, history=screen.kair.typed)


def run_command(screen: BaseScreen, line: str) -> None:
    """Run the line in a thread; its output opens over the screen, an error is shown as one line."""
    said = line.strip().lstrip(":")
    if said in LEAVES:
        screen.action_quit_kair()
    elif said in HELPS:
        screen.call_later(screen.action_serve, "help")
    elif said:
        screen.kair.typed.append(said)
        screen.say(f"running kair {said.removeprefix('kair ')} {screen.look.glyphs.ellipsis}")
        # Not the screen's own work: it continues after the screen is closed, and must not use it then.
        shown = screen.look
        width = UNLIMITED if _is_ticket(said) else max(screen.size.width - _SIDES, 40)  # the screen draws a ticket
        look = PageOptions(width, ascii_only=shown.ascii_only, plain=shown.plain)
        work = partial(_run, screen.app, screen.kair, screen, said, look)
        screen.kair.in_thread(screen.app, work, group="command")


def _run(app: "App[object]", kair: Program, asked_on: BaseScreen, line: str, look: PageOptions) -> None:
    """Run the line, in the thread."""
    from kair_tui.shell.runner import run_line

    try:
        state, session = kair.shell_state, kair.session
        if session is not None:
            state.hold(session, session.steps)
        outcome = run_line(line, state)
        text = outcome.write(look)
    except Exception as error:
        app.call_from_thread(_complain, kair, error)
        return
    notes = "".join(f"{note}\n" for note in outcome.notes) if outcome.for_people else ""
    shown = f"{text}\n{notes}" if notes else text
    app.call_from_thread(_show, app, kair, asked_on, line, text=shown, command=outcome.command)


def _complain(kair: Program, error: Exception) -> None:
    text, hint, status = explained(error)
    if status == ExitCode.FAILED:
        kair.defects.append(error)
    kair.framed.say(f"kair: error: {text}" + (f" ({hint})" if hint else ""), alarm=True)


def _show(app: "App[object]", kair: Program, asked_on: BaseScreen, line: str, *, text: str, command: str) -> None:
    """Show output over the screen it was requested on; if the user has moved on, it waits and takes no key."""
    kair.worked.append(line)
    if not text:  # a name or a focus: there is nothing to read
        kair.framed.say(command)
        _narrow(kair)
        return
    title = line.removeprefix("kair ")
    kair.framed.record(command)

    def page() -> OutputScreen:
        make = OutputScreen.of_markdown if _is_ticket(line) else OutputScreen.of_text
        return make(kair.framed, title, text, (command,))

    if kair.framed is asked_on and not asked_on.is_typing:
        asked_on.say("")
        app.push_screen(page())
        return
    kair.answers[title] = page
    for oldest in [*kair.answers][:-_KEPT]:
        del kair.answers[oldest]
    kair.framed.say(f"kair {title} has answered: ctrl+p opens it")


def _is_ticket(line: str) -> bool:
    """Return whether a line prints Markdown; `--drain` prints commands, `-o` another format."""
    words = line.removeprefix("kair ").split()
    return words[:1] == ["ticket"] and not any(word.startswith(("--drain", "--json", "-o")) for word in words)


def show_ticket(screen: BaseScreen) -> None:
    """Open the ticket of the finding under the cursor, or the default one."""
    number = getattr(screen, "finding_number", None)
    run_command(screen, "ticket" if number is None else f"ticket --finding {number}")


def _narrow(kair: Program) -> None:
    """Narrow the screen to the steps that `use step` focused."""
    session, screen = kair.session, kair.framed
    if session is None or not isinstance(screen, ViewScreen):
        return
    chosen = session.chosen(parse_steps(kair.shell_state.steps))
    if chosen != session.steps:
        screen.narrow(chosen)


LEAVES: Final = ("q", "quit", "q!")
HELPS: Final = ("help", "h")
"""Words that are no commands but are understood."""


def completed(line: str, worked: Sequence[str], state: "ShellState", rank: int | None) -> str | None:
    """Return `line` with its last word completed, or an earlier line that worked; None without a match.

    `worked` are the answered lines, the last at the end; `rank` is the one under the cursor.
    """
    from kair_tui.shell.completer import offers

    if before := next((known for known in reversed(worked) if line and known.startswith(line) and known != line), None):
        return before
    *words, partial = line.split(" ")
    is_value = bool(words) and words[-1].startswith("-")
    if rank is not None and words[-1:] == ["--rank"] and str(rank).startswith(partial):
        return " ".join((*words, str(rank)))
    # An argument is offered once a part of it is typed, and no job is opened for the values of an option.
    if (state.source is None) if is_value else (words and not partial):
        return None
    whole = next((one for one in offers(line, state) if one.startswith(partial)), None)
    return None if whole is None or whole == partial else " ".join((*words, shlex.quote(whole)))


def beginning(entry: Entry, rank: int | None) -> str | None:
    """Return the begin of a command's line if it needs arguments.

    None if it needs none.
    """
    needed = [one for one in command(entry).params if one.required]
    if not needed:
        return None
    flags = [max(one.opts, key=len) for one in needed if isinstance(one, click.Option)]
    known = f" {rank}" if flags == ["--rank"] and rank is not None else " "
    return f"{entry.name} {flags[0]}{known}" if flags and len(needed) == 1 else f"{entry.name} "


_NAME_WIDTH = 26


@dataclass(frozen=True)
class Choice:
    """An action with its name and description."""

    name: str
    about: str
    do: Callable[[], object]


class ChoiceList(Choices[Choice]):
    """Choices, highlighted while the user types above."""

    LIT = True

    def line_of(self, item: Choice, width: int) -> list[Piece]:  # noqa: ARG002
        """Return its name, and what it is."""
        return [(f" {item.name:<{_NAME_WIDTH}} ", self.text_styles.strong), (item.about, self.text_styles.dim)]


class ChoiceLine(Input):
    """The input line; its arrow keys move the cursor of the list."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "choose"),
        Binding("down", "screen.move(1)", "next", key_display="up/down"),
        Binding("up", "screen.move(-1)", "previous", show=False),
    ]


class ChoiceScreen(BaseScreen):
    """Choices to pick one of, narrowed by typing.

    Textual's `CommandPalette` searches after the keys: an enter typed ahead would pick a match of a shorter text.
    """

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
        """Return the title."""
        return self._title

    def body(self) -> ComposeResult:
        """Yield the input line and the remaining choices."""
        line = ChoiceLine(placeholder="type to narrow, enter to choose", compact=True)
        line.cursor_blink = False
        yield line
        yield ChoiceList(self.look)

    def on_mount(self) -> None:
        """Show everything before typing."""
        self.query_one(ChoiceList).show(self._all)

    def offers(self, action: str, of: str = "") -> bool:  # noqa: ARG002
        """Offer only these keys, because others are typed."""
        return action in ("back", "move")

    def on_input_changed(self, event: Input.Changed) -> None:
        """Keep choices with every typed word."""
        words = event.value.lower().split()
        kept = [one for one in self._all if all(word in f"{one.name} {one.about}".lower() for word in words)]
        self.query_one(ChoiceList).show(kept)

    def on_input_submitted(self) -> None:
        """Do the choice under the cursor."""
        self._take()

    def on_choices_chosen(self) -> None:
        """Choose with the mouse."""
        self._take()

    def action_move(self, by: int) -> None:
        """Move the cursor of the list, while the keyboard stays with the line."""
        self.query_one(ChoiceList).action_move(by)

    def _take(self) -> None:
        chosen = self.query_one(ChoiceList).chosen
        # A double enter chooses once: the second finds the list closed.
        if chosen is not None and self.is_current:
            self.app.pop_screen()
            chosen.do()


async def show_choices(screen: BaseScreen, title: str, choices: Sequence[Choice]) -> None:
    """Open a list over `screen`; text typed ahead narrows it."""
    over = ChoiceScreen(title, choices)
    await screen.app.push_screen(over)
    if over.is_whole:  # and not closed again before it was made
        over.set_focus(over.query_one(Input))


async def show_palette(screen: BaseScreen) -> None:
    """Open the palette over `screen`."""
    kair, session = screen.kair, screen.kair.session
    screens = [
        Choice(f"{entry.key}  {entry.name}", entry.title, partial(kair.go_to_screen, entry.name))
        for entry in screens_of(None if session is None else session.trace.job)
    ]
    bookmarks = session.bookmarks.all() if session is not None else ()
    notes = session.notes.all() if session is not None else ()
    news = kair.job_watch.news
    marks = [Choice(f"m  {mark.title}", "bookmark", partial(_go_to, screen, mark)) for mark in bookmarks]
    commands = [
        Choice(f":  {entry.name}", entry.summary, partial(_run_entry, screen, entry))
        for entry in COMMANDS
        if entry.is_single
    ]
    marks += [Choice(f"N  {note.text}", f"note on {note.about}", partial(_go_to, screen, note)) for note in notes]
    if news:
        seen = "what was different when the job was read again"
        screens.append(
            Choice(
                "f  changes",
                seen,
                lambda: screen.app.push_screen(OutputScreen.of_text(screen, "changes", "\n".join(news))),
            )
        )
    answers = [Choice(f"a  {line}", "what it answered", partial(_look_at, screen, line)) for line in kair.answers]
    await show_choices(screen, "choose", [*answers, *screens, *marks, *commands])


def _run_entry(screen: BaseScreen, entry: Entry) -> None:
    """Run a command; one with required arguments is typed to the end first."""
    begun = beginning(entry, getattr(screen, "rank", None))
    if begun is None:
        run_command(screen, entry.name)
    else:
        screen.call_after_refresh(partial(ask_command, screen, begun))


def _look_at(screen: BaseScreen, line: str) -> None:
    screen.app.push_screen(screen.kair.answers.pop(line)())


def _go_to(screen: BaseScreen, mark: Bookmark | Note) -> None:
    session = screen.kair.session
    assert session is not None
    session.narrow(mark.steps)
    screen.kair.go(Place(mark.screen, mark.rank, mark.operator, mark.step, mark.at_us))
