"""The findings of a triage as a list: who and what in the first line, the evidence under it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.binding import Binding, BindingType

from kair_tui.render.terminal import Look
from kair_tui.render.views.triage import facts, sentences, title
from kair_tui.render.words.triage import FindingInWords
from kair_tui.render.words.warnings import WarningInWords
from kair_tui.tui.widgets.lines.paragraphs import Paragraph
from kair_tui.tui.widgets.lists.select_list import Choices, Lines
from kair_tui.tui.widgets.styles import styles_of

_INDENT = "     "


@dataclass(frozen=True)
class ListedFinding:
    """A finding with its number, or something else to be read there."""

    number: int
    finding: FindingInWords | None
    text: str = ""


class Findings(Choices[ListedFinding]):
    """The costliest first; then what costs nothing, and what the reader of them should know."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "choose", "open rank")]

    def __init__(self, look: Look) -> None:
        super().__init__(look, self._lines_of, id="findings")

    def show_findings(
        self,
        findings: tuple[tuple[int, FindingInWords], ...],
        warnings: tuple[WarningInWords, ...],
        absorbed: Sequence[str] = (),
    ) -> None:
        """Findings with their places in the triage; `absorbed` are the delays that cost nothing."""
        listed = [ListedFinding(number, finding) for number, finding in findings]
        told = [*absorbed, *(f"warning: {warning.message}" for warning in warnings)]
        self.show([*listed, *(ListedFinding(0, None, text) for text in told)])

    @property
    def finding(self) -> FindingInWords | None:
        """The one under the cursor."""
        return self.chosen.finding if self.chosen else None

    def _lines_of(self, item: ListedFinding, width: int) -> Lines:
        styles, glyphs, ascii_only = styles_of(self.look), self.look.glyphs, self.look.ascii_only
        finding = item.finding
        if finding is None:
            note = Paragraph(item.text, styles.dim, " ")
            return [[piece] for piece in note.lines(width - 1, ascii_only=ascii_only)]
        sign, style = (glyphs.alarm, styles.alarm) if finding.ranks else (glyphs.weak_alarm, styles.notice)
        head = Paragraph(title(finding), style, f" {item.number} {sign} ")
        rest = [Paragraph(fact, styles.base, _INDENT) for fact in facts(finding)]
        rest += [Paragraph(sentence, styles.dim, f"{_INDENT}{glyphs.bullet} ") for sentence in sentences(finding)]
        if finding.suggestion:
            rest.append(Paragraph(f"suggestion: {finding.suggestion}", styles.base, _INDENT))
        return [[line] for one in (head, *rest) for line in one.lines(width - 1, ascii_only=ascii_only)] + [[]]
