"""An import, confirmed."""

from kair_engine.results.runs.store import ImportResult
from kair_tui.render.units import plural
from kair_tui.render.view import View


def _headline(result: ImportResult) -> str:
    return (
        f"{result.name} is in the store: {plural(len(result.ranks), 'rank')}, "
        f"{plural(len(result.steps), 'step')}, {plural(result.operations, 'operation')} "
        f"(kair triage {result.name} analyses it)"
    )


VIEW = View[ImportResult, ImportResult](main=None, columns=(), headline=_headline, body=lambda _result, _page: None)
