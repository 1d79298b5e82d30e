"""What a user wants to see fixed: `rank=16`, `host=node3`, `stage=2`, `op=ncclDev*`, `kind=input`, `op=flash*:0.5`."""

import re
from dataclasses import dataclass, replace
from fnmatch import translate
from typing import Literal

from kair_engine.errors import UsageError

FixKind = Literal["compute", "communication", "input", "host", "gc"]
KINDS: tuple[FixKind, ...] = ("compute", "input", "host", "communication", "gc")
"""What a part of a step's time can be; delays that are nobody's are none of these."""
_FIELDS = ("rank", "host", "stage", "op", "kind")


@dataclass(frozen=True)
class Fix:
    """Which operations a scenario changes: those that meet all that is given; an empty field stands for all."""

    text: str = ""
    """As it was asked for."""
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    stages: tuple[int, ...] = ()
    operators: tuple[str, ...] = ()
    """Shell patterns (* ? []) of operators or operation types."""
    kinds: tuple[FixKind, ...] = ()
    """Of operators `host` stands for garbage collection too, as in triage's classes."""
    scale: float | None = None
    """Their durations times this; None brings them to their peers' ideal. Delays only where kinds name `host`."""

    ideal_of_all: bool = False
    """The ideal is the one of all ranks, theirs among them: where what a part alone costs is asked for."""

    def named(self, operator: str) -> bool:
        """Whether an operator's name fits a pattern."""
        return not self.operators or any(re.match(translate(one), operator) for one in self.operators)


def parse_fix(text: str) -> Fix:
    """`key=value` pairs joined by `+`, all of which must hold: `rank=3+kind=compute`. Raises UsageError."""
    fix = Fix(text)
    for part in text.split("+"):
        key, found, value = part.partition("=")
        key, values = key.strip(), tuple(one.strip() for one in value.split(",") if one.strip())
        if not found or not values or key not in _FIELDS:
            raise UsageError(f"{text!r} is no fix: use {'=…, '.join(_FIELDS)}=…, joined by + where all must hold")
        if key in {"rank", "stage"}:
            numbers = _numbers(text, values)
            fix = replace(fix, ranks=numbers) if key == "rank" else replace(fix, stages=numbers)
        elif key == "kind":
            if unknown := set(values) - set(KINDS):
                raise UsageError(f"no kind {', '.join(sorted(unknown))}: there are {', '.join(KINDS)}")
            fix = replace(fix, kinds=tuple(kind for kind in KINDS if kind in values))
        else:
            fix = replace(fix, hosts=values) if key == "host" else replace(fix, operators=values)
    return fix


def parse_scale(text: str) -> Fix:
    """`op=flash*:0.5`: a fix with the factor that its durations are multiplied by. Raises UsageError."""
    what, found, factor = text.rpartition(":")
    try:
        scale = float(factor)
    except ValueError:
        scale = -1.0
    if not found or not 0 <= scale < float("inf"):
        raise UsageError(f"{text!r} names no factor: use op=PATTERN:0.5 for twice as fast")
    return replace(parse_fix(what), text=text, scale=scale)


def _numbers(text: str, values: tuple[str, ...]) -> tuple[int, ...]:
    result: list[int] = []
    for value in values:
        first, _, last = value.partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()) or int(last or first) - int(first) > 1_000_000:
            raise UsageError(f"{value!r} in {text!r} is no number: use 16 or 16-19")
        result += range(int(first), int(last or first) + 1)
    return tuple(result)
