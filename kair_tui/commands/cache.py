"""`kair cache`: how much the parsed traces take, and their removal."""

from typing import Annotated, Literal

from kair.app.places import cache_limit, cache_root
from kair_engine.results.store import CacheResult
from kair_tui.cli.options import Argument

RENDERER = "kair_tui.render.store:CACHE"


def run(action: Annotated[Literal["clear"] | None, Argument("clear removes everything.")] = None) -> CacheResult:
    """Asks the cache, or clears it."""
    from kair_engine.recording.cache import CacheSize, cache_size, clear, distrust_of

    root = cache_root()
    removed = clear(root) if action == "clear" else CacheSize()
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
