"""What `kair whatif` shows of who costs what, on a terminal of 80 columns."""

from dataclasses import replace
from typing import Any

from support.cli_samples import whatif
from support.kept_cases import assert_kept

from kair_engine.results.whatif import HostStops, LackOfCores
from kair_tui.render.answer import PageOptions
from kair_tui.render.page import Page
from kair_tui.render.whatif import VIEW, WhatifInWords


def shown(result: WhatifInWords, **look: Any) -> list[str]:  # noqa: ANN401
    page = Page(PageOptions(width=80, ascii_only=True, **look))
    assert VIEW.body is not None
    VIEW.body(result, page)
    lines = page.getvalue().splitlines()
    assert max(map(len, lines)) <= 80 or look
    return lines


def with_costs(*rows: tuple[float, ...]) -> WhatifInWords:
    """Of stages × data-parallel ranks, as shares of the step."""
    result = whatif()
    saved = tuple(tuple(share * result.step_time_us for share in row) for row in rows)
    return replace(result, saved_heatmap_us=saved, by_dp_rank=dict.fromkeys(range(len(rows[0])), 1.0))


READY = {0: 38e3, 1: 44e3}
NONE = dict.fromkeys(READY, 0.0)
CORES = LackOfCores(READY, dict.fromkeys(READY, 60e3), READY, NONE, NONE, throttled=0.0, halted=0.0)


def measured(**changed: Any) -> WhatifInWords:  # noqa: ANN401
    """Of threads that do not look as if they stopped, what the kernel measured."""
    cores = replace(CORES, **changed)
    return replace(whatif(), host_stops=HostStops(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, {}, {}, cores=cores))


COSTS = {
    "stages by data-parallel ranks": with_costs((0.0, 0.0, 0.1), (0.0, 0.2, 0.0)),
    "more ranks than columns": with_costs(tuple(0.5 * (rank == 700) for rank in range(1024)), (0.0,) * 1024),
    "ranks without stages": replace(with_costs((0.0, 0.2, 0.0, 0.0)), by_dp_rank={}),
    "a job that nobody slows down": with_costs((0.0, 0.0)),
    "no core": measured(),
    "other threads of its process": measured(helpers_by_rank_us={0: 8e3, 1: 12e3}),
    "a quota and signals": measured(throttled=3.0, halted=4.0),
}


def test_who_costs_what_is_drawn_and_told() -> None:
    whole = shown(whatif())
    differ = {name: [line for line in shown(of) if line not in whole] for name, of in COSTS.items()}
    assert_kept("whatif_pages", {"whole": whole, "all columns": shown(whatif(), wide=True), **differ})
