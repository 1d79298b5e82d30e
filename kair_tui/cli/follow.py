"""Follows a running job: polls it, and writes what is new in the chosen format."""

import sys
import time
from collections.abc import Callable
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Final

from kair_tui.cli.output import is_terminal, write_answer
from kair_tui.cli.present import Presenter

if TYPE_CHECKING:
    from kair_engine.results.watch import Alert, WatchResult
    from kair_tui.cli.options import Following
    from kair_tui.render.answer import Document

_LEAST_S: Final = 0.1
_REDRAW: Final = "\x1b[H\x1b[2J"
"""Cursor home, screen cleared."""


def follow(
    look: "Callable[[], Document]",
    presenter: Presenter,
    form: str,
    how: "Following",
    is_found: "Callable[[Document], bool]",
) -> bool:
    """Follow until the job is over, or `is_found`; return whether it was."""
    writer = _Writer(presenter, form, redraws=form in ("table", "wide") and is_terminal(sys.stdout) and not how.once)
    once = how.once or form in ("json", "csv", "tree")
    while True:
        answer = look()
        result: WatchResult = answer.result
        found = is_found(answer)
        is_last = once or found or result.state in ("over", "failed", "unattended")
        writer.write(answer, is_last=is_last)
        if is_last:
            return found
        time.sleep(max(how.every, _LEAST_S))


def fitted(text: str, height: int | None) -> str:
    """Return the first lines of a page that fit the height, and the number of the others; None returns all."""
    lines = text.splitlines(keepends=True)
    if height is None or len(lines) < height:
        return text
    shown = lines[: max(height - 2, 1)]
    return f"{''.join(shown)}({len(lines) - len(shown)} more lines: --once prints them all, kair-tui JOB shows them)\n"


class _Writer:
    """Writes the first look whole; later ones redraw a terminal, and write only news elsewhere."""

    def __init__(self, presenter: Presenter, form: str, *, redraws: bool) -> None:
        self._presenter, self._form, self._redraws = presenter, form, redraws
        self._shown: set[Alert] = set()
        self._warned: set[str] = set()
        self._is_first = True
        self._rows = 0

    def write(self, answer: "Document", *, is_last: bool) -> None:
        """Write everything, or what is new; each warning once."""
        result: WatchResult = answer.result
        new = [alert for alert in result.alerts if alert not in self._shown]
        self._shown.update(new)
        if self._form == "ndjson":
            write_answer(self._records(answer, new, is_last=is_last))
        elif self._redraws:
            height = None if self._form == "wide" else get_terminal_size().lines
            write_answer(f"{_REDRAW}{fitted(self._presenter.text(answer, height=height), height)}")
        elif self._is_first:
            write_answer(self._presenter.text(answer))
        elif new:
            from kair_tui.render.text import clean
            from kair_tui.render.watch import alert_in_words

            ascii_only = self._presenter.ascii_only
            write_answer("".join(f"{clean(alert_in_words(alert), ascii_only=ascii_only)}\n" for alert in new))
        self._is_first = False
        for warning in answer.warnings:
            if warning.message not in self._warned:
                self._warned.add(warning.message)
                self._presenter.note(f"warning: {warning.message}")

    def _records(self, answer: "Document", new: "list[Alert]", *, is_last: bool) -> str:
        """Return NDJSON of a stream: everything of the first look, then alerts, and one end."""
        from kair_tui.render.document import encode, to_plain

        if self._is_first:
            lines = self._presenter.text(answer).splitlines(keepends=True)[:-1]
            self._rows = len(lines) - 1
        else:
            result: WatchResult = answer.result
            progress = {"record": "progress", "step": result.step, "step_time_us": result.step_time_us}
            records = [progress | {"state": result.state}, *({"record": "alert", **to_plain(one)} for one in new)]
            lines = [f"{encode(one)}\n" for one in records]
            self._rows += len(lines)
        end = [encode({"record": "end", "rows": self._rows}) + "\n"] if is_last else []
        return "".join([*lines, *end])
