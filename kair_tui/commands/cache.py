"""`kair cache`: how much the parsed traces take, and their removal."""

from typing import Annotated, Literal

from kair_engine.results.store import CacheResult
from kair_tui.cli.options import Argument

RENDERER = "kair_tui.render.store:CACHE"


def run(action: Annotated[Literal["clear"] | None, Argument("clear removes everything.")] = None) -> CacheResult:
    """Ask the cache, or clear it."""
    from kair.app.acts.cache import cache_state

    return cache_state(cleared=action == "clear")
