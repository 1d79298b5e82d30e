"""The overview: pictures of it, and what its keys do."""

import re
from dataclasses import replace

import pytest
from support.answers import triaged
from support.places import SAMPLES
from support.screen_text import assert_says, go, opened, played, screen_lines, screen_text, type_line, until

from kair_engine.ranks import Rank
from kair_engine.results.triage import TriageResult
from kair_tui.render.terminal import Look
from kair_tui.render.triage import triage_in_words
from kair_tui.tui.frame.app import KairApp
from kair_tui.tui.frame.output import help_lines
from kair_tui.tui.screens.overview import OverviewScreen
from kair_tui.tui.widgets.grid import RankGrid
from kair_tui.tui.widgets.header_and_footer import StatusLine
from kair_tui.tui.widgets.lists import Findings
from kair_tui.tui.widgets.step_strip import StepStrip
from kair_tui.tui.widgets.styles import verdict_style

SLOW = str(SAMPLES / "slow_operator")
TWO_HOSTS = str(SAMPLES / "two_hosts_slow_input")
HEALTHY = str(SAMPLES / "healthy")
PIPELINE = str(SAMPLES / "pipeline_slow_operator")


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_places")]


@played
async def test_the_cursor_begins_on_the_worst_rank_and_tells_of_the_rank_it_is_on() -> None:
    async with opened(SLOW) as (app, pilot):
        status, grid = app.screen.query_one(StatusLine), app.screen.query_one(RankGrid)
        assert grid.has_focus
        assert status.text.startswith("rank 2 · node0 · score 45.188 ▲ slow")
        grid.action_move(0, 1)
        await pilot.pause()
        assert status.text.startswith("rank 3 · node0 · score 0.055 · self time")
        grid.action_move(0, 1)
        grid.action_next_flagged(1)
        await pilot.pause()
        assert grid.rank == 2


@played
async def test_a_range_of_steps_narrows_everything_until_all_are_wanted_again() -> None:
    async with opened(SLOW) as (app, pilot):
        screen, strip = app.screen, app.screen.query_one(StepStrip)
        assert isinstance(screen, OverviewScreen)
        strip.focus()
        strip.action_move(1)
        strip.action_anchor()
        strip.action_move(4)
        await go(app, pilot, "enter")
        assert screen.session.steps == (5, 6, 7, 8, 9)
        assert_says(app, "only steps 5-9", "persistent, steps 5-9")
        assert screen.commands()[1] == f"kair triage {SLOW} --step 5-9"
        await go(app, pilot, "A")
        assert "persistent, steps 4-15" in screen_text(app)
        assert "only steps" not in screen_text(app)


@played
async def test_a_filter_leaves_the_other_ranks_blank_and_an_empty_one_brings_them_back() -> None:
    async with opened(TWO_HOSTS) as (app, pilot):
        await type_line(pilot, "slash", "host:node1")
        shown = screen_text(app)
        assert "4 of 8 ranks · filter host:node1" in shown
        assert "node1  4 · 0.569" in shown
        assert "0 · 0.248" not in shown
        await type_line(pilot, "slash", "")
        assert "0 · 0.248" in screen_text(app)


@played
async def test_a_filter_that_is_wrong_says_so_and_changes_nothing() -> None:
    async with opened(SLOW) as (app, pilot):
        before = screen_text(app).splitlines()[:20]
        await type_line(pilot, "slash", "size:3")
        assert "no field 'size' to filter by; there are: rank, host" in screen_text(app)
        assert screen_text(app).splitlines()[:20] == before


@played
async def test_hosts_come_in_the_order_of_their_worst_rank_when_sorted_by_score() -> None:
    async with opened(TWO_HOSTS) as (app, pilot):
        await pilot.press("s", "s")
        assert "sorted by score" in screen_text(app)
        lines = [line.split()[0] for line in screen_text(app).splitlines() if line.startswith(" node")]
        assert lines == ["node1", "node0"]


@played
async def test_below_the_smallest_size_only_that_is_said() -> None:
    async with opened(SLOW, size=(60, 20)) as (app, pilot):
        assert "straggler: rank 2" in screen_text(app)
        # The program hears of the new size when it comes to it.
        await pilot.resize_terminal(59, 20)
        await until(pilot, lambda: screen_text(app).split("\n", 1)[0] == "too small: 59x20, needs 60x20")
        assert "straggler" not in screen_text(app)
        await pilot.resize_terminal(100, 30)
        await until(pilot, lambda: "straggler: rank 2" in screen_text(app))


