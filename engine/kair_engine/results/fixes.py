"""Reads fixes from text, and writes them: `rank=16`, `stage=0-2+kind=compute`, `op=ncclDev*`, `op=flash*:0.5`,
`kind=compute:even`."""

from collections.abc import Iterator
from dataclasses import replace

from kair_engine.errors import UsageError
from kair_engine.ranks import runs
from kair_engine.results.whatif import ASKED_KINDS, Fix

_FIELDS = ("rank", "host", "stage", "scope", "op", "kind")
_EVEN = "even"
_WIDEST = 1_000_000
"""One span names this many ranks at most."""
_LARGEST_FACTOR = 1_000_000
"""A duration is multiplied by this at most: a microsecond becomes a second. Sums of times stay exact, and far below
what numbers can hold."""


def parse_fix(text: str) -> Fix:
    """`key=value` pairs joined by `+`, all of which must hold: `rank=3+kind=compute`. Raises UsageError."""
    fix = Fix()
    for part in text.split("+"):
        key, found, value = part.partition("=")
        key, values = key.strip(), tuple(one.strip() for one in value.split(",") if one.strip())
        if not found or not values or key not in _FIELDS:
            raise UsageError(f"{text!r} is no fix: use {'=…, '.join(_FIELDS)}=…, joined by + where all must hold")
        if key in {"rank", "stage"}:
            numbers = _numbers(text, values)
            fix = replace(fix, ranks=numbers) if key == "rank" else replace(fix, stages=numbers)
        elif key == "kind":
            if unknown := set(values) - set(ASKED_KINDS):
                raise UsageError(f"no kind {', '.join(sorted(unknown))}: there are {', '.join(ASKED_KINDS)}")
            fix = replace(fix, kinds=tuple(kind for kind in ASKED_KINDS if kind in values))
        else:
            fix = _with_names(fix, key, values)
    return fix


def parse_scale(text: str) -> Fix:
    """`op=flash*:0.5`: a fix with the factor that its durations are multiplied by. Raises UsageError.

    `kind=compute:even` has all ranks of a role take the same: their mean.
    """
    what, found, factor = text.rpartition(":")
    if found and factor == _EVEN:
        return replace(parse_fix(what), even=True)
    try:
        scale = float(factor)
    except ValueError:
        scale = -1.0
    if not found or not 0 <= scale <= _LARGEST_FACTOR:
        raise UsageError(
            f"{text!r} names no factor from 0 to {_LARGEST_FACTOR:,}, nor {_EVEN}: op=PATTERN:0.5 is twice as fast"
        )
    return replace(parse_fix(what), scale=scale)


def fix_text(fix: Fix) -> str:
    """Return what `parse_fix` reads the fix from, or `parse_scale` one with a factor: `rank=0-3,7+kind=compute`.

    Of names that hold the signs of this grammar there is no such text (see `has_text`).
    """
    what = "+".join(f"{key}={','.join(values)}" for key, values in zip(_FIELDS, _values(fix), strict=True) if values)
    if fix.even:
        return f"{what}:{_EVEN}"
    return what if fix.scale is None else f"{what}:{repr(fix.scale).removesuffix('.0')}"


def has_text(fix: Fix) -> bool:
    """Whether the fix can be read from its text: hosts and operators can hold the signs that it is written with."""
    text = fix_text(fix)
    try:
        return (parse_scale if fix.is_scale else parse_fix)(text) == fix
    except UsageError:
        return False


def _with_names(fix: Fix, key: str, names: tuple[str, ...]) -> Fix:
    if key == "host":
        return replace(fix, hosts=names)
    return replace(fix, scopes=names) if key == "scope" else replace(fix, operators=names)


def _values(fix: Fix) -> Iterator[tuple[str, ...]]:
    """Of each of the fields."""
    yield _spans(fix.ranks)
    yield fix.hosts
    yield _spans(fix.stages)
    yield fix.scopes
    yield fix.operators
    yield fix.kinds


def _spans(numbers: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(str(first) if first == last else f"{first}-{last}" for first, last in runs(numbers))


def _numbers(text: str, values: tuple[str, ...]) -> tuple[int, ...]:
    """In order, each once."""
    result: set[int] = set()
    for value in values:
        first, _, last = value.partition("-")
        if (
            not (first.isdecimal() and (last or first).isdecimal())
            or not 0 <= int(last or first) - int(first) <= _WIDEST
        ):
            raise UsageError(f"{value!r} in {text!r} is no number: use 16 or 16-19")
        result |= set(range(int(first), int(last or first) + 1))
    return tuple(sorted(result))
