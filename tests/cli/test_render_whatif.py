"""What `kair whatif` shows of who costs what, on a terminal of 80 columns."""

from dataclasses import replace
from typing import Any

from support.cli_samples import whatif
from support.kept_cases import assert_kept

from kair_engine.results.whatif import HostStops, LackOfCores, WhatifResult
from kair_tui.render.answer import PageOptions
from kair_tui.render.page import Page
from kair_tui.render.whatif import VIEW


def shown(result: WhatifResult, **look: Any) -> list[str]:  # noqa: ANN401
    page = Page(PageOptions(width=80, ascii_only=True, **look))
    assert VIEW.body is not None
    VIEW.body(result, page)
    lines = page.getvalue().splitlines()
    assert max(map(len, lines)) <= 80 or look
    return lines


def with_slowdowns(*rows: tuple[float, ...]) -> WhatifResult:
    """S_w of stages × data-parallel ranks."""
    by_rank = dict(enumerate(one for row in rows for one in row))
    return replace(whatif(), heatmap=rows, by_rank=by_rank, by_dp_rank=dict.fromkeys(range(len(rows[0])), 1.0))


READY = {0: 38e3, 1: 44e3}
NONE = dict.fromkeys(READY, 0.0)
CORES = LackOfCores(READY, dict.fromkeys(READY, 60e3), READY, NONE, NONE, throttled=0.0, halted=0.0)


def measured(**changed: Any) -> WhatifResult:  # noqa: ANN401
    """Of threads that do not look as if they stopped, what the kernel measured."""
    cores = replace(CORES, **changed)
    return replace(whatif(), host_stops=HostStops(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, {}, {}, cores=cores))


COSTS = {
    "stages by data-parallel ranks": with_slowdowns((1.0, 1.0, 1.1), (1.0, 1.2, 1.0)),
    "more ranks than columns": with_slowdowns((*[1.0] * 700, 1.5, *[1.0] * 323), (1.0,) * 1024),
    "ranks without stages": replace(with_slowdowns((1.0, 1.2, 1.0, 1.0)), by_dp_rank={}),
    "ranks that are no more than bounded": replace(with_slowdowns((1.0, 1.2)), by_rank={1: 1.2}),
    "one slow worker, as of AR": with_slowdowns((1.979, 1.015, 1.017, 1.017), (1.0, 1.0, 1.002, 1.004)),
    "noise is never dark": with_slowdowns((1.02, 1.03), (1.01, 1.0)),
    "a job that nobody slows down": with_slowdowns((1.0, 1.0)),
    "a simulation that is far off": replace(whatif(), simulation_error=0.12),
    "no core": measured(),
    "other threads of its process": measured(helpers_by_rank_us={0: 8e3, 1: 12e3}),
    "a quota and signals": measured(throttled=3.0, halted=4.0),
}


def test_who_costs_what_is_drawn_and_told() -> None:
    whole = shown(whatif())
    differ = {name: [line for line in shown(of) if line not in whole] for name, of in COSTS.items()}
    assert_kept("whatif_pages", {"whole": whole, "all columns": shown(whatif(), wide=True), **differ})


def test_ranks_that_share_delays_have_one_row() -> None:
    saved = {2: 24_000.0, 0: 1550.2, 3: 1549.9, 1: 1549.2, 4: 900.0}
    of_transfers = {"communication": 1550.0}
    alone = {0: 1.0085, 1: 1.0083, 3: 1.0113}
    lines = shown(replace(whatif(), saved_by_rank_us=saved, saved_by_operator_type_us=of_transfers, by_rank=alone))
    rows = [line.split("  ")[0] for line in lines if line.startswith("rank")]
    assert rows[1:4] == ["rank 2", "ranks 0-1, 3", "rank 4"]
    assert any(line.endswith("up to 1.0113") for line in lines)
