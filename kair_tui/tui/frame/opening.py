"""The screen while a job opens, and if it cannot be opened."""

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from kair.app.jobs import JobSource, committed_at
from kair.app.question import unwatched
from kair.app.step_choice import parse_steps
from kair_tui.cli.failures import ExitCode, traceback_of
from kair_tui.cli.wanted import JobWanted
from kair_tui.render.units import duration, plural, spans
from kair_tui.tui.frame.screen import BaseScreen
from kair_tui.tui.session import Session
from kair_tui.tui.widgets.lines import Bar, Paragraph, Paragraphs

if TYPE_CHECKING:
    from kair_engine.trace.model import ImportOutcome

_REDRAW_S: Final = 0.1
_LOOK_S: Final = 2.0
_LISTED: Final = 200


class Stopped(Exception):  # noqa: N818 - the user's wish, not an error
    """Parsing was to end."""


class Arrivals:
    """Receives the engine's progress, in the parsing thread: the outcome of every file so far."""

    def __init__(self) -> None:
        self.done = self.total = 0
        self.lines: list[tuple[str, bool]] = []
        """A line for each file, and whether it is a complaint."""
        self.stopped = False

    def __call__(self, done: int, total: int, what: str, outcome: "ImportOutcome | None" = None) -> None:
        """Check after every file whether to stop. Raises Stopped if the user cancelled."""
        if self.stopped:
            raise Stopped
        self.done, self.total = done, total
        if outcome is not None:
            self.lines.append(_arrived(what, outcome))

    def latest(self) -> list[tuple[str, bool]]:
        """Complaints first, then the latest files."""
        lines = list(self.lines)
        complaints = [line for line in lines if line[1]]
        rest = [line for line in lines if not line[1]]
        return [*complaints[:_LISTED], *reversed(rest[-_LISTED:])]


