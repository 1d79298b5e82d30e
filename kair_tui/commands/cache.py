"""`kair cache`: how much the parsed traces take, and their removal."""

from kair_engine.results.store import CacheResult

RENDERER = "kair_tui.render.store:CACHE"


def run_show() -> CacheResult:
    """Ask the cache how much it holds."""
    from kair.app.acts.cache import cache_state

    return cache_state(cleared=False)


def run_clear() -> CacheResult:
    """Remove everything that the cache holds."""
    from kair.app.acts.cache import cache_state

    return cache_state(cleared=True)
