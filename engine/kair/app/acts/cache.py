"""Clear the cache of parsed traces, and say what it takes."""

from kair.app.places import cache_limit, cache_root
from kair_engine.recording.cache import CacheSize, cache_size, clear, distrust_of
from kair_engine.results.store import CacheResult


def cache_state(*, cleared: bool) -> CacheResult:
    """Return how much space the cache takes; with `cleared`, empty it first."""
    root = cache_root()
    removed = clear(root) if cleared else CacheSize()
    left = cache_size(root)
    return CacheResult(
        folder=str(root),
        entries=left.entries,
        bytes=left.bytes,
        limit_bytes=cache_limit(),
        removed_entries=removed.entries,
        removed_bytes=removed.bytes,
        warnings=distrust_of(root),
    )
