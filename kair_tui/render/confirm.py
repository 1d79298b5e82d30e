"""Results of delays, for people: the verdict, how much the step grows for each, and their cost to the job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kair_engine.results.confirm import ConfirmRun, DelayEffect
from kair_tui.render.answer import ALARM, GAP, Cell, Column, Styled
from kair_tui.render.forest import Estimate, axis_of, forest, legend, scale
from kair_tui.render.terminal import ASCII, UNICODE, Glyphs
from kair_tui.render.units import (
    count,
    duration,
    p_value,
    percent,
    plural,
    ranks_in_words,
    signed_duration,
    significant,
)
from kair_tui.render.view import View

if TYPE_CHECKING:
    from kair_tui.render.page import Page

VERDICTS: Final = {
    "confirmed": "confirmed",
    "withdrawn": "withdrawn",
    "shared": "shared",
    "not_here": "not here",
    "open": "open",
}
_GAINS: Final = ("confirmed", "open")
"""Verdicts under which speeding up the accused may gain something."""
_RANKS_SHOWN: Final = 20
_NARROWEST, _READABLE, _WIDEST = 16, 26, 90
"""Characters of the forest plot: at least, before other columns are dropped, and at most."""
_PAGE: Final = 100
"""Columns of a page without a width."""
_BY, _STEPS, _SLACK = 10, 7, 18
"""Widths of these columns, the most important first."""


def verdict_in_words(result: ConfirmRun) -> str:
    """Return the verdict's meaning as a sentence."""
    who = ranks_in_words(result.accused) if result.accused else ""
    one = len(result.accused) == 1
    if result.verdict == "confirmed":
        of = ranks_in_words(result.held_up_by)
        least, more = result.saving_low_us, " or more"
        if result.worth is not None and result.worth.high_us is not None:
            least, more = result.worth.worth_us, ""
        worth = f", and a fix is worth {duration(least)} a step{more}" if least else ""
        return f"{of} {'holds' if len(result.held_up_by) == 1 else 'hold'} up the job{worth}"
    if result.verdict == "withdrawn":
        return f"{who} {'does' if one else 'do'} not hold up the job: others do, or none does"
    if result.verdict == "shared":
        return f"several are equally late: a fix of {who} alone gains little" if who else "no rank alone does"
    if result.verdict == "not_here":
        place = result.place.replace("_", " ")
        return f"delays {place} lengthen no step: the network, a loader or a device that is behind absorbs them"
    question = f"whether {who} {'holds' if one else 'hold'} up the job" if who else "which rank holds up the job"
    steps = f"about {plural(result.steps_needed, 'more step')}" if result.steps_needed else ""
    if result.state == "running":
        return f"{steps or 'more steps'} decide {question}"
    seen = "" if result.would_see_us is None else f"; {duration(result.would_see_us)} would have been seen"
    return f"not decided {question}{seen}" + (f"; {steps} would decide it" if steps else "")


def sentence(result: ConfirmRun) -> str:
    """Return the verdict with its meaning: what is known so far."""
    return f"{VERDICTS[result.verdict]}: {verdict_in_words(result)}"


def confirmed_in_words(result: ConfirmRun) -> str:
    """Return the same for a line next to an accusation."""
    steps = f", steps {result.first_step} to {result.last_step}" if result.first_step is not None else ""
    return f"kair confirm{steps}: {verdict_in_words(result)}"


def how(result: ConfirmRun) -> str:
    """Return who is delayed, where and by how much, and the share of a step."""
    who = ranks_in_words(result.accused) if result.accused else "a random half of the ranks"
    share = f" ({percent(result.dose_us / result.step_time_us)} of a step)" if result.step_time_us else ""
    parts = [f"{result.job}: {who}, {result.place.replace('_', ' ')}, by {duration(result.dose_us)}{share}"]
    covered = 0 if result.first_step is None or result.last_step is None else result.last_step - result.first_step
    is_limited = result.state == "running" and result.worth is None and result.steps_allowed
    most = f" of {count(result.steps_allowed or 0)} at most" if is_limited else ""
    parts.append(f"{plural(max(covered, result.steps_used), 'step')}{most}")
    if result.p is not None and result.verdict in ("confirmed", "withdrawn"):
        parts.append(f"p {p_value(result.p)}")
    if result.state == "unheard":
        parts.append(f"nothing heard since {result.at[11:19]} UTC: delays end by themselves after 64 steps")
    return ", ".join(parts)