def nobodys_fault() -> TriageResult:
    """The triage of a job whose only finding is seen on two ranks and accuses none."""
    result = triaged(SAMPLES / "slow_operator")
    seen = replace(result.findings[0], cause="contention", pattern="job_wide", ranks=(), seen_on=(Rank(0), Rank(1)))
    return triage_in_words(replace(result, verdict="job_wide", findings=(seen,)))


@played
async def test_what_is_nobodys_fault_is_told_and_goes_with_the_ranks_that_it_is_seen_on() -> None:
    async with opened(SLOW, size=(160, 50)) as (app, pilot):
        assert isinstance(app.screen, OverviewScreen)
        app.screen.show("triage", nobodys_fault())
        await pilot.pause()
        shown = screen_text(app)
        assert "job-wide: CPU contention on ranks 0-1 (22.3 of the 95.0 ms step); no rank is to blame" in shown
        assert "1 △ no rank is to blame: CPU contention (seen on ranks 0-1)" in shown
        await type_line(pilot, "slash", "rank:3")
        assert "△" not in screen_text(app)
        await type_line(pilot, "slash", "rank:1")
        assert "△" in screen_text(app)
        assert verdict_style("job_wide") not in (
            verdict_style("straggler"),
            verdict_style("no_straggler"),
        )


@pytest.mark.parametrize("look", [Look(), Look(ascii_only=True)])
@played
async def test_all_of_the_only_finding_can_be_read_with_keys(look: Look) -> None:
    async with opened(SLOW, look=look) as (app, pilot):
        findings = app.screen.query_one(Findings)
        findings.focus()
        await pilot.pause()
        assert len(findings.items) == 1
        said = screen_lines(app)[-2].strip()
        first, last, lines = (int(number) for number in re.findall(r"\d+", said)[:3])
        assert first == 1 and last < lines and said.endswith("down reads on")
        seen = list(shown_of(app, findings))
        for _ in range(lines - last):
            await pilot.press("down")
            seen.append(shown_of(app, findings)[-1])
        assert len(seen) == lines
        told = " ".join(" ".join(seen).split())
        suggestion = findings.items[0].finding.suggestion if findings.items[0].finding else ""
        assert " ".join(suggestion.split()) in told.replace(look.glyphs.vertical, "").replace("  ", " ")
        assert f"lines {lines - (last - first)}-{lines} of {lines}" in screen_lines(app)[-2]
        await pilot.press("home")
        assert shown_of(app, findings)[0] == seen[0]
        await pilot.press("pagedown")
        assert findings.lines_in_view == (last, min(2 * last - 1, lines), lines)
        await pilot.press("G")
        assert findings.lines_in_view is not None and findings.lines_in_view[1] == lines
        await pilot.press("up")
        assert findings.lines_in_view is not None and findings.lines_in_view[1] == lines - 1


def shown_of(app: KairApp, findings: Findings) -> list[str]:
    """The lines of the list, without its scroll bar."""
    top = findings.region.y
    width = findings.scrollable_content_region.width
    return [line[:width].rstrip() for line in screen_lines(app)[top : top + findings.region.height]]


@played
async def test_help_tells_the_figures_of_the_rank_under_the_cursor_beside_its_peers() -> None:
    async with opened(SLOW) as (app, _):
        told = " ".join(" ".join(line for line, _ in help_lines(app.framed)).split())
        assert re.search(r"score 45\.188; of 3 peers the median is 0\.055, from 0\.008 to 0\.181", told)
        assert "how many standard errors a rank's excess lies above its peers'" in told


@played
async def test_what_comes_next_is_asked_once_the_verdict_is_known() -> None:
    async with opened(SLOW) as (app, pilot):
        session = app.session
        assert session is not None
        wanted = [session.question("rank", rank=2), session.question("whatif")]
        await until(pilot, lambda: all(session.known(question) is not None for question in wanted))
        await pilot.press("2")
        await pilot.pause()
        assert "step time" in screen_text(app) and "asking" not in screen_text(app)
