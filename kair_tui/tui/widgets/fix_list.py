"""Fixes to choose from, with each one's saving; then remedies, and notes on the figures.

Chosen fixes are options of `kair whatif`: `--fix rank=3`, `--scale op=flash*:0.5`.
"""

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message

from kair_engine.errors import UsageError
from kair_engine.results.fixes import fix_text, parse_fix, parse_scale
from kair_engine.results.whatif import Fix
from kair_tui.render.triage import fix_option
from kair_tui.render.units import duration, gain, money, signed_duration
from kair_tui.tui.widgets.lines import Paragraph, Piece
from kair_tui.tui.widgets.lists import Lines, LongChoices

_TIME, _CHANGE, _GAIN, _MONEY = 8, 10, 12, 14
_ORIGIN = 14
"""Columns for a fix's origin, which moves below it if the fix needs them."""


@dataclass(frozen=True)
class ListedFix:
    """A fix, a remedy (which cannot be chosen), or a note (without figures)."""

    text: str
    fixes: tuple[Fix, ...] = ()
    """Several belong together."""
    origin: str = ""
    """Its origin: `finding 1`, `costs 12.5 %`, `typed`."""
    step_time_us: float | None = None
    saved_us: float | None = None
    throughput_gain: float | None = None
    cost_per_day: float | None = None
    currency: str | None = None

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return the ranks that the first names."""
        return self.fixes[0].ranks if self.fixes else ()


class FixList(LongChoices[ListedFix]):
    """Space chooses the one under the cursor."""

    DEFAULT_CSS = "FixList { scrollbar-gutter: stable; }"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "choose_fix", "choose fix"),
        Binding("enter", "choose", "open rank", show=False),
    ]

    class Toggled(Message):
        """Space was pressed on a fix."""

        def __init__(self, fix: ListedFix) -> None:
            super().__init__()
            self.fix = fix

    _chosen: frozenset[tuple[Fix, ...]] = frozenset()

    def show_fixes(self, fixes: Sequence[ListedFix], chosen: frozenset[tuple[Fix, ...]]) -> None:
        """Keep the cursor on its fix, or at the top if it was not moved: prices change the order."""
        on, top = self.chosen, self.scroll_offset.y
        if self.at == 0 and on is not None and on.fixes not in chosen:
            on = None
        self._chosen = chosen
        self.show(fixes)
        same = (at for at, fix in enumerate(self.items) if on is not None and key(fix) == key(on))
        self.at = next(same, 0)
        self.scroll_to(y=top if on is not None else 0, animate=False)

    @property
    def titles(self) -> str:
        """Return the titles of the figures."""
        is_priced = any(fix.cost_per_day is not None for fix in self.items)
        return f"{'step':>{_TIME}}{'change':>{_CHANGE}}{'throughput':>{_GAIN}}" + (
            f"{'cost/day':>{_MONEY}}  " if is_priced else "  "
        )

    def action_choose_fix(self) -> None:
        """Choose it, or drop it."""
        if self.chosen is not None and self.chosen.fixes:
            self.post_message(self.Toggled(self.chosen))

    def lines_of(self, item: ListedFix, width: int) -> Lines:
        """Return the fix with its figures, and why it is listed."""
        styles, glyphs = self.text_styles, self.look.glyphs
        if not item.fixes and item.step_time_us is None:
            note = Paragraph(item.text, "dim", " ")
            return [[piece] for piece in note.lines(width - 1, self.look)]
        is_chosen = item.fixes in self._chosen
        style = styles.strong if is_chosen else styles.base
        mark = (" [x] " if is_chosen else " [ ] ") if item.fixes else f"  {glyphs.bullet}  "
        figures = self._figures(item)
        room = width - len(mark) - len(figures) - 1
        origin = self.safe(item.origin)
        wide = _ORIGIN if origin and len(item.text) < room - _ORIGIN else 0
        lines = Paragraph(item.text).lines(room - wide - 1, self.look)
        first: list[Piece] = [
            (mark, style),
            (_padded(lines[0][0], room - wide, glyphs.ellipsis), style),
            (_padded(origin, wide, glyphs.ellipsis), styles.dim),
            (figures, style),
        ]
        indent = " " * len(mark)
        below = [[(indent + origin, styles.dim)]] if origin and not wide else []
        return [first, *([(indent + text, style)] for text, _ in lines[1:]), *below]

    def _figures(self, item: ListedFix) -> str:
        if item.step_time_us is None or item.saved_us is None:
            return f"{self.look.glyphs.ellipsis:>{_TIME}}{'':{_CHANGE + _GAIN}}"
        gained = "" if item.throughput_gain is None else gain(item.throughput_gain)
        paid = "" if item.cost_per_day is None else f"{money(item.cost_per_day, item.currency):>{_MONEY}}"
        time, saved = (self.safe(text) for text in (duration(item.step_time_us), signed_duration(-item.saved_us)))
        return f"{time:>{_TIME}}{saved:>{_CHANGE}}{gained:>{_GAIN}}{paid}"


def key(fix: ListedFix) -> tuple[str, tuple[Fix, ...]]:
    """Return its identity, whatever its price."""
    return fix.text, fix.fixes


def _padded(text: str, width: int, ellipsis: str) -> str:
    fits = text if len(text) < width else text[: max(width - 2, 0)] + ellipsis
    return f"{fits:<{width}}" if width > 0 else ""


_FACTOR = re.compile(r":(\d+(\.\d+)?|even)$")


def typed_fix(text: str) -> Fix:
    """Return the typed fix: `rank=3` is `--fix rank=3`, `op=flash*:0.5` a `--scale`.

    Raises UsageError if it is invalid.
    """
    try:
        words = shlex.split(text)
    except ValueError:
        raise UsageError(f"a quote is not closed in {text!r}") from None
    flag = words.pop(0) if words and words[0].startswith("--") else ""
    value = " ".join(words)
    flag, joined, rest = flag.partition("=")
    value = rest if joined else value
    flag = flag or ("--scale" if _FACTOR.search(value) else "--fix")
    if flag not in ("--fix", "--scale"):
        raise UsageError(f"{flag} is neither --fix nor --scale")
    return (parse_scale if flag == "--scale" else parse_fix)(value)


def as_arguments(fixes: Iterable[Fix]) -> dict[str, Any]:
    """Return the arguments of a question about `kair whatif` for these fixes, each once."""
    distinct = list(dict.fromkeys(fixes))
    plain = [fix_text(fix) for fix in distinct if not fix.is_scale]
    scales = [fix_text(fix) for fix in distinct if fix.is_scale]
    return {"fix": plain or None, "scale": scales or None, "only_fixes": True}


def in_order(fixes: Iterable[Fix]) -> list[Fix]:
    """Return the fixes in the order of their prices: fixes, then scales."""
    return sorted(dict.fromkeys(fixes), key=lambda fix: fix.is_scale)


def short(fix: Fix) -> str:
    """Return `rank=3` for `--fix rank=3`; a scale keeps its flag."""
    return fix_option(fix).removeprefix("--fix ")
