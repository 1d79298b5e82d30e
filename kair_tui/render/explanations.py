"""Evidence about the parts that could make a rank slow, in words."""

import re
from collections.abc import Sequence
from typing import Final

from kair_engine.results.evidence import Explanation
from kair_engine.trace.measures import MEASURES
from kair_tui.render.text import spaced
from kair_tui.render.units import and_more, clock, count, duration, percent, plural

_IF_ASSUMED: Final = " (if its device is the host's of the same number, as is assumed)"
_SHOWN: Final = 3
"""Parts that were ruled out, and that nobody measured; `-o wide` has all, with the commands that measure them."""


def explanation_in_words(one: Explanation) -> str:
    """Return what is known of the part, with figures and units: a sentence without its full stop."""
    part = _of_rank(part_in_words(one.part), one)
    if one.word == "excluded":
        return f"{part}: looked for and absent"
    if one.word == "not_tied":
        return f"{part}: measured on devices that could not be matched with a rank"
    if one.word == "not_observed":
        return f"{part}: not measured"
    return f"{part}: {'; '.join([*_figures(one), *_why(one)])}"


def _of_rank(words: str, one: Explanation) -> str:
    """Return `rank 3's power limit` for `its power limit`."""
    return re.sub(r"\bits\b", f"rank {one.rank}'s", words, count=1)


def explanation_lines(found: Sequence[Explanation], *, wide: bool = False) -> list[str]:
    """Return what is known of all parts of one finding: the explanation first, then excluded or unobserved parts."""
    lines = []
    for one in found:
        if one.word == "explains":
            lines.append(f"explained by {explanation_in_words(one)}")
        elif one.word == "consistent":
            lines.append(f"may be: {explanation_in_words(one)}; {_why_not_sure(one)}")
            lines += [f"if so: {remedy}" for remedy in (remedy_of(one),) if remedy]
        elif one.word == "seen":
            lines.append(f"ruled out: {explanation_in_words(one)}")
    if excluded := [one for one in found if one.word == "excluded"]:
        assumed = any(one.joined_by in ("ordinal", "local_rank") for one in excluded)
        lines.append(
            f"ruled out: {_some([part_in_words(one.part) for one in excluded], wide)}{_IF_ASSUMED if assumed else ''}"
        )
    if loose := [part_in_words(one.part) for one in found if one.word == "not_tied"]:
        lines.append(f"read, but not matched with this rank (see the warning): {'; '.join(loose)}")
    unseen = [one for one in found if one.word == "not_observed"]
    if unseen:
        names = [part_in_words(one.part) + (f" ({one.command})" if wide and one.command else "") for one in unseen]
        lines.append(f"not measured: {_some(names, wide)}")
    return lines


def _some(parts: Sequence[str], wide: bool) -> str:
    shown = parts if wide else parts[:_SHOWN]
    return f"{'; '.join(shown)}{and_more(len(parts) - len(shown))}"


def _why_not_sure(one: Explanation) -> str:
    if one.joined_by == "ordinal":
        return "it is assumed that its process numbers devices as the driver does, because it sees all of them"
    if one.joined_by == "local_rank":
        return "it is assumed by their numbers that this is the rank's device"
    if one.predicted_us is None:
        return "its cost is unknown"
    if one.measured_us and one.predicted_us > 2 * one.measured_us:
        return "it would cost more than was lost"
    if one.tried and one.p_value is None:
        return "too few control samples to compare with"
    return "another part explains as much"


def part_in_words(part: str) -> str:
    """Return `thermal throttling`."""
    from kair_engine.evidence.parts import PARTS  # loads Polars, which answers without evidence do not need

    row = PARTS.get(part)
    return spaced(part) if row is None else row.words


def remedy_of(one: Explanation) -> str | None:
    """Return what fixes the part; None if unknown."""
    from kair_engine.evidence.parts import PARTS

    row = PARTS.get(one.part)
    if row is None or not row.do:
        return one.command and f"Undo it on rank {one.rank}: {one.command}"
    who = f"rank {one.rank}"
    return row.do.format(who=who, Who=who.capitalize(), rank=one.rank, device=one.device or "its device")


def _figures(one: Explanation) -> list[str]:
    if one.measure is None or one.own is None or one.at_ns is not None:
        return []
    row = MEASURES.get(one.measure)
    unit = one.unit or (row.unit if row is not None else "")
    others = [
        f"{whose} {_value(of, unit)}" for whose, of in (("peers", one.peers), ("before", one.before)) if of is not None
    ]
    compared = f" ({', '.join(others)})" if others else ""
    return [f"{spaced(one.measure) if row is None else row.words} {_value(one.own, unit)}{compared}"]


def _value(value: float, unit: str) -> str:
    """Return a value with its unit; seconds per second are a share of the time."""
    if unit == "s/s":
        return percent(value, 1 if abs(value) < 0.1 else 0)
    if unit in ("B", "B/s"):
        return f"{_bytes(value)}{unit[1:]}"
    number = count(round(value)) if abs(value) >= 999.5 else f"{value:.3g}"
    if unit == "1/s":
        return f"{number} a second"
    return number if unit in ("", "1") else f"{number} {unit}"


def _bytes(value: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} B"


def _why(one: Explanation) -> list[str]:
    reasons = []
    if one.at_ns is not None:
        row = MEASURES.get(one.measure or "")
        code = f" {count(int(one.own))}" if one.own is not None else ""
        what = spaced(one.measure or "") if row is None else row.words
        reasons.append(f"{what}{code} {_when(one)}".strip())
    if one.text:
        reasons.append(one.text)
    if one.word == "seen":
        reasons.append("the same before" if _was_before(one) else "the same on healthy ranks")
    elif one.predicted_us is not None and one.measured_us:
        share = percent(one.predicted_us / one.measured_us, 0)
        reasons.append(f"enough for {share} of the delay")
    if one.tried:
        reasons.append(_of_controls(one))
    return reasons


def _of_controls(one: Explanation) -> str:
    """Return on how many healthy ranks and times the rule fires too."""
    fired = count(one.fired) if one.fired else "none"
    return f"{fired} of {plural(one.tried, 'control sample')} {'show' if one.fired > 1 else 'shows'} it"


def _was_before(one: Explanation) -> bool:
    """Return whether the rank itself showed it before, while its peers did not."""
    return one.before is not None and not one.fired


def _when(one: Explanation) -> str:
    at_ns = one.at_ns or 0
    at = clock(at_ns)
    bound = f" ± {duration(one.bound_ns / 1e3)}" if one.bound_ns else ""
    if one.since_ns is None:
        return f"at {at} UTC{bound}"
    apart = (one.since_ns - at_ns) / 1e3
    return f"at {at} UTC{bound}, {duration(abs(apart))} {'before' if apart >= 0 else 'after'} it became slow"