def cost(result: ConfirmRun) -> str:
    """Return the delays' cost to the job: steps, time, and device time, and the budget."""
    steps = f"{result.cost_us / result.step_time_us:.1f} steps, " if result.step_time_us else ""
    every = f", {significant(result.cost_us * result.ranks / 1e6)} GPU-seconds of {result.ranks} ranks"
    of = f" ({duration(result.allowed_us)})" if result.allowed_us else ""
    so_far = " so far" if result.state == "running" else ""
    limit = f"; the budget is {percent(result.budget)} of the job's time{of}"
    return f"cost{so_far}: {steps}{duration(result.cost_us)}{every if result.ranks else ''}{limit}"


def remarks(result: ConfirmRun) -> Iterator[str]:
    """Yield further facts: a fix's gain, the variation of steps, the reason for the end."""
    if result.worth is not None:
        worth = result.worth
        high_text = "more" if worth.high_us is None else duration(worth.high_us)
        yield (
            f"A fix is worth {duration(worth.worth_us)} a step ({duration(worth.low_us)} to {high_text}), by "
            f"{plural(len(worth.doses), 'dose')} up to {duration(worth.doses[-1].dose_us)}."
        )
    elif result.accused and result.saving_us is not None and result.saving_us > 0 and result.verdict in _GAINS:
        low, high = max(result.saving_low_us or 0.0, 0.0), result.saving_high_us or 0.0
        faster = f"{duration(result.dose_us)} faster" if len(result.accused) == 1 else "each faster by the delay"
        saved = f"{duration(result.saving_us)} a step ({duration(low)} to {duration(high)})"
        yield f"Were {ranks_in_words(result.accused)} {faster}, the job would gain {saved}."
    if result.noise_us is not None:
        yield f"Undelayed steps vary by {duration(result.noise_us)} beyond what the ranks' own times explain."
    if result.ended_because:
        yield f"The delays ended: {result.ended_because}."


@dataclass(frozen=True)
class Tested:
    """A row of the forest plot: who was delayed by how much, or would be faster by it, and the effect on the step."""

    who: str
    n: int
    estimate: Estimate
    change: Cell
    slack: str
    rank: int | None
    """Set if it is about a single rank."""


def tested(result: ConfirmRun) -> list[Tested]:
    """Return a row for each delayed rank or group; then for each dose the saving of an equally large fix."""
    rows = [
        Tested(
            _who(row),
            row.n,
            Estimate(row.growth_us, row.growth_low_us, row.growth_high_us, row.dose_us),
            _mark(row),
            _slack(row),
            row.ranks[0] if len(row.ranks) == 1 else None,
        )
        for row in result.effects
    ]
    accused = ranks_in_words(result.accused, 1)
    rank = result.accused[0] if len(result.accused) == 1 else None
    for one in () if result.worth is None else result.worth.doses:
        who = f"{accused}, {duration(one.dose_us)} faster"
        saved = f"saves {duration(one.saving_us)} ± {duration((one.high_us - one.low_us) / 2)}"
        rows.append(Tested(who, one.n, Estimate(one.saving_us, one.low_us, one.high_us, one.dose_us), saved, "–", rank))
    return rows


def _claimed_us(result: ConfirmRun) -> float | None:
    """Return the excess of the accused by self times."""
    return result.excess_us if result.excess_us is not None and result.excess_us > 0 else None


def _by(row: Tested) -> str:
    return duration(row.estimate.dose_us) if row.n else "–"


