"""What the full screen's table of a million rows costs: opening it, turning pages, moving, sorting and filtering.

    python benchmarks/tui_speed.py

shows these figures with the others. The rank screen runs in a pseudo-terminal with an answer that is made.
"""

import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

from measuring import Row
from pseudo_terminal import Terminal

ROWS = 1_000_000
OPERATORS = 500
PAGES = 40
PAGE_DOWN, DOWN = "\x1b[6~", "j"


def table() -> list[Row]:
    """CPU of the whole process, and the bytes that it sends."""
    environment = {**os.environ, "LANG": "C.UTF-8", "COLORTERM": "truecolor"}
    with Terminal([sys.executable, __file__], environment) as terminal:
        terminal.wait_for("a made job")
        terminal.settle(1.0)
        opened = _costs(terminal, "2", 1.0)
        pages = [_costs(terminal, PAGE_DOWN, 0.2) for _ in range(PAGES)]
        moves = [_costs(terminal, key, 0.2) for _ in range(PAGES // 2) for key in (DOWN, "k")]
        ordered = _costs(terminal, "s", 4.0)
        filtered = _costs(terminal, "/kernel_7 score:>0.5\r", 4.0)
    return [
        _row("opens", [opened], "<= 500 ms"),
        _row("turns a page", pages, "<= 20 ms"),
        _row("moves its cursor", moves, None),
        _row("is sorted, in a thread", [ordered], None),
        _row("is filtered, in a thread", [filtered], None),
    ]


def _costs(terminal: Terminal, keys: str, quiet_s: float) -> tuple[float, int]:
    before = terminal.cpu_s()
    terminal.press(keys)
    sent = len(terminal.settle(quiet_s))
    return terminal.cpu_s() - before, sent


def _row(what: str, costs: list[tuple[float, int]], aim: str | None) -> Row:
    cpu_ms = sum(cpu for cpu, _ in costs) / len(costs) * 1e3
    sent = sorted(sent for _, sent in costs)[len(costs) // 2]
    return {"what": f"{ROWS:,} rows: {what}", "CPU ms": cpu_ms, "bytes": sent, "aim": aim}


def run_made_job() -> None:
    """In the child: the program with answers that are made."""
    os.environ.update({"TEXTUAL_ANIMATIONS": "none", "TEXTUAL_SMOOTH_SCROLL": "0", "TEXTUAL_COLOR_SYSTEM": "truecolor"})

    from kair.app.jobs import JobSource
    from kair_engine.results.pinpoint import Outlier, PinpointResult
    from kair_engine.results.rank import CurvePoint, PartOfStep, RankProfileResult
    from kair_engine.results.triage import RankedRank, TriageResult
    from kair_engine.results.views import StepsResult
    from kair_engine.trace.model import Job, StepTimes, Trace
    from kair_tui.cli.wanted import JobWanted
    from kair_tui.render.terminal import Look
    from kair_tui.tui.frame.app import KairApp
    from kair_tui.tui.frame.screen import BaseScreen
    from kair_tui.tui.question import Question
    from kair_tui.tui.session import Place, Session

    dice = random.Random(0)
    names = [f"void at::native::kernel_{number}<float, {number}>(float*, int)" for number in range(OPERATORS)]
    phases: tuple[str | None, ...] = ("forward", "backward", None)
    outliers = tuple(
        Outlier(
            step=number // 1000,
            operator=names[number % OPERATORS],
            phase=phases[number % 3],
            occurrence=number % 7,
            start_z=1.0,
            duration_z=2.0,
            score=dice.random(),
            p_value=0.001,
            start_us=dice.uniform(0, 1e5),
            duration_us=dice.uniform(0, 1e4),
            expected_duration_us=1e3,
        )
        for number in range(ROWS)
    )
    parts = tuple(PartOfStep(part, 1e4, 0.5, 1e4) for part in ("compute", "host"))
    curve = tuple(CurvePoint(at * 100.0, at / 200, at / 200, at / 200, at / 200, at / 200) for at in range(1, 201))
    answers: dict[str, Callable[[], object]] = {
        "steps": lambda: StepsResult((), (), ()),
        "triage": lambda: TriageResult("straggler", "a made job", (), (slow,), 1e5, 0.0, 0.0, (1,), ()),
        "rank": lambda: RankProfileResult(0, "node0", "all", 7, 2e4, 2e4, parts, curve, None, None, (1,), ()),
        "pinpoint": lambda: PinpointResult(0, "robust", outliers, ROWS, ROWS, ()),
    }
    slow = RankedRank(0, "node0", "all", 40.0, True, 10.0, 1e4)
    times = StepTimes((), (), (), (), ())
    job = Job("made", "made", "kineto", 1, (0,), {0: "node0"}, None, None, True, True, (1,), times, 0, ())

    class Made(Session):
        def compute(self, question: Question) -> object:
            return answers[question.command]()

    class Bench(KairApp):
        def first_screen(self) -> BaseScreen:
            self.session = Made(Trace(job, (), (1,)), JobSource("made", Path("made"), stored=False))
            return self.made(Place("overview"))

    Bench(JobWanted("made"), Look()).run()


if __name__ == "__main__":
    run_made_job()
