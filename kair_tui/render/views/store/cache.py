"""The cache's size in a line."""

from kair_engine.results.runs.store import CacheResult
from kair_tui.render.units import plural, size
from kair_tui.render.view import View


def _headline(result: CacheResult) -> str:
    held = f"{plural(result.entries, 'parsed file')}, {size(result.bytes)} of at most {size(result.limit_bytes)}"
    if result.removed_entries:
        held = f"{plural(result.removed_entries, 'parsed file')}, {size(result.removed_bytes)}, removed"
    return f"{held}; the cache is {result.folder}"


VIEW = View[CacheResult, CacheResult](main=None, columns=(), headline=_headline, body=lambda _result, _page: None)
