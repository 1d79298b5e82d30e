"""Fixes that are chosen on the screen, as the options of `kair whatif`: `--fix rank=3`, `--scale op=flash*:0.5`."""

import re
import shlex
from collections.abc import Iterable
from typing import Any

from kair_engine.errors import UsageError
from kair_engine.results.fix import Fix
from kair_engine.whatif.fixes import fix_text, parse_fix, parse_scale
from kair_tui.render.words.triage import fix_option

_FACTOR = re.compile(r":(\d+(\.\d+)?|even)$")


def typed_fix(text: str) -> Fix:
    """The fix that was typed: `rank=3` is `--fix rank=3`, `op=flash*:0.5` a `--scale`.

    Raises UsageError where it is none.
    """
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
    return (parse_scale if flag == "--scale" else parse_fix)(value)


def as_arguments(fixes: Iterable[Fix]) -> dict[str, Any]:
    """What a question about `kair whatif` is given for these fixes, each once."""
    distinct = list(dict.fromkeys(fixes))
    plain = [fix_text(fix) for fix in distinct if not fix.is_scale]
    scales = [fix_text(fix) for fix in distinct if fix.is_scale]
    return {"fix": plain or None, "scale": scales or None, "only_fixes": True}


def in_order(fixes: Iterable[Fix]) -> list[Fix]:
    """The same in the order in which their prices come: fixes, then scales."""
    return sorted(dict.fromkeys(fixes), key=lambda fix: fix.is_scale)


def short(fix: Fix) -> str:
    """`rank=3` for `--fix rank=3`; a scale keeps its flag."""
    return fix_option(fix).removeprefix("--fix ")
