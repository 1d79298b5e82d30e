"""The widgets of the rank screen: the parts of its step as bars, and its curve among its peers'."""

import asyncio

from support.cli_samples import rank
from textual.app import App, ComposeResult

from kair_engine.results.rank import RankProfileResult
from kair_tui.render.terminal import Look
from kair_tui.tui.widgets.bars import CompletionCurve, StepParts

ASCII = Look(ascii_only=True)


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


def test_every_part_has_its_figures_and_its_bar_beside_the_roles() -> None:
    assert lines(StepParts(ASCII), (44, 7), rank()) == [
        " part          per step  differs",
        " compute        60.0 ms +1.00 ms #########|",
        " communication  5.00 ms -5.00 ms # |",
        " waiting           0 us -21.0 ms     |",
        " input          30.0 ms +27.0 ms |####",
        " host           4.50 ms  -500 us #|",
        " rest            500 us  +500 us |",
    ]


def test_where_there_is_room_the_median_and_the_share_are_figures_too() -> None:
    assert lines(StepParts(Look()), (80, 7), rank()) == [
        " part          per step     role  differs  of step",
        " compute        60.0 ms  59.0 ms +1.00 ms   60.0 % ███████████████████████████┃",
        " communication  5.00 ms  10.0 ms -5.00 ms    5.0 % ██▍  ┃",
        " waiting           0 µs  21.0 ms -21.0 ms    0.0 %           ┃",
        " input          30.0 ms  3.00 ms +27.0 ms   30.0 % █┃████████████",
        " host           4.50 ms  5.00 ms  -500 µs    4.5 % ██┃",
        " rest            500 µs     0 µs  +500 µs    0.5 % ┃",
    ]


def test_before_the_answer_there_is_nothing() -> None:
    assert set(lines(StepParts(Look()), (44, 7), None)) == {""}
    assert set(lines(CompletionCurve(Look()), (44, 6), None)) == {""}


def test_the_curve_stands_between_its_shares_and_times() -> None:
    assert lines(CompletionCurve(ASCII), (44, 8), rank()) == [
        " 100 %                      ...:::::::::***",
        "                       .:|::::::..... **",
        "                     ::::|         ***",
        "  50 %            .:::.  |     ****",
        "                ::::     |*****",
        "           .:::::.   *****",
        "   0 % **************",
        "       0              50.0 ms        100 ms",
    ]


def test_the_curve_is_drawn_in_dots_where_the_terminal_has_them() -> None:
    assert lines(CompletionCurve(Look()), (44, 8), rank()) == [
        " 100 %                      ░░░▒▒▒▒▒▒▒▒▒⢀⠔⠊",
        "                       ░▒┃▒▒▒▒▒▒░░░░░ ⡠⠒⠁",
        "                     ▒▒▒▒┃         ⢀⠔⠉",
        "  50 %            ░▒▒▒░  ┃     ⢀⡠⠤⠊⠁",
        "                ▒▒▒▒     ┃⢀⡠⠤⠒⠉⠁",
        "           ░▒▒▒▒▒░   ⣀⡠⠔⠒⠉⠁",
        "   0 % ⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⡠⠔⠒⠉",
        "       0              50.0 ms        100 ms",
    ]


def test_too_small_a_place_shows_no_curve() -> None:
    assert set(lines(CompletionCurve(Look()), (40, 2), rank())) == {""}
