"""What `kair whatif` shows of who costs what, on a terminal of 80 columns."""

from dataclasses import replace

from support.cli_samples import whatif

from kair_engine.results.whatif import HostStops, LackOfCores
from kair_tui.render.answer import PageOptions
from kair_tui.render.page import Page
from kair_tui.render.units import duration
from kair_tui.render.whatif import VIEW, WhatifInWords


def shown(result: WhatifInWords, **look: object) -> list[str]:
    page = Page(PageOptions(width=80, **look))  # type: ignore[arg-type]
    assert VIEW.body is not None
    VIEW.body(result, page)
    lines = page.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    return lines


def heatmap(result: WhatifInWords, **look: object) -> list[str]:
    """The lines from its title to its scale."""
    lines = shown(result, **look)
    begin = next(at for at, line in enumerate(lines) if line.startswith("what each worker costs"))
    return lines[begin : lines.index("", begin)]


def with_costs(*rows: tuple[float, ...]) -> WhatifInWords:
    """Of stages × data-parallel ranks, as shares of the step."""
    result = whatif()
    saved = tuple(tuple(share * result.step_time_us for share in row) for row in rows)
    return replace(result, saved_heatmap_us=saved, by_dp_rank=dict.fromkeys(range(len(rows[0])), 1.0))


def test_rows_columns_and_glyphs_of_the_heatmap_are_explained() -> None:
    assert heatmap(with_costs((0.0, 0.0, 0.1), (0.0, 0.2, 0.0)), ascii_only=True) == [
        "what each worker costs (rows: stages, columns: data-parallel ranks)",
        "stage 0   |  =| up to 10.0 %",
        "stage 1   | @ | up to 20.0 %",
        "columns   0 to 2, from the left",
        "scale     | .:-=+*#%@| from nothing to 20.0 % of the step",
    ]


def test_more_ranks_than_columns_are_drawn_together() -> None:
    lines = heatmap(with_costs(tuple(0.5 * (rank == 700) for rank in range(1024)), (0.0,) * 1024))
    assert lines[1].count("█") == 1
    assert lines[3] == "columns   0 to 1023, from the left; a glyph is the worst of 19.0 columns"


def test_ranks_without_stages_are_one_row() -> None:
    result = replace(with_costs((0.0, 0.2, 0.0, 0.0)), by_dp_rank={})
    assert heatmap(result, ascii_only=True)[:2] == [
        "what each worker costs (columns: ranks)",
        "ranks     | @  | up to 20.0 %",
    ]


def test_a_job_that_nobody_slows_down_has_no_heatmap() -> None:
    assert not any(line.startswith("what each") for line in shown(with_costs((0.0, 0.0))))


def test_the_replay_says_what_only_delays_explain() -> None:
    text = " ".join(" ".join(shown(whatif())).split())
    assert "0.1 % off the recording" in text
    assert "4.0 % of the step rests on them alone" in text


def test_what_a_part_adds_alone_is_shown_to_who_asks_for_all_columns() -> None:
    """Its price is what its fix saves of the job, and nothing else stands beside that."""
    text = " ".join(" ".join(shown(whatif())).split())
    assert "90.0 % of the slowdown would go if the slowest 3 % of workers (rank 1) were ideal" in text
    assert "rank 1 +12.0 ms 12.0 %" in text
    assert "alone" not in text.replace("rests on them alone", "")
    page = Page(PageOptions(width=80, wide=True))
    assert VIEW.body is not None
    VIEW.body(whatif(), page)
    wide = " ".join(page.getvalue().split())
    assert "(rank 1) were ideal; alone in an ideal job it adds 95.0 % of it" in wide
    assert "alone: what the part adds to an ideal job" in wide


def test_what_was_measured_of_threads_is_shown_beside_what_looks_like_stops() -> None:
    ready = {0: 38e3, 1: 44e3}
    none = dict.fromkeys(ready, 0.0)
    cores = LackOfCores(ready, dict.fromkeys(ready, 60e3), ready, none, none, throttled=0.0, halted=0.0)
    quiet = HostStops(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, {}, {}, cores=cores)
    result = replace(whatif(), host_stops=quiet)
    text = " ".join(" ".join(shown(result)).split())
    step = duration(result.step_time_us)
    assert f"measured: the mean rank was ready and had no core for 41.0 ms of each step of {step}" in text
    assert "(38.0 ms to 44.0 ms)" in text
    assert "threads stop" not in text and "quota" not in text and "other threads" not in text
    helped = replace(result, host_stops=replace(quiet, cores=replace(cores, helpers_by_rank_us={0: 8e3, 1: 12e3})))
    assert "other threads of its process computed 10.0 ms" in " ".join(" ".join(shown(helped)).split())
    limited = replace(result, host_stops=replace(quiet, cores=replace(cores, throttled=3.0, halted=4.0)))
    text = " ".join(" ".join(shown(limited)).split())
    assert "a quota of CPU time stopped the mean rank's process 3.0 times a step" in text
    assert "signals (SIGSTOP) stopped the mean rank's process 4.0 times a step" in text