def tested_columns(
    result: ConfirmRun, rows: Sequence[Tested], width: int, glyphs: Glyphs
) -> tuple[Column[Tested], ...]:
    """Return the columns of these rows, with a forest plot of `width` characters."""
    axis = axis_of([row.estimate for row in rows], _claimed_us(result), width)
    return (
        Column[Tested]("", "delayed", lambda row: row.who, align="left", weight=9),
        Column[Tested]("", "steps", lambda row: count(row.n), weight=4),
        Column[Tested]("", "by", _by, weight=6),
        Column[Tested]("", "a step", lambda row: row.change, weight=8),
        Column[Tested]("", "slack", lambda row: row.slack, weight=3),
        Column[Tested](
            "", scale(axis, result.dose_us), lambda row: forest(row.estimate, axis, glyphs), align="left", weight=7
        ),
    )


def plot_width(rows: Sequence[Tested], width: int) -> int:
    """Return the plot's width within `width` columns, next to the delayed ranks and the effects."""
    shown = [(row.who, row.change.text if isinstance(row.change, Styled) else row.change) for row in rows]
    room = width - max((len(who) for who, _ in shown), default=0) - max((len(text) for _, text in shown), default=0)
    room -= 2 * GAP + 1  # "±" is "+-" in ASCII
    for other in (_BY, _STEPS, _SLACK):
        room -= other if room - other >= _READABLE else 0
    return min(max(room, _NARROWEST), _WIDEST)


def marks(result: ConfirmRun, rows: Sequence[Tested], glyphs: Glyphs) -> str:
    """Return the meaning of the plot's characters; empty before there is an estimate."""
    estimates = [row.estimate for row in rows]
    claimed = _claimed_us(result)
    claim = "" if claimed is None else f"claimed {duration(claimed)} (self times)"
    return legend(estimates, axis_of(estimates, claimed, _WIDEST), glyphs, claim)


def _headline(result: ConfirmRun) -> str:
    return f"{result.job}: {sentence(result)}"


def _who(row: DelayEffect) -> str:
    if row.arm == "others":
        return "all others"
    return "all ranks" if row.arm == "all" else ranks_in_words(row.ranks)


def _growth(row: DelayEffect) -> str:
    if row.growth_us is None or row.growth_low_us is None or row.growth_high_us is None:
        return "–"
    return f"{signed_duration(row.growth_us)} ± {duration((row.growth_high_us - row.growth_low_us) / 2)}"


def _slack(row: DelayEffect) -> str:
    if row.arm == "all":
        return "(control)"
    if row.slack_us is None or row.slack_low_us is None:
        return "–"
    if row.slack_low_us == 0:
        return "none" if row.slack_us < row.dose_us / 2 else f"0 to {duration(row.slack_high_us or row.dose_us)}"
    return f"{duration(row.slack_low_us)} or more"


def _mark(row: DelayEffect) -> Cell:
    return Styled(_growth(row), ALARM) if row.arm != "all" and row.low is not None and row.low > 0 else _growth(row)


def _of_delay(row: DelayEffect) -> str:
    if row.effect is None or row.low is None or row.high is None:
        return "–"
    return f"{percent(row.effect, 0)} ± {percent((row.high - row.low) / 2, 0)}"


COLUMNS = (
    Column[DelayEffect]("ranks", "delayed", _who, align="left", weight=9),
    Column[DelayEffect]("n", "steps", lambda row: count(row.n), weight=4),
    Column[DelayEffect]("dose_us", "by", lambda row: duration(row.dose_us), weight=5),
    Column[DelayEffect]("growth_us", "step grows by", _mark, weight=8),
    Column[DelayEffect]("slack_us", "slack", _slack, weight=6),
    Column[DelayEffect]("effect", "of the delay", _of_delay, weight=3),
)


def _body(result: ConfirmRun, page: Page) -> None:
    for line in (how(result), cost(result)):
        page.line(f"{line}.")
    rows, glyphs = tested(result), ASCII if page.options.ascii_only else UNICODE
    if rows:
        page.line()
        width = plot_width(rows, min(page.options.width, _PAGE))
        page.table(tested_columns(result, rows, width, glyphs), rows, limit=_RANKS_SHOWN)
        page.line(marks(result, rows, glyphs))
    page.line()
    for line in remarks(result):
        page.line(line)


VIEW = View[ConfirmRun, DelayEffect](
    main="effects", columns=COLUMNS, headline=sentence, body=_body, records=(("effects", "effect"),)
)
