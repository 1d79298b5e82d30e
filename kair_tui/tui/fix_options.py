"""Options of `kair whatif` that are chosen on the screen: `--fix rank=3`, `--scale op=flash*:0.5`."""

import re
import shlex
from collections.abc import Iterable
from typing import Any

from kair_engine.errors import UsageError

_FACTOR = re.compile(r":\d+(\.\d+)?$")


def typed_option(text: str) -> str:
    """The option that was typed, in full: `rank=3` is `--fix rank=3`, `op=flash*:0.5` a `--scale`.

    Raises UsageError where it is none.
    """
    from kair_engine.whatif.fixes import parse_fix, parse_scale

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
    (parse_scale if flag == "--scale" else parse_fix)(value)
    return f"{flag} {value}"


def as_arguments(options: Iterable[str]) -> dict[str, Any]:
    """What a question about `kair whatif` is given for these options, each once."""
    pairs = [option.partition(" ") for option in dict.fromkeys(options)]
    fixes = [value for flag, _, value in pairs if flag == "--fix"]
    scales = [value for flag, _, value in pairs if flag == "--scale"]
    return {"fix": fixes or None, "scale": scales or None, "only_fixes": True}


def in_order(options: Iterable[str]) -> list[str]:
    """The same options in the order in which their prices come: fixes, then scales."""
    distinct = list(dict.fromkeys(options))
    return sorted(distinct, key=lambda option: option.startswith("--scale "))


def short(option: str) -> str:
    """`rank=3` for `--fix rank=3`; a scale keeps its flag."""
    return option.removeprefix("--fix ")
