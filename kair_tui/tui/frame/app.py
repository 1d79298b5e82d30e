"""The full-screen program: its open screens, and its background work."""

import asyncio
import io
import os
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Final

from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import App
from textual.binding import BindingType
from textual.color import Color
from textual.dom import DOMNode
from textual.driver import Driver
from textual.filter import LineFilter
from textual.worker import Worker

from kair_engine.errors import UsageError
from kair_tui.cli.wanted import JobWanted
from kair_tui.render.terminal import Look
from kair_tui.render.text import plain_text
from kair_tui.render.units import plural, spans
from kair_tui.shell.session import ShellState
from kair_tui.tui.frame.screen import BaseScreen, Service
from kair_tui.tui.frame.shadow import Outlet, sparing
from kair_tui.tui.frame.watching import Watch
from kair_tui.tui.screen_registry import find_screen
from kair_tui.tui.session import Place, Session
from kair_tui.tui.widgets.styles import draw_scroll_bars_with, theme_of

_MOMENT_S: Final = 0.01
_PATIENCE: Final = 100
"""Number of checks whether a screen is ready; a screen that is closing never is."""


class WithoutColours(LineFilter):
    """Keeps only weight, underline and reverse; Textual's `NoColor` sends the codes of default colours."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[Style, Style] = {}

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002
        """Return the same text with bare styles."""
        return [
            Segment(text, None if style is None else self._bare(style), control) for text, style, control in segments
        ]

    def _bare(self, style: Style) -> Style:
        known = self._known.get(style)
        if known is None:
            known = self._known[style] = Style(
                bold=style.bold or None,
                dim=style.dim or None,
                underline=style.underline or None,
                reverse=style.reverse or None,
                meta=style.meta or None,
            )
        return known


class WithoutDrawings(LineFilter):
    """Removes lines, blocks and shapes: a screen reader would name them one by one."""

    def __init__(self, *, ascii_only: bool) -> None:
        super().__init__()
        self._ascii_only = ascii_only

    def _without(self, text: str) -> str:
        shown = plain_text(text, instead=" ")
        # Texts are ASCII by now; other characters are drawings.
        return re.sub("[^\x00-\x7f]", " ", shown) if self._ascii_only else shown

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002
        """Return the text with blanks instead."""
        return [Segment(self._without(text), style, control) for text, style, control in segments]


class Unheard(io.TextIOBase):
    """Replaces standard error while the screen is shown; subprocesses do not inherit it.

    Textual's own has the file number -1, with which no process could be started.
    """

    def write(self, text: str) -> int:
        """Drop the text: it would overwrite the screen."""
        return len(text)


class KairApp(App[int]):
    """Opens the job, then shows its overview. Its result is the exit status."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    * { scrollbar-size: 1 1; scrollbar-color: $foreground; scrollbar-background: $background;
        scrollbar-color-hover: $foreground; scrollbar-background-hover: $background;
        scrollbar-color-active: $foreground; scrollbar-background-active: $background;
        scrollbar-corner-color: $background; }
    """
    BINDINGS: ClassVar[list[BindingType]] = []

    def __init__(self, wanted: JobWanted, look: Look) -> None:
        self.look = look
        self._outlet = Outlet()
        super().__init__(ansi_color=True if look.colours in ("none", "16") else None)
        self.wanted = wanted
        self.session: Session | None = None
        self.shell_state = ShellState(wanted.store)
        self.job_watch = Watch(self)
        self.defects: list[BaseException] = []
        """Errors shown as defects of Kair that did not end the program."""
        self.typed: list[str] = []
        """Lines typed after `:`, the last at the end."""
        self.worked: list[str] = []
        """Those of them that were answered."""
        self.answers: dict[str, Callable[[], BaseScreen]] = {}
        """Answers that arrived after the user had moved on, by their lines."""
        self.failure: BaseException | None = None
        """The defect that ended the program, if one did."""
        self._working: set[object] = set()
        self._bare: list[LineFilter] = [WithoutColours()] if look.colours == "none" else []
        if look.plain:
            self._bare.append(WithoutDrawings(ascii_only=look.ascii_only))
        self.error_console = Console(quiet=True)  # Errors are reported at one place, failures.py, not by Textual.
        draw_scroll_bars_with(look.glyphs)
        self.register_theme(theme_of(look))
        self.theme = "kair"

    def get_driver_class(self) -> type[Driver]:
        """Return Textual's driver for this terminal, which sends only changes."""
        return sparing(super().get_driver_class(), self._outlet)

    def redraw(self) -> None:
        """Send the whole screen again, because something may have overwritten it."""
        self._outlet.forget()
        self.refresh()

    def get_line_filters(self) -> list[LineFilter]:
        """Return Textual's filters, and ours if no colour or no drawing may be sent."""
        return [*super().get_line_filters(), *self._bare]

    def on_mount(self) -> None:
        """Paint at once; the job is opened in the background, or the store's jobs are read."""
        sys.stderr = Unheard()
        if sys.platform != "win32":
            # Textual's handlers write to the terminal at any moment: during another write they would wait for ever for
            # a lock that the interrupted write holds. The loop calls them between drawings.
            for number in (signal.SIGTSTP, signal.SIGCONT):
                if callable(handler := signal.getsignal(number)):
                    asyncio.get_running_loop().add_signal_handler(number, handler, number, None)
        self.push_screen(self.first_screen())

    async def on_event(self, event: events.Event) -> None:
        """Handle a key at once, so that later ones find it done, however fast they come.

        Textual hands a key to the widget that has the keyboard when it arrives, and then through all widgets around it:
        with a line typed ahead, keys that came while its prompt opened overtook earlier ones.
        """
        if isinstance(event, events.Resize):
            self.redraw()  # The terminal has moved or cut what it showed.
        if isinstance(event, events.Key) and (not await self._is_front_made() or await self._is_done(event)):
            return
        await super().on_event(event)

    async def _is_done(self, event: events.Key) -> bool:
        """Type a character into the line that has the keyboard; else do the action bound to the key."""
        if event.is_forwarded:
            return False
        self.app_focus = True  # A key comes from a focused terminal, which returns the keyboard.
        line: Any = self.focused
        if hasattr(line, "insert_text_at_cursor") and event.is_printable and event.character:
            line.replace(event.character, *line.selection)
            return True
        active = self.screen.active_bindings.get(event.key)
        return active is not None and await self.run_action(active.binding.action, active.node)

    async def _is_front_made(self) -> bool:
        for _ in range(_PATIENCE):
            if self.return_code is not None:
                return False  # The program is to end.
            screen = self.screen_stack[-1] if self.screen_stack else None
            if not isinstance(screen, BaseScreen) or screen.is_whole:
                return True
            await asyncio.sleep(_MOMENT_S)
        return False

    def first_screen(self) -> BaseScreen:
        """Return the first screen."""
        if named := self.wanted.job or os.environ.get("KAIR_JOB"):
            return _opening(replace(self.wanted, job=named))
        return self.made(Place("jobs"))

    def open_job(self, name: str) -> None:
        """Open a job of the store; return to it if it is open, and read it again if it was replaced."""
        source = self.session.source if self.session is not None else None
        if source is not None and source.stored and source.name == name:
            self.go(Place("overview"))
            self.job_watch.look_and_read()
        else:
            # Steps from the command line belong to the first job.
            step = self.wanted.step if source is None else "all"
            self.push_screen(_opening(replace(self.wanted, job=name, step=step)))

    def opened(self, session: Session) -> None:
        """Show the overview of the opened job, which replaces every screen except the initial list of jobs."""
        self.session = session
        self.job_watch.begin()
        while len(self.framed_screens) > 1:
            self.pop_screen()
        overview = self.made(Place("overview"))
        if getattr(self.screen, "place", None) == Place("jobs"):
            self.push_screen(overview)
        else:
            self.switch_screen(overview)

    def bell(self) -> None:
        """Ring, and keep the defect that ends the program: Textual rings while it handles one, after the status is set.

        Textual has no other public hook for this.
        """
        if self.failure is None and self.return_code:
            self.failure = sys.exc_info()[1]
        super().bell()

    # Work in threads.

    @property
    def is_busy(self) -> bool:
        """Return whether a thread is still computing."""
        return bool(self._working)

    def in_thread(self, node: DOMNode, work: Callable[[], None], *, group: str) -> None:
        """Run `work` in a thread; an earlier one of that node and group is cancelled.

        It keeps the caller's reference to the program: a screen that is removed meanwhile has no parent to find it by.
        """

        def counted() -> None:
            self._working.add(token)
            try:
                work()
            finally:
                self._working.discard(token)

        token = object()
        _: Worker[None] = node.run_worker(
            partial(asyncio.to_thread, counted), exclusive=True, group=group, exit_on_error=True
        )

    # Actions of keys that work everywhere.

    async def serve(self, screen: BaseScreen, service: Service) -> None:
        """Do an action that is the same on all screens."""
        from kair_tui.tui.frame.services import SERVICES  # not for the first paint

        done = SERVICES[service](screen)
        if done is not None:
            await done

    # Screens.

    def header(self) -> tuple[tuple[str, ...], str, str]:
        """Return the line at the top: the path of screens, the open job, and alerts."""
        screens = self.framed_screens
        crumbs = tuple(crumb for crumb, _ in self._path())
        if self.session is None or not screens[-1].of_job:
            return crumbs, "", ""
        job, steps = self.session.trace.job, self.session.chosen_steps
        about = f"{plural(len(job.ranks), 'rank')} {self.look.glyphs.dot} {plural(len(job.steps), 'step')}"
        if job.is_log:
            about = "log of steps"
        alarm = [f"only {'step' if len(steps) == 1 else 'steps'} {spans(steps, 3)}"] if self.session.steps else []
        if wanted := getattr(self.screen, "filter", ""):
            alarm.append(f"filter {wanted}")
        if said := self.job_watch.alarm:
            alarm.append(said)
        if self.session.recorder.file is not None:
            alarm.append(f"{self.look.glyphs.recording} {self.session.recorder.file.name}")
        return crumbs, about, "  ".join(alarm)

    def _path(self) -> list[tuple[str, BaseScreen]]:
        """Return the crumbs of the path at the top, each with the screen that it leads to."""
        screens = self.framed_screens
        path = [(screen.crumb, screen) for screen in screens]
        at = next((at for at, screen in enumerate(screens) if screen.of_job), None)
        if self.session is not None and at is not None:
            path.insert(at, (self.session.name, screens[at]))
        return path

    def go_to_crumb(self, at: int) -> None:
        """Go back to the screen of that crumb in the path at the top."""
        path = self._path()
        if at < len(path):
            self._back_to(path[at][1])

    def _back_to(self, screen: BaseScreen) -> None:
        for _ in range(len(self.screen_stack) - 1 - self.screen_stack.index(screen)):
            self.pop_screen()

    @property
    def framed_screens(self) -> list[BaseScreen]:
        """Return the path of screens that led to the one in front, which is the last."""
        return [screen for screen in self.screen_stack if isinstance(screen, BaseScreen)]

    @property
    def framed(self) -> BaseScreen:
        """Return the screen in front."""
        screen = self.screen
        assert isinstance(screen, BaseScreen)
        return screen

    def go(self, place: Place) -> None:
        """Show a place: return to it if the path contains it, else go one further."""
        for depth, screen in enumerate(reversed(self.screen_stack)):
            if getattr(screen, "place", None) == place:
                for _ in range(depth):
                    self.pop_screen()
                return
        self.push_screen(self.made(place))

    def go_to_screen(self, name: str) -> None:
        """Show the screen of that name, for the rank under the cursor if it is about one."""
        entry = find_screen(name)
        if entry is None or (self.session is None and entry.needs_job):
            return
        rank = getattr(self.screen, "rank", None)
        if entry.about_rank and rank is None:
            self.framed.call_later(self.framed.action_go_to_rank)
            return
        place = Place(name, rank=rank if entry.about_rank else None)
        if entry.about_moment:
            place = getattr(self.screen, "moment", place)
        if self._of_place(place) is None and (overview := self._of_place(Place("overview"))) is not None:
            # The numbered screens are siblings: none is a part of another.
            self._back_to(overview)
        self.go(place)

    def _of_place(self, place: Place) -> BaseScreen | None:
        return next((one for one in self.framed_screens if getattr(one, "place", None) == place), None)

    def go_to_rank(self, rank: int) -> None:
        """Show the screen of a rank, or a message if the job no longer has it."""
        if self.session is None:
            return
        try:
            self.session.require_rank(rank)
        except UsageError as error:
            self.framed.say(str(error), alarm=True)
            return
        for screen in self.framed_screens:
            if screen.is_mounted:
                screen.follow(rank)
        self.go(Place("rank", rank=rank))

    def go_to_rank_named(self, text: str) -> None:
        """Go to the typed rank."""
        try:
            self.go_to_rank(int(text))
        except ValueError:
            self.framed.say(f"{text!r} is no rank", alarm=True)

    def leads_back(self, screen: BaseScreen) -> bool:
        """Return whether there is a screen before that one."""
        return self.framed_screens[0] is not screen

    def back(self) -> None:
        """Return to the previous screen, if there is one."""
        if self.leads_back(self.framed):
            self.pop_screen()

    def made(self, place: Place) -> BaseScreen:
        """Return the screen of a place."""
        entry = find_screen(place.screen)
        assert entry is not None
        screen: BaseScreen
        if entry.needs_job:
            assert self.session is not None
            screen = entry.load()(self.session, place)
        else:
            screen = entry.load()()
        return screen


def _opening(wanted: JobWanted) -> BaseScreen:
    from kair_tui.tui.frame.opening import OpeningScreen

    return OpeningScreen(wanted)
