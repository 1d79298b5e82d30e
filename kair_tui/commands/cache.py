"""`kair cache`: shows how much space parsed traces take, and removes them."""

from kair_engine.results.store import CacheResult

RENDERER = "kair_tui.render.store:CACHE"


def run_show() -> CacheResult:
    """Return how much the cache holds."""
    from kair.app.acts.cache import cache_state

    return cache_state(cleared=False)


def run_clear() -> CacheResult:
    """Empty the cache, and return how much it holds then."""
    from kair.app.acts.cache import cache_state

    return cache_state(cleared=True)
