"""The base of all screens: the frame, the keys that work everywhere, and the smallest sizes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar, cast

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.dom import DOMNode
from textual.geometry import Size
from textual.screen import Screen
from textual.widget import Widget

from kair_engine.cancelling import Cancelled
from kair_engine.errors import KairError
from kair_tui.cli.failures import ExitCode, explained
from kair_tui.render.terminal import SMALLEST_HEIGHT, SMALLEST_WIDTH, Look
from kair_tui.tui.screen_registry import SCREENS, ScreenEntry, find_screen, screens_of
from kair_tui.tui.widgets.header_and_footer import FooterKey, FooterLine, HeaderLine, ScreensLine, StatusLine
from kair_tui.tui.widgets.lines import Line, Paragraph, Paragraphs, Piece

if TYPE_CHECKING:
    from typing import IO

    from kair_tui.cli.wanted import JobWanted
    from kair_tui.render.written import Format, FormatOfRows
    from kair_tui.shell.session import ShellState
    from kair_tui.tui.figure_words import Figures
    from kair_tui.tui.session import Place, Session


Service = Literal[
    "help", "command line", "palette", "commands", "copy", "export", "bookmark", "note", "recording", "ticket"
]
"""Actions of keys on every screen that the program does for it."""


class Watching(Protocol):
    """A screen's view of the watch over the job's files."""

    news: list[str]
    """Differences at each re-read of the job."""

    def toggle(self) -> None:
        """Follow the job, or stop following it."""

    def reload(self) -> None:
        """Read the job again."""


class Program(Protocol):
    """A screen's view of its program; Textual's view, `self.app`, is separate."""

    look: Look
    wanted: "JobWanted"
    """The command line's choices."""
    session: "Session | None"
    """The job that is open."""
    shell_state: "ShellState"
    """State of `:`: named answers, and the rank in focus."""
    job_watch: Watching
    """Watches the files of the open job."""
    defects: list[BaseException]
    """Errors shown as defects of Kair that did not end the program."""
    typed: list[str]
    """Lines typed after `:`, the last at the end."""
    worked: list[str]
    """Those of them that were answered."""
    answers: "dict[str, Callable[[], BaseScreen]]"
    """Answers that arrived after the user had moved on, by their lines."""

    @property
    def framed(self) -> "BaseScreen":
        """Return the screen in front."""

    @property
    def framed_screens(self) -> "list[BaseScreen]":
        """Return the path of screens that led to the one in front, which is the last."""

    def header(self) -> tuple[tuple[str, ...], str, str]:
        """Return the line at the top: the path of screens, the open job, and alerts."""

    async def serve(self, screen: "BaseScreen", service: Service) -> None:
        """Do an action that is the same on all screens."""

    def in_thread(self, node: DOMNode, work: Callable[[], None], *, group: str) -> None:
        """Run `work` in a thread; an earlier one of that node and group is cancelled."""

    def redraw(self) -> None:
        """Send the whole screen again."""

    def open_job(self, name: str) -> None:
        """Open a job of the store, or return to it if it is open."""

    def opened(self, session: "Session") -> None:
        """Note that the job is open."""

    def go(self, place: "Place") -> None:
        """Show a place."""

    def go_to_screen(self, name: str) -> None:
        """Show the screen of that name."""

    def go_to_crumb(self, at: int) -> None:
        """Go back to the screen of that crumb in the path at the top."""

    def go_to_rank(self, rank: int) -> None:
        """Show the screen of a rank. Raises UsageError if the job lacks it."""

    def go_to_rank_named(self, text: str) -> None:
        """Go to the typed rank."""

    def leads_back(self, screen: "BaseScreen") -> bool:
        """Return whether there is a screen before that one."""

    def back(self) -> None:
        """Return to the previous screen, if there is one."""


class TooSmall(Line):
    """Replaces the screen if the terminal is too small for it."""

    DEFAULT_CSS = "TooSmall { display: none; height: 1fr; }"

    def pieces(self, width: int) -> list[Piece]:  # noqa: ARG002
        """Return the needed and the actual size."""
        size = self.screen.size
        needed = f"{SMALLEST_WIDTH}x{SMALLEST_HEIGHT}"
        return [(f"too small: {size.width}x{size.height}, needs {needed}", self.text_styles.strong)]


Worked = TypeVar("Worked")


def _to_screen(entry: ScreenEntry) -> Binding:
    return Binding(entry.key, f"go('{entry.name}')", entry.name, show=False)


