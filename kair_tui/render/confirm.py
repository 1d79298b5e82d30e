"""What delays showed, for people: by how much the step grows for whom, and the verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kair_engine.results.confirm import ConfirmRun, DelayEffect
from kair_tui.render.answer import ALARM, Cell, Column, Styled
from kair_tui.render.units import count, duration, percent, plural, ranks_in_words, signed_duration
from kair_tui.render.view import View

if TYPE_CHECKING:
    from kair_tui.render.page import Page

VERDICTS: Final = {
    "confirmed": "CONFIRMED",
    "withdrawn": "WITHDRAWN",
    "shared": "SHARED",
    "not_here": "NOT HERE",
    "open": "OPEN",
}
_WIDE: Final = 33
"""Characters of a forest plot: from −½ to 1½ doses."""
_FROM, _TO = -0.5, 1.5


def verdict_in_words(result: ConfirmRun) -> str:
    """What it means, as a sentence."""
    who = ranks_in_words(result.accused) if result.accused else ""
    holds = "holds" if len(result.accused) == 1 else "hold"
    if result.verdict == "confirmed":
        of = ranks_in_words(result.held_up_by)
        worth = f": a fix is worth {duration(result.saving_low_us)} a step or more" if result.saving_low_us else ""
        return f"{of} {'holds' if len(result.held_up_by) == 1 else 'hold'} up the job{worth}"
    if result.verdict == "withdrawn":
        return f"{who} {'does' if len(result.accused) == 1 else 'do'} not hold up the job: others do, or nobody"
    if result.verdict == "shared":
        return f"several are equally late: a fix of {who} alone gains little" if who else "no rank alone does"
    if result.verdict == "not_here":
        place = result.place.replace("_", " ")
        return f"delays {place} lengthen no step: the network, a loader or a device that is behind absorbs them"
    seen = "" if result.would_see_us is None else f"; {duration(result.would_see_us)} would have been seen"
    more = f"; about {count(result.steps_needed)} steps more would tell" if result.steps_needed else ""
    return f"not decided whether {who} {holds} up the job{seen}{more}" if who else f"not decided{seen}{more}"


def confirmed_in_words(result: ConfirmRun) -> str:
    """The same beside an accusation."""
    steps = f", steps {result.first_step} to {result.last_step}" if result.first_step is not None else ""
    return f"kair confirm{steps}: {verdict_in_words(result)}"


def _headline(result: ConfirmRun) -> str:
    who = ranks_in_words(result.accused) if result.accused else "a random half"
    share = f" ({percent(result.dose_us / result.step_time_us)})" if result.step_time_us else ""
    cost = f"cost {result.cost_us / result.step_time_us:.1f} steps" if result.step_time_us else "cost unknown"
    place = result.place.replace("_", " ")
    p = "" if result.p is None or result.verdict not in ("confirmed", "withdrawn") else f", p {_p(result.p)}"
    return (
        f"{result.job}: {VERDICTS[result.verdict]}{p} · {who}, {place}, d {duration(result.dose_us)}{share} · "
        f"{plural(result.steps_used, 'step')}, {cost} (budget {percent(result.budget)})"
    )


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"= {value:.3f}"


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


def forest(row: DelayEffect) -> str:
    """The interval of an effect on a line, with a mark where nothing, and one where all, of the dose is felt."""
    if row.effect is None or row.low is None or row.high is None:
        return ""
    cells = [" "] * _WIDE
    for value in (0.0, 1.0):
        cells[_at(value)] = "│"
    for at in range(_at(row.low), _at(row.high) + 1):
        cells[at] = "┼" if cells[at] == "│" else "─"
    cells[_at(row.effect)] = "●"
    return "".join(cells)


def _at(value: float) -> int:
    share = (min(max(value, _FROM), _TO) - _FROM) / (_TO - _FROM)
    return round(share * (_WIDE - 1))


def _mark(row: DelayEffect) -> Cell:
    return Styled(_growth(row), ALARM) if row.arm != "all" and row.low is not None and row.low > 0 else _growth(row)


COLUMNS = (
    Column[DelayEffect]("ranks", "delayed", _who, align="left", weight=9),
    Column[DelayEffect]("n", "steps", lambda row: count(row.n), weight=4),
    Column[DelayEffect]("dose_us", "by", lambda row: duration(row.dose_us), weight=5),
    Column[DelayEffect]("growth_us", "step grows by", _mark, weight=8),
    Column[DelayEffect]("slack_us", "slack", _slack, weight=6),
    Column[DelayEffect]("effect", "0 to all of the delay", forest, align="left", weight=3),
)


def _body(result: ConfirmRun, page: Page) -> None:
    page.line(f"{verdict_in_words(result)}.")
    page.line()
    page.table(COLUMNS, result.effects)
    page.line()
    if result.saving_us is not None and result.accused and result.verdict in ("confirmed", "open"):
        low, high = max(result.saving_low_us or 0.0, 0.0), result.saving_high_us or 0.0
        faster = f"{duration(result.dose_us)} faster" if len(result.accused) == 1 else "each faster by the delay"
        saved = f"{duration(result.saving_us)} a step ({duration(low)} to {duration(high)})"
        page.line(f"Were {ranks_in_words(result.accused)} {faster}, the job would gain {saved}.")
    if result.worth is not None:
        worth = result.worth
        high_text = "more" if worth.high_us is None else duration(worth.high_us)
        page.line(
            f"A fix is worth {duration(worth.worth_us)} a step ({duration(worth.low_us)} to {high_text}), by "
            f"{plural(len(worth.doses), 'dose')} up to {duration(worth.doses[-1].dose_us)}."
        )
    if result.excess_us is not None and result.excess_us > 0:
        page.line(f"By self times the excess is {duration(result.excess_us)}.")
    if result.noise_us is not None:
        page.line(f"Undelayed steps vary by {duration(result.noise_us)} beyond what the ranks' own times explain.")
    if result.ended_because:
        page.line(f"The delays ended: {result.ended_because}.")


VIEW = View[ConfirmRun, DelayEffect](
    main="effects", columns=COLUMNS, headline=_headline, body=_body, records=(("effects", "effect"),)
)