class OpeningScreen(BaseScreen):
    """A bar, and each rank as it arrives."""

    DEFAULT_CSS = """
    OpeningScreen #what { margin-top: 1; }
    OpeningScreen #arrived { margin-top: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "stop", key_display="esc"),
        Binding("escape", "back", "back", key_display="esc"),
        Binding("r", "retry", "try again"),
    ]

    of_job = False

    def __init__(self, wanted: JobWanted) -> None:
        super().__init__()
        self._wanted = wanted
        self._arrivals = Arrivals()
        self._over = False
        self._drawn = (0, 0)
        """Numbers of read files and of all files on the screen."""
        self._committed_before: int | None = None
        self.status_code = int(ExitCode.ANSWERED)
        """Exit status of the program if it is left here."""

    @property
    def crumb(self) -> str:
        """Return the job as it was named."""
        return self._wanted.job or "opening"

    def body(self) -> ComposeResult:
        """Yield the job, the progress, errors, and arrived files."""
        yield Paragraphs(self.look, id="what")
        yield Bar(self.look)
        yield Paragraphs(self.look, id="arrived")

    def on_mount(self) -> None:
        """Begin once the screen is painted: the next steps load the engine."""
        self._show(f"opening {self.crumb}")
        self.call_after_refresh(self._begin)
        self.set_interval(_REDRAW_S, self._redraw)

    def offers(self, action: str, of: str = "") -> bool:
        """Offer only keys that work without a job; one that cannot be opened may still run under kair mitigate."""
        if action == "go":
            return self._over and of == "mitigation"
        if action == "back":
            return self._over and len(self.kair.framed_screens) > 1
        offered = {"stop": not self._over, "retry": self._over}
        return offered.get(action, action in ("help", "quit_kair", "copy"))

    def copied(self) -> str:
        """Return the complaint."""
        return "\n".join(text for text, complaint in self._arrivals.latest() if complaint)

    def action_stop(self) -> None:
        """Stop reading files, and return to the choice of jobs."""
        self._arrivals.stopped = True
        if len(self.kair.framed_screens) > 1:
            self.kair.back()
            return
        self._end()
        self._show("stopped: what was parsed so far is kept in the cache, and opening the job again goes on from there")

    def action_retry(self) -> None:
        """Retry from the start, or from where it stopped."""
        self._arrivals, self._over = Arrivals(), False
        self.complain(None)
        self.query_one("#arrived", Paragraphs).show()
        self._show(f"opening {self.crumb}")
        self.refresh_bindings()
        self._begin()

    def action_quit_kair(self) -> None:
        """Leave, with the CLI's status."""
        self._arrivals.stopped = True
        self.app.exit(self.status_code)

    def _begin(self) -> None:
        arrivals = self._arrivals

        def then(session: Session | None, error: Exception | None) -> None:
            if not (isinstance(error, Stopped) or (error is None and arrivals.stopped)):
                self._opened(session, error)

        self.work_out(partial(self._open, arrivals), then, group="open")

    def _open(self, arrivals: Arrivals) -> Session:
        """Open the job, in a thread."""
        self._committed_before = committed_at(str(self._wanted.job), self._wanted.store)
        return self._session(self._wanted.locate(), arrivals)

    def _session(self, source: JobSource, arrivals: Arrivals) -> Session:
        before = self.kair.session
        recorder = before.recorder if before is not None else None
        session = Session.open(source, store=self._wanted.store, recorder=recorder, progress=arrivals)
        session.progress = unwatched
        session.narrow_to(parse_steps(self._wanted.step))
        return session

    def _redraw(self) -> None:
        """Draw the bar and the list if more files came.

        Polled, because redrawing for each of ten thousand files would slow the parser.
        """
        arrivals = self._arrivals
        if not self._over and self._drawn != (drawn := (arrivals.done, arrivals.total)):
            self._drawn = drawn
            self.query_one(Bar).show(*drawn)
            self._list()

    def _opened(self, session: Session | None, error: Exception | None) -> None:
        """Go on to the overview, or show the error."""
        if session is not None:
            self.kair.opened(session)
            return
        self.status_code = self.complain(error)
        arrived = len(self._arrivals.lines)
        self._show(f"what came of the files of {self.crumb}:" if arrived else f"nothing of {self.crumb} was read")
        self._end()
        self._list(error)
        self.set_timer(_LOOK_S, self._look_again)

    def _look_again(self) -> None:
        """Open the data that a running job's coordinator commits."""
        if not self._over:
            return
        committed = committed_at(str(self._wanted.job), self._wanted.store)
        if self.is_current and committed not in (None, self._committed_before):
            self.action_retry()
        else:
            self.set_timer(_LOOK_S, self._look_again)

    def _end(self) -> None:
        self._over = True
        self._drawn = (0, 0)
        self.query_one(Bar).show(*self._drawn)
        self.refresh_bindings()

    def _show(self, text: str) -> None:
        self.query_one("#what", Paragraphs).show(Paragraph(text, "strong"))

    def _list(self, error: BaseException | None = None) -> None:
        """List the files; with `--debug` a defect's traceback comes first."""
        glyphs = self.look.glyphs
        lines = [
            Paragraph(text, "alarm", f"{glyphs.alarm} ") if complaint else Paragraph(text, "dim", "  ")
            for text, complaint in self._arrivals.latest()[: max(self.size.height - 10, 1)]
        ]
        if error is not None and self._wanted.debug and error in self.kair.defects:
            traceback = traceback_of(error).splitlines()[-max(self.size.height - 10, 1) :]
            lines = [*(Paragraph(line.strip(), "dim", "  ") for line in traceback), *lines]
        self.query_one("#arrived", Paragraphs).show(*lines)


def _arrived(what: str, outcome: "ImportOutcome") -> tuple[str, bool]:
    """Return `rank 3 on node0: 12 steps, 94.2 ms each`, or the complaint."""
    info = outcome.info
    if info is None:
        return (outcome.error or what, True) if outcome.is_trace else (f"{what} is no trace: {outcome.error}", False)
    times = sorted(info.step_times.duration_ns)
    who = f"{'rank' if len(info.ranks) == 1 else 'ranks'} {spans(info.ranks)}"
    on = f" on {', '.join(sorted(set(info.hosts.values())))}" if info.hosts else ""
    steps = len(set(info.step_times.step))
    each = f", {duration(times[len(times) // 2] / 1e3)} a step" if times else ""
    return f"{who}{on}: {plural(steps, 'step')}{each}, {plural(info.operations, 'operation')}", False
