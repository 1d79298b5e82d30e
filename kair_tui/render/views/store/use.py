"""The choice of a job, confirmed."""

from kair_engine.results.runs.store import UseResult
from kair_tui.render.view import View

VIEW = View[UseResult, UseResult](
    main=None,
    columns=(),
    headline=lambda result: f"{result.name} is the job that commands take when none is named",
    body=lambda _result, _page: None,
)
