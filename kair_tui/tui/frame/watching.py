"""Watches the files of the open job: reports changes, and reads the job again on request.

Also reports a running job's coordinator to the screen that follows the job.
"""

from collections.abc import Callable, Hashable
from datetime import datetime
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final, Literal, cast

from kair.app.jobs import JobSource, read_source
from kair.app.question import unwatched
from kair_engine.errors import InputError
from kair_tui.cli.failures import explained
from kair_tui.tui.frame.view import ViewScreen

if TYPE_CHECKING:
    from textual.app import App

    from kair_engine.results.triage import TriageResult
    from kair_engine.results.watch import WatchResult
    from kair_engine.trace.model import Trace
    from kair_tui.tui.frame.screen import Program
    from kair_tui.tui.session import Session


_LOOK_S: Final = 2.0
_LIVE_S: Final = 5.0
"""Time between two readings of a running job's recorded steps."""
_SELDOM: Final = 5
"""A folder that is not followed is checked less often by this factor: it can have thousands of files."""


class Watch:
    """Watches one job at a time, the open one."""

    def __init__(self, app: "App[int]") -> None:
        self._app, self._kair = app, cast("Program", app)
        self._is_begun = self._is_reading = self._is_looking = False
        self._reads_what_changed = False
        """Whether the job was requested by name, so that a new job of that name is read."""
        self._looks = 0
        self._rests_until = 0.0
        """Recorded steps are not read again before this time."""
        self._before: Hashable = None
        """The last state of the files: it differs at each look while they are written."""
        self.following = False
        self.changed: Literal["", "changed", "gone"] = ""
        self.news: list[str] = []
        """Differences at each re-read, and alerts, the latest at the end."""
        self.live = LiveJob()

    def begin(self) -> None:
        """Start with another job."""
        # A job without samples changes with every step: it is shown live.
        self.following, self.changed, self.news, self.live = self._grows, "", [], LiveJob()
        if not self._is_begun:
            self._is_begun = True
            self._app.set_interval(_LOOK_S, self._look_now_and_then)

    @property
    def _grows(self) -> bool:
        session = self._kair.session
        job = None if session is None else session.trace.job
        return job is not None and job.is_recorded_only and job.stored_in is not None

    @property
    def alarm(self) -> str:
        """Return the alert for the line at the top."""
        if self._is_reading:
            return f"reading again {self._kair.look.glyphs.ellipsis}"
        if self.changed == "gone":
            return "gone from disk"
        if self.changed and not self.following:
            return "changed on disk: ctrl+r"
        return f"following {self.live.where}".rstrip() if self.following else ""

    def toggle(self) -> None:
        """Follow the job, or stop following it."""
        self.following, self.live = not self.following, LiveJob()
        name = self._kair.session.name if self._kair.session else ""
        self._say(f"following {name}: it is read again when its files change" if self.following else "not followed")
        if self.following:
            self.look()

    # Looking.

    def _look_now_and_then(self) -> None:
        session = self._kair.session
        self._looks += 1
        if session is not None and (session.source.stored or self.following or self._looks % _SELDOM == 0):
            self.look()

    def look(self) -> None:
        """Check the files in a thread; changes are shown at once."""
        session = self._kair.session
        if session is None or self._is_reading or self._is_looking:
            return
        self._is_looking = True
        follows = self.following
        self._in_thread(
            lambda: partial(self._seen, session, session.files_now(), live_status(session.source) if follows else None)
        )

    def look_and_read(self) -> None:
        """Check the files, and read the job again if they are another job's."""
        self._reads_what_changed = True
        self.look()

    def _seen(self, session: "Session", now: Hashable, live: "WatchResult | None") -> None:
        self._is_looking = False
        if session is not self._kair.session or self._is_reading:
            return
        self._hear(live)
        before, self._before = self._before, now
        changed: Literal["", "changed", "gone"] = "" if now == session.read_from else "changed" if now else "gone"
        if changed != self.changed:
            self.changed = changed
            self._tell(session)
        asked_for, self._reads_what_changed = self._reads_what_changed, False
        # Files being written are read once they are the same in two looks; recorded steps once all earlier questions
        # are answered, and at most this often.
        if self._grows:
            waits = getattr(self._kair.framed, "waiting", ())
            is_due = self.following and not waits and monotonic() >= self._rests_until
        else:
            is_due = self.following and now == before
        if changed == "changed" and (asked_for or is_due):
            self._rests_until = monotonic() + _LIVE_S
            self.reload()

    def _hear(self, live: "WatchResult | None") -> None:
        """Show the alerts of the followed job's coordinator."""
        before, lines = self.live.where, self.live.hear(live)
        if lines:
            self.news += [f"{datetime.now().astimezone():%H:%M:%S}  {line}" for line in lines]
            self._say("; ".join(lines), alarm=True)
        elif self.live.where != before:
            self._kair.framed.show_header()

    def _tell(self, session: "Session") -> None:
        if self.changed == "gone":
            self._say(f"{session.name} was deleted: the screen shows its last state", alarm=True)
        elif self.changed and not self.following:
            self._say(f"{session.name} has changed on disk: ctrl+r reads it again, f follows it", alarm=True)
        else:
            self._kair.framed.show_header()

    # Reading.

    def reload(self) -> None:
        """Read the job again in a thread; the screen stays until that is done."""
        session = self._kair.session
        if session is None or self._is_reading:
            return
        self._is_reading = True
        self._kair.framed.show_header()
        self._in_thread(partial(self._read, session))

    def _read(self, session: "Session") -> Callable[[], None]:
        """Read the job, in a thread."""
        try:
            trace, state = read_source(session.source, progress=unwatched)
        except Exception as error:
            return partial(self._failed, error)
        return partial(self._renew, session, trace, state)

    def _failed(self, error: BaseException) -> None:
        self._is_reading = False
        text, hint, _ = explained(error)
        self._say(f"kair: error: {text}" + (f" ({hint})" if hint else ""), alarm=True)

    def _renew(self, session: "Session", trace: "Trace", state: Hashable) -> None:
        self._is_reading = False
        if session is not self._kair.session:
            return
        question = session.question("triage")
        known = session.known(question)
        before: TriageResult | None = None if known is None else known.result
        session.renew(trace, state)
        self.changed = ""
        for screen in self._kair.framed_screens:
            if isinstance(screen, ViewScreen):
                screen.renewed()
        self._kair.framed.show_header()
        self._in_thread(partial(self._compare, session, before))

    def _compare(self, session: "Session", before: "TriageResult | None") -> Callable[[], None]:
        """Compare the earlier answer with the new one, in a thread."""
        from kair_tui.render.verdict_changes import difference

        try:
            after: TriageResult = session.ask(session.question("triage")).result
        except Exception as error:
            return partial(self._failed, error)
        lines = () if before is None else difference(before, after)
        if not lines and self._grows:
            return self._kair.framed.show_header
        return partial(self._announce, lines or ("nothing that matters has changed",))

    def _announce(self, lines: tuple[str, ...]) -> None:
        self.news += [f"{datetime.now().astimezone():%H:%M:%S}  {line}" for line in lines]
        self._say(f"read again: {'; '.join(lines)}")

    def _say(self, text: str, *, alarm: bool = False) -> None:
        self._kair.framed.show_header()
        self._kair.framed.say(text, alarm=alarm)

    def _in_thread(self, work: "Callable[[], Callable[[], None]]") -> None:
        """Run `work` in a thread, and its result in the program's own."""
        self._kair.in_thread(self._app, lambda: self._app.call_from_thread(work()), group="watch")


