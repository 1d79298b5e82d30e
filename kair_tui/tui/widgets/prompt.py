"""One line to type an answer into, instead of the status line."""

from asyncio import to_thread
from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.suggester import Suggester
from textual.widgets import Input

from kair_tui.render.terminal import Look
from kair_tui.tui.widgets.lines import Line, Piece


class _Label(Line):
    def __init__(self, look: Look, text: str) -> None:
        super().__init__(look)
        self._text = f" {self.safe(text)} "
        self.styles.width = len(self._text)

    def pieces(self, width: int) -> list[Piece]:  # noqa: ARG002
        return [(self._text, self.text_styles.strong)]


class _Completion(Suggester):
    def __init__(self, complete: Callable[[str], str | None]) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._complete = complete

    async def get_suggestion(self, value: str) -> str | None:
        return await to_thread(self._complete, value)


class Prompt(Horizontal):
    """Asks for one line; `then` gets the typed text, nothing happens with esc."""

    DEFAULT_CSS = """
    Prompt { height: 1; }
    Prompt Input { border: none; height: 1; padding: 0; width: 1fr; background: $background; color: $foreground; }
    Prompt Input:focus { border: none; }
    Prompt Input > .input--cursor { text-style: reverse; background: $background; color: $foreground; }
    Prompt Input > .input--suggestion { text-style: dim; color: $foreground; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "cancel", key_display="esc"),
        Binding("tab", "complete", "complete"),
        Binding("up", "earlier", "earlier", show=False),
        Binding("down", "later", "later", show=False),
    ]

    def __init__(
        self,
        look: Look,
        label: str,
        value: str,
        then: Callable[[str], None],
        *,
        closed: Callable[[], None],
        complete: Callable[[str], str | None] | None = None,
        history: Sequence[str] = (),
    ) -> None:
        super().__init__(id="prompt")
        self._look, self._label, self._value = look, label, value
        self._then, self._after = then, closed
        self._completer = complete
        self._history = [*history, value]
        self._at = len(history)

    def compose(self) -> ComposeResult:
        """Yield the label and the line."""
        yield _Label(self._look, self._label)
        suggester = _Completion(self._completer) if self._completer is not None else None
        line = Input(self._value, suggester=suggester, select_on_focus=False, compact=True)
        line.cursor_blink = False
        yield line

    def take_keys(self) -> None:
        """Take all further typing."""
        if self.is_attached and self.query(Input):  # its screen may have closed meanwhile
            self.screen.set_focus(self._line)

    @property
    def _line(self) -> Input:
        return self.query_one(Input)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Return the typed text to the caller."""
        event.stop()
        self._close()
        self._then(event.value)

    def action_cancel(self) -> None:
        """Close it."""
        self._close()

    async def action_complete(self) -> None:
        """Complete the text, whether or not a suggestion is shown yet."""
        if self._completer is None:
            return
        line = self._line
        typed = line.value
        whole = await to_thread(self._completer, typed)
        if whole is not None and line.value == typed:
            line.value = whole
            line.cursor_position = len(whole)

    def action_earlier(self) -> None:
        """Show the previous line."""
        self._recall(-1)

    def action_later(self) -> None:
        """Show the next line."""
        self._recall(1)

    def _recall(self, by: int) -> None:
        if 0 <= self._at + by < len(self._history):
            self._at += by
            self._line.value = self._history[self._at]
            self._line.cursor_position = len(self._line.value)

    def _close(self) -> None:
        self.add_class("-closed")  # its keys are no longer offered, though it remains for a moment
        # The focus goes back first, else Textual gives it to a neighbour.
        self._after()
        self.remove()