@dataclass(frozen=True)
class Export:
    """An answer that can be saved."""

    name: str
    """For the file's name."""
    command: str
    line: str
    """The command line that prints it in a shell."""
    write: "Callable[[Format], str]"
    forms: "tuple[FormatOfRows, ...]" = ("json", "csv")
    stream: "Callable[[Any, IO[bytes]], None] | None" = None
    """Writes it as CSV or Parquet, if it may have more rows than fit into memory."""

    def save(self, form: Any, file: "IO[bytes]") -> None:  # noqa: ANN401
        """Write it to a file."""
        if self.stream is not None and form in ("csv", "parquet"):
            self.stream(form, file)
        else:
            file.write(self.write(form).encode())


class BaseScreen(Screen[None]):
    """A header with the crumbs, a body, a status line and a footer with keys."""

    DEFAULT_CSS = """
    BaseScreen { layout: vertical; background: $background; overflow: hidden; }
    BaseScreen.-small > * { display: none; }
    BaseScreen.-small > TooSmall { display: block; }
    BaseScreen > #problem.-shown { margin-top: 1; }
    BaseScreen > #body { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(_to_screen(entry) for entry in SCREENS),
        Binding("escape", "back", "back", key_display="esc"),
        Binding("question_mark", "serve('help')", "help", key_display="?"),
        Binding("q", "quit_kair", "quit"),
        Binding("ctrl+c", "quit_kair", "quit", show=False),
        Binding("ctrl+z", "app.suspend_process", "to the shell, where fg leads back", show=False),
        Binding("colon", "serve('command line')", "type a kair command", key_display=":", show=False),
        Binding("ctrl+p", "serve('palette')", "choose a screen, command or bookmark", show=False),
        Binding("o", "serve('commands')", "the commands that print this", show=False),
        Binding("y", "serve('copy')", "copy what is under the cursor", show=False),
        Binding("e", "serve('export')", "save this view to a file", show=False),
        Binding("g", "go_to_rank", "go to a rank", show=False),
        Binding("N", "serve('note')", "write a note on what is under the cursor", show=False),
        Binding("m", "serve('bookmark')", "set or remove a bookmark", show=False),
        Binding("f", "follow", "follow the job as it grows, or no more", show=False),
        Binding("ctrl+r", "reload", "read the job again", show=False),
        Binding("ctrl+l", "redraw", "draw the screen again", show=False),
        Binding("T", "serve('ticket')", "the finding as a ticket, to hand over", show=False),
        Binding("R", "serve('recording')", "record commands to a runbook", show=False),
    ]
    of_job: ClassVar[bool] = True
    """Whether it is about the open job."""
    STAYING: ClassVar[tuple[str, ...]] = ("escape", "question_mark", "q")
    """Keys that come last in the footer, and are kept if space is short."""
    FIRST: ClassVar[str] = ""
    """The part with the initial keyboard focus, as a selector."""
    COMMON: ClassVar[frozenset[str]] = frozenset({"filter", "sort"})
    """Actions of most screens, whose keys come after a screen's own."""

    def __init__(self) -> None:
        super().__init__()
        self._is_made = False
        self._was_in_front = False
        self._body: Widget | None = None
        self._footer: FooterLine | None = None

    @property
    def kair(self) -> Program:
        """Return the program."""
        return cast("Program", self.app)

    @property
    def look(self) -> Look:
        """Return what the terminal can show."""
        return self.kair.look

    # What a screen says about itself.

    @property
    def screen_name(self) -> str:
        """Return its name in the list of screens, or ""."""
        return getattr(getattr(self, "place", None), "screen", "")

    @property
    def crumb(self) -> str:
        """Return its name in the path at the top."""
        return self.screen_name

    def body(self) -> ComposeResult:
        """Return its widgets between the header and the status line."""
        raise NotImplementedError

    def figures(self) -> "Figures":
        """Return its figures with explanations, for help."""
        return ()

    def figures_under_cursor(self) -> "Figures":
        """Return the figures under the cursor, with their parts and peers' figures."""
        return ()

    def commands(self) -> Sequence[str]:
        """Return the `kair …` lines that print what it shows."""
        return ()

    def exports(self) -> Sequence[Export]:
        """Return its answers that `e` can save."""
        return ()

    def follow(self, rank: int) -> None:
        """Follow the user to a rank: a cursor over ranks goes with them."""

    def copied(self) -> str:
        """Return what `y` copies."""
        return "\n".join(self.commands())

    # The frame.

    def compose(self) -> ComposeResult:
        """Yield the frame around the body."""
        from textual.containers import Vertical

        # Before there are widgets: a later class restyles all of them.
        self.update_classes(self.room(self.app.size), update=False)
        yield TooSmall(self.look)
        yield HeaderLine(self.look, id="header")
        yield ScreensLine(self.look, id="screens")
        yield Paragraphs(self.look, id="problem")
        with Vertical(id="body") as self._body:
            yield from self.body()
        yield StatusLine(self.look, id="status")
        self._footer = FooterLine(self.look, id="footer")
        yield self._footer

    @property
    def is_whole(self) -> bool:
        """Whether its widgets exist: not before it is built, and not after it is left or closing."""
        body = self._body
        is_there = body is not None and body.is_attached and bool(body.children)
        # A screen that was left is removed part by part.
        return self._is_made and is_there and self.app.return_code is None and self in self.app.screen_stack

    async def on_event(self, event: events.Event) -> None:
        """Ignore events of a screen that was left before it was built: it has no widgets."""
        if isinstance(event, events.Mount):
            self._is_made = True
        if isinstance(event, (events.Mount, events.ScreenResume, events.Resize)) and not self.is_whole:
            return
        if isinstance(event, events.ScreenResume) and not self._was_in_front:
            # Textual would restyle all widgets, which were styled when they were built a moment ago.
            event.refresh_styles, self._was_in_front = False, True
        await super().on_event(event)

    def call_after_refresh(self, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:  # noqa: ANN401
        """Call back as Textual does, but not on a screen that is removed before."""
        return super().call_after_refresh(lambda: callback(*args, **kwargs) if self.is_whole else None)

    def on_mount(self) -> None:
        """Focus the first part, and keep the footer in step with the focus."""
        self.bindings_updated_signal.subscribe(self, lambda _: self.show_keys() if self.is_current else None)
        if self.FIRST:
            self.query_one(self.FIRST).focus()
        self.show_header()
        self.show_keys()

    def on_screen_resume(self) -> None:
        """Show the path and the keys again: they may have changed meanwhile."""
        self.show_header()
        self.show_keys()

    def on_resize(self, event: events.Resize) -> None:
        """Arrange parts for the available room."""
        self.update_classes(self.room(event.size))
        self.make_room()

    def make_room(self) -> None:
        """Arrange what styles cannot, for the current size."""

    def room(self, size: Size) -> dict[str, bool]:
        """Return style classes with whether they apply to a size; below the smallest size only that is shown."""
        return {"-small": size.width < SMALLEST_WIDTH or size.height < SMALLEST_HEIGHT}

    def show_header(self) -> None:
        """Show the path and the open job."""
        if self.is_mounted and self.query(HeaderLine):
            self.query_one(HeaderLine).show(*self.kair.header())
            session = self.kair.session
            there = screens_of(None if session is None else session.trace.job)
            self.query_one(ScreensLine).show(tuple((entry.key, entry.name) for entry in there), self.screen_name)

    def show_keys(self) -> None:
        """Show the keys of the focused widget, then the screen's."""
        if self._footer is None or not self._footer.is_attached:
            return
        prompt: list[DOMNode] = [one for one in self._prompts if not one.has_class("-closed")]
        shown: dict[str, FooterKey] = {}
        common: set[str] = set()
        for key, active in self.active_bindings.items():
            binding = active.binding
            if binding.show and binding.description and active.enabled and (not prompt or active.node in prompt):
                display = binding.key_display or binding.key
                shown.setdefault(display, FooterKey(display, binding.description, key in self.STAYING, key))
                if binding.action in self.COMMON:
                    common.add(display)
        in_order = sorted(shown.values(), key=lambda key: (key.stays, key.key in common))
        self._footer.show(*in_order)

    def say(self, text: str, *, alarm: bool = False) -> None:
        """Show a message above the footer, until the cursor moves on; without text none."""
        if self.is_whole:
            self.query_one(StatusLine).say(text, alarm=alarm)

    def say_error(self, error: KairError, *, before: str = "") -> None:
        """Show an error and its hint in one line."""
        self.say(f"{before}{error}" + (f" ({error.hint})" if error.hint else ""), alarm=True)

    def complain(self, error: BaseException | None) -> int:
        """Show an error as the CLI would, in full, above the body; None removes it. Returns the exit status."""
        problem = self.query_one("#problem", Paragraphs)
        problem.set_class(error is not None, "-shown")
        if error is None:
            problem.show()
            return ExitCode.ANSWERED
        text, hint, status = explained(error)
        if status == ExitCode.FAILED:
            self.kair.defects.append(error)
        hints = [Paragraph(hint, "base", "hint: ")] if hint else []
        problem.show(Paragraph(f"kair: error: {text}", "alarm"), *hints)
        return status

    def work_out(
        self, work: Callable[[], Worked], then: Callable[[Worked | None, Exception | None], object], *, group: str
    ) -> None:
        """Run `work` in a thread; `then` gets the result or the error, unless the screen is left by then."""

        def run() -> None:
            done: Worked | None = None
            error: Exception | None = None
            try:
                done = work()
            except Cancelled:
                return
            except Exception as caught:
                error = caught
            self.call_later(lambda: then(done, error) if self.is_whole else None)

        self.kair.in_thread(self, run, group=group)

    def dotted(self, *parts: str) -> str:
        """Return the non-empty parts in one line."""
        return f" {self.look.glyphs.dot} ".join(part for part in parts if part)

    def record(self, command: str) -> None:
        """Add a line to the runbook, if one is being recorded."""
        if self.kair.session is None:
            return
        try:
            self.kair.session.recorder.add(command)
        except OSError as error:
            self.say(f"cannot record: {error.strerror or error}", alarm=True)

    def describe(self, text: str) -> None:
        """Describe the thing under the cursor, in place of messages."""
        self.query_one(StatusLine).describe(text)

    @property
    def is_asking(self) -> bool:
        """Return whether there is an input line."""
        return bool(self._prompts)

    @property
    def _prompts(self) -> list[Widget]:
        return [one for one in self.children if one.id == "prompt"]

    @property
    def is_typing(self) -> bool:
        """Return whether it is being typed into; a closed one remains for a moment."""
        return any(not prompt.has_class("-closed") for prompt in self._prompts)

    @property
    def said(self) -> str:
        """Return the text above the footer."""
        return self.query_one(StatusLine).text

    @property
    def described(self) -> str:
        """Return the last description of the thing under the cursor."""
        return self.query_one(StatusLine).about

    async def ask_for(
        self,
        label: str,
        then: Callable[[str], None],
        *,
        value: str = "",
        complete: Callable[[str], str | None] | None = None,
        history: Sequence[str] = (),
    ) -> None:
        """Show an input line, which takes text typed ahead. `then` gets the typed text.

        `complete` is called in a thread for the whole of an unfinished line.
        """
        from kair_tui.tui.widgets.prompt import Prompt  # few screens ask

        if self.is_asking or not self.is_whole:
            return
        before: Widget | None = self.focused
        status = self.query_one(StatusLine)

        def closed() -> None:
            status.display = True
            if before is not None:
                self.set_focus(before)  # at once: otherwise a widget focused in between would overwrite the message

        status.display = False
        prompt = Prompt(self.look, label, value, then, closed=closed, complete=complete, history=history)
        await self.mount(prompt, before=status)
        prompt.take_keys()

    async def action_press(self, key: str) -> None:
        """Do the action of a key that was clicked in the footer."""
        if (active := self.active_bindings.get(key)) is not None:
            await self.app.run_action(active.binding.action, active.node)

    def action_go_to_crumb(self, at: int) -> None:
        """Go back along the path."""
        self.kair.go_to_crumb(at)

    # Keys that work everywhere; the program does their actions.

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer a key that has something to act on, by its action or its service."""
        of = str(parameters[0]) if parameters else ""
        return action in ("press", "go_to_crumb") or self.offers(of if action == "serve" else action, of)

    def offers(self, action: str, of: str = "") -> bool:
        """Return whether there is something to act on; `of` is the action's first parameter."""
        if action == "back":
            return self.kair.leads_back(self)
        if action in ("follow", "reload", "ticket"):
            return self.kair.session is not None
        entry = find_screen(of) if action == "go" else None
        return entry is None or not entry.needs_job or self.kair.session is not None

    def action_back(self) -> None:
        """Go to the previous screen."""
        self.kair.back()

    def action_quit_kair(self) -> None:
        """Leave the program."""
        self.app.exit(0)

    async def action_serve(self, service: Service) -> None:
        """Let the program do an action that is the same on all screens."""
        await self.kair.serve(self, service)

    def action_follow(self) -> None:
        """Read the job again whenever its files change, or stop doing so."""
        self.kair.job_watch.toggle()

    def action_redraw(self) -> None:
        """Send the whole screen again, because something overwrote it."""
        self.kair.redraw()

    def action_reload(self) -> None:
        """Read the job again now."""
        self.kair.job_watch.reload()

    async def action_go_to_rank(self) -> None:
        """Ask for the rank."""
        await self.ask_for("rank", self.kair.go_to_rank_named)

    def action_go(self, name: str) -> None:
        """Go to the screen of that name."""
        self.kair.go_to_screen(name)
