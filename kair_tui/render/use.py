"""The choice of a job, confirmed."""

from kair_tui.render.view import View
from kair_tui.stored import UseResult

VIEW = View[UseResult, UseResult](
    main=None,
    columns=(),
    headline=lambda result: f"{result.name} is the job that commands take when none is named",
    body=lambda _result, _page: None,
)
