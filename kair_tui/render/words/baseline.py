"""What takes longer than in a baseline, in words."""

from collections.abc import Iterator

from kair_engine.results.runs.changes import AgainstBaseline, OperatorChange
from kair_tui.render.units import duration, plural, ratio, signed_duration, signed_whole_percent
from kair_tui.render.words.compare import operator_in_words, whom

_SHOWN = 5


def against_in_words(found: AgainstBaseline) -> Iterator[str]:
    """A line for the step, and one for each operator."""
    step = f"{signed_duration(found.step_change_us)} a step ({signed_whole_percent(found.step_change_share)})"
    what = f"{plural(len(found.slower), 'operator')} slower" if found.slower else "nothing slower beyond chance"
    yield f"against the baseline {found.baseline}: {step}, {what}"
    for one in found.slower[:_SHOWN]:
        yield _operator(one)
    if len(found.slower) > _SHOWN:
        yield f"and {plural(len(found.slower) - _SHOWN, 'more', 'more')} (--json has all)"


def _operator(one: OperatorChange) -> str:
    before = "new" if one.ratio is None else f"{ratio(one.ratio)} its {duration(one.base_us)}"
    link = ", the transfer itself" if one.kind == "communication" else ""
    return f"{operator_in_words(one.operator)} on {whom(one)}: {duration(one.new_us)} a step, {before}{link}"
