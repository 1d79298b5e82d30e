"""What the blame screen says beside its lists: of the whole answer, and of what is under the cursor."""

from collections.abc import Iterator

from kair_engine.results.blame import BlamePath, BlameResult, PathNode, RootCause
from kair_tui.render.terminal import Look
from kair_tui.render.text import spaced
from kair_tui.render.units import duration, percent, ranks_in_words, signed_duration, spans
from kair_tui.render.views.blame.neighbours import Neighbour
from kair_tui.render.words.blame import blame_headline, blame_totals, cause_operator, path_end
from kair_tui.render.words.warnings import warnings_in_words
from kair_tui.tui.session import Place
from kair_tui.tui.widgets.lines.paragraphs import Paragraph
from kair_tui.tui.widgets.lists.rank_graph import GraphLine
from kair_tui.tui.widgets.styles import styles_of


def about_answer(
    result: BlameResult, place: Place, accused: frozenset[int] | None, look: Look, *, alone: bool, short: bool
) -> Iterator[Paragraph]:
    """The sum, whom triage accuses (None: not known yet), and what the answer was narrowed to."""
    styles = styles_of(look)
    first = "one rank alone: there is nobody who could wait for it" if alone else blame_headline(result)
    yield Paragraph(first, styles.strong)
    if accused:
        named = ranks_in_words(tuple(sorted(accused)))
        yield Paragraph(f"triage accuses {named}", styles.alarm, f"{look.glyphs.alarm} ")
    if result.collectives and not short:
        yield Paragraph(blame_totals(result), styles.dim)
    if accused is not None and not accused and result.waiting_us:
        healthy = "triage accuses no rank: in every healthy job, too, somebody arrives last"
        yield Paragraph(healthy, styles.dim)
    if narrowed := _narrowed(result, place):
        yield Paragraph(narrowed, styles.dim)
    for warning in warnings_in_words(result.warnings):
        yield Paragraph(f"warning: {warning.message}", styles.dim)


def _narrowed(result: BlameResult, place: Place) -> str:
    to = [] if place.rank is None else [f"rank {place.rank}"]
    to += [] if place.operator is None else [f"operators with {place.operator!r}"]
    if not to:
        return ""
    none = "" if result.root_causes else ": nobody waited for that"
    return f"only {' and '.join(to)}{none} (r shows the whole job)"


def about_cause(row: RootCause | None, look: Look) -> str:
    """A root cause, in one line."""
    if row is None:
        return ""
    parts = (
        f"rank {row.rank}",
        cause_operator(row),
        spaced(row.cause),
        f"{duration(row.blamed_us)}, {percent(row.share)} of all waiting",
        f"{'step' if len(row.steps) == 1 else 'steps'} {spans(row.steps, 3)}",
    )
    return dotted(parts, look)


def about_stop(path: BlamePath | None, node: PathNode | None, look: Look) -> str:
    """A stop of a path, in one line."""
    if path is None or node is None:
        return ""
    parts = (
        f"rank {node.rank}",
        node.operator,
        f"began {signed_duration(node.lateness_us)} at {duration(node.start_us)} of step {path.step}",
        f"took {duration(node.duration_us)}",
        path_end(node, path) if node is path.chain[-1] else "",
        f"ranks together waited {duration(path.waited_us)}" if node is path.symptom else "",
    )
    return dotted(parts, look)


def about_neighbour(line: Neighbour | None, look: Look) -> str:
    """What is around a root cause, in one line."""
    if line is None:
        return ""
    said = line.detail if line.role == "waited" else f"{line.text} {look.glyphs.dot} {line.detail}"
    return dotted((said, f"{duration(line.time_us)}, {percent(line.share)} of all waiting"), look)


def about_line(line: GraphLine | None, look: Look) -> str:
    """A rank that was waited for, or an edge of it, in one line."""
    if line is None:
        return ""
    who = "" if line.edge is not None or line.of.rank is None else f"rank {line.of.rank}"
    return dotted((who, line.detail, f"{duration(line.time_us)}, {percent(line.share)} of all waiting"), look)


def dotted(parts: tuple[str, ...], look: Look) -> str:
    """Those that say something, in one line."""
    return f" {look.glyphs.dot} ".join(part for part in parts if part)