_OPEN_FOR_MORE = ("waiting", "training", "stalled")


class LiveJob:
    """The followed job: its step, and alerts as they come."""

    def __init__(self) -> None:
        self._known_alerts: frozenset[str] | None = None
        self.where = ""
        """`step 512` while it trains, else empty."""

    def hear(self, status: "WatchResult | None") -> list[str]:
        """Take the latest status; return news in words. The first time these are the present alerts."""
        if status is None:
            self.where = ""
            return []
        from kair_tui.render.watch import alert_in_words

        self.where = f"step {status.step}" if status.state in _OPEN_FOR_MORE and status.step >= 0 else ""
        new = [
            alert
            for alert in (status.open_alerts() if self._known_alerts is None else status.alerts)
            if self._known_alerts is None or repr(alert) not in self._known_alerts
        ]
        self._known_alerts = frozenset(map(repr, status.alerts))
        return [alert_in_words(alert) for alert in new]


def live_status(source: JobSource) -> "WatchResult | None":
    """Return the current status; None for a job without a coordinator, or if that has gone."""
    if not source.stored or not Path(source.path, "capture", "status.json").exists():
        return None
    from kair.app.answers.watch import watch

    try:
        return watch(source.path.parent, source.path.name, lambda _: None)
    except (InputError, OSError):
        return None
