"""Sentences of evidence: the template of each kind, filled with its figures."""

import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from kair_engine.results.evidence_kinds import KERNEL_FAMILIES, Evidence
from kair_tui.render.text import short_name
from kair_tui.render.units import (
    count,
    duration,
    durations,
    first_ranks,
    its,
    one_decimal,
    percent,
    plural,
    ranks_in_words,
    ranks_named,
    ratio,
    significant,
    size,
    spans,
    them,
    whole_percent,
)


def sentence_of(evidence: Evidence) -> str:
    """Return the evidence as a sentence."""
    return filled(evidence.wording(), evidence)


def filled(template: str, source: object) -> str:
    """Fill a template with attributes of `source`, or with its values if it is a mapping."""
    return _FILLER.vformat(template, (), source if isinstance(source, Mapping) else _Attributes(source))


def kernels_in_words(what: str) -> str:
    """Return the name of a family of kernels, `attention kernels`; for an operator its short name."""
    return KERNEL_FAMILIES.get(what) or short_name(what)


class _Attributes(dict[str, Any]):
    """The names in a template: any attribute of a record, or `self` for the record."""

    def __init__(self, record: object) -> None:
        super().__init__(self=record)

    def __missing__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self["self"], name)


class _Filler(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:  # noqa: ANN401
        if format_spec.startswith("?"):
            of_one, _, of_several = format_spec[1:].partition("|")
            return of_one if (len(value) if isinstance(value, Sequence) else value) == 1 else of_several
        how, _, noun = format_spec.partition(" ")
        if how == "named":
            return ranks_named(value) if value else noun
        if noun and how in _OF_NOUN:
            return _OF_NOUN[how](int(value), noun)
        formatted = _FORMATS.get(format_spec)
        return str(super().format_field(value, format_spec)) if formatted is None else formatted(value)


def _some(number: int, noun: str) -> str:
    return noun if number == 1 else plural(number, noun)


def _rate(bytes_per_s: float) -> str:
    megabits = bytes_per_s * 8 / 1e6
    return f"{significant(megabits / 1e3)} Gb/s" if megabits >= 1e3 else f"{significant(megabits)} Mb/s"


def _range_of_peers(one: Any) -> str:  # noqa: ANN401
    least, most = duration(one.peers_least_us), duration(one.peers_most_us)
    return least if least == most else f"{least} to {most}"


def _spread(one: Any) -> str:  # noqa: ANN401
    least, most = count(round(one.least_per_call)), count(round(one.most_per_call))
    return "" if least == most else f" ({least} to {most})"


def _per_unit(one: Any) -> str:  # noqa: ANN401
    """Return three digits of small times: `0.158 µs`."""
    own, usual = (f"{us:.3g} µs" if us < 100 else duration(us) for us in (one.us_per_unit, one.usual_us_per_unit))
    return f"the same {own}" if own == usual else f"{own} (peers {usual})"


def _takes_instead(one: Any) -> str:  # noqa: ANN401
    after, before = duration(one.after_us), duration(one.before_us)
    return f"still takes {after}" if after == before else f"takes {after} instead of {before}"


def _why_as_long(one: Any) -> str:  # noqa: ANN401
    return ": others are as late" if one.ranks and duration(one.after_us) == duration(one.before_us) else ""


_FILLER: Final = _Filler()
_OF_NOUN: Final[Mapping[str, Callable[[int, str], str]]] = {"plural": plural, "some": _some}
_FORMATS: Final[Mapping[str, Callable[[Any], str]]] = {
    "count": lambda value: count(int(value)),
    "decimal": one_decimal,
    "duration": duration,
    "durations": durations,
    "its": its,
    "first ranks": first_ranks,
    "kernels": lambda value: kernels_in_words(str(value)),
    "name": lambda value: short_name(str(value)),
    "own model": lambda value: str(value).partition("; ")[0],
    "peers' model": lambda value: str(value).partition("; ")[2].removeprefix("peers' "),
    "per unit": _per_unit,
    "percent": percent,
    "range of peers": _range_of_peers,
    "rate": _rate,
    "ratio": ratio,
    "rounded": lambda value: count(round(value)),
    "significant": significant,
    "size": lambda value: size(round(value)),
    "spans": spans,
    "spread": _spread,
    "takes instead": _takes_instead,
    "them": them,
    "who": ranks_in_words,
    "whole": lambda value: str(int(value)),
    "whole percent": whole_percent,
    "why as long": _why_as_long,
}
"""Formats of templates by name; anything else is a format of Python's."""
