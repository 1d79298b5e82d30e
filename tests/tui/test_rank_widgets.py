"""The widgets of the rank screen: the parts of its step as bars, and its curve among its peers'."""

import asyncio

from support.cli_samples import rank
from support.kept_cases import assert_kept
from textual.app import App, ComposeResult

from kair_engine.results.rank import RankProfileResult
from kair_tui.render.terminal import Look
from kair_tui.tui.widgets.bars import CompletionCurve, StepParts


def lines(widget: StepParts | CompletionCurve, size: tuple[int, int], result: RankProfileResult | None) -> list[str]:
    """What a widget that has the screen for itself shows."""

    class Shown(App[None]):
        def compose(self) -> ComposeResult:
            yield widget

    async def run() -> list[str]:
        async with Shown().run_test(size=size) as pilot:
            widget.show(result)
            await pilot.pause()
            return [strip.text.rstrip() for strip in widget.render_lines(widget.size.region)]

    return asyncio.run(run())


def test_parts_and_curve_take_the_room_that_there_is() -> None:
    drawn = {}
    for name, look in (("", Look()), (" in ASCII", Look(ascii_only=True))):
        drawn[f"parts{name}"] = lines(StepParts(look), (44, 7), rank())
        drawn[f"parts with role and share{name}"] = lines(StepParts(look), (80, 7), rank())
        drawn[f"curve{name}"] = lines(CompletionCurve(look), (44, 8), rank())
    assert_kept("rank_widgets", drawn)


def test_before_the_answer_and_in_too_small_a_place_there_is_nothing() -> None:
    assert set(lines(StepParts(Look()), (44, 7), None)) == {""}
    assert set(lines(CompletionCurve(Look()), (44, 6), None)) == {""}
    assert set(lines(CompletionCurve(Look()), (40, 2), rank())) == {""}
