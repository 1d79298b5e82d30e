"""What the full screen costs: first paint, a stored verdict, cursor moves, recolouring, and what it sends when idle.

    python benchmarks/tui_speed.py

The program runs in a pseudo-terminal; its bytes are counted and its CPU time is read from /proc, so that neither this
process nor a terminal is measured with it. The grid is that of a made job of 16,384 ranks on 2,048 hosts.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import Row, report
from pseudo_terminal import Terminal
from tui_table import table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "validation" / "accuracy"))

from compute_faults import SlowHost
from job_folder import write_job_folder
from layouts import JobLayout
from simulator import JobSpec, simulate

SAMPLE = Path(__file__).parents[1] / "sample_traces" / "slow_operator"
RANKS, STORED_RANKS = 16_384, 1_024
RANKS_PER_HOST = 8
MOVES = 40
RECOLOURS = 8
IDLE_S = 3.0
TERMINAL = {"LANG": "C.UTF-8", "COLORTERM": "truecolor"}


def first_paint(runs: int) -> Row:
    """CPU of the whole process until the first screen was written, the job not yet opened."""
    best = float("inf")
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as cache:
            command = [sys.executable, "-m", "kair_tui", "tui", str(SAMPLE)]
            with Terminal(command, {**os.environ, **TERMINAL, "KAIR_CACHE": cache}) as terminal:
                terminal.wait_for("opening")
                best = min(best, terminal.cpu_s())
    return {"what": "first paint", "CPU ms": best * 1e3, "bytes": None, "aim": "<= 400 ms"}


def stored_verdict(runs: int) -> Row:
    """CPU until the verdict on a job of the store that was triaged before is on the screen; the least of some runs."""
    layout, fault = JobLayout("dp", STORED_RANKS), SlowHost("node50", 1.3)
    best, sent = float("inf"), 0
    with tempfile.TemporaryDirectory() as folder:
        (recording,) = simulate([JobSpec(layout, 4, 0, (fault,))])
        write_job_folder(recording, Path(folder) / "store" / "job")
        environment = {**os.environ, **TERMINAL, "KAIR_STORE": f"{folder}/store", "XDG_DATA_HOME": folder}
        kair = [sys.executable, "-m", "kair_tui"]
        subprocess.run([*kair, "triage", "job", "-o", "json"], env=environment, check=True, capture_output=True)
        for _ in range(runs):
            with Terminal([*kair, "tui", "job"], environment, (80, 24)) as terminal:
                terminal.wait_for("ranks 400-407")
                best, sent = min(best, terminal.cpu_s()), len(terminal.written)
    return {"what": f"stored verdict, {STORED_RANKS:,} ranks", "CPU ms": best * 1e3, "bytes": sent, "aim": "<= 1000 ms"}


def grid() -> list[Row]:
    """The made job: moves one by one, then recolours, then nothing."""
    with Terminal([sys.executable, __file__, "--made-job"], {**os.environ, **TERMINAL}) as terminal:
        terminal.wait_for("others wait")
        terminal.settle(1.0)
        sent, cpu = [], terminal.cpu_s()
        for move in range(MOVES):
            terminal.press("hl"[move % 2])
            sent.append(len(terminal.settle(0.15)))
        move_ms = (terminal.cpu_s() - cpu) / MOVES * 1e3
        coloured, cpu = [], terminal.cpu_s()
        for _ in range(RECOLOURS):
            terminal.press("c")
            coloured.append(len(terminal.settle(0.5)))
        colour_ms = (terminal.cpu_s() - cpu) / RECOLOURS * 1e3
        time.sleep(0.5)
        terminal.settle(0.5)
        idle = len(terminal.settle(IDLE_S))
    return [
        {"what": f"cursor move, {RANKS:,} ranks", "CPU ms": move_ms, "bytes": max(sent), "aim": "<= 10 ms, <= 400 B"},
        {"what": f"full recolour, {RANKS:,} ranks", "CPU ms": colour_ms, "bytes": max(coloured), "aim": "<= 60 ms"},
        {"what": f"idle for {IDLE_S:g} s", "CPU ms": None, "bytes": idle, "aim": "0 B"},
    ]


def run_made_job() -> None:
    """In the child: the program with answers that are made, and a key that colours every cell anew."""
    os.environ.update({"TEXTUAL_ANIMATIONS": "none", "TEXTUAL_SMOOTH_SCROLL": "0", "TEXTUAL_COLOR_SYSTEM": "truecolor"})

    from textual.binding import Binding

    from kair.app.jobs import JobSource
    from kair.app.question import Answer
    from kair_engine.results.triage import RankedRank, TriageResult
    from kair_engine.results.views import StepsResult
    from kair_engine.trace.model import Job, StepTimes, Trace
    from kair_tui.cli.wanted import JobWanted
    from kair_tui.render.terminal import Look
    from kair_tui.tui.frame.app import KairApp
    from kair_tui.tui.frame.screen import BaseScreen
    from kair_tui.tui.question import Question
    from kair_tui.tui.session import Place, Session
    from kair_tui.tui.widgets.grid import RankGrid

    hosts = {rank: f"node{rank // RANKS_PER_HOST:04}" for rank in range(RANKS)}
    times = StepTimes((), (), (), (), ())
    job = Job("made", "made", "kineto", RANKS, tuple(range(RANKS)), hosts, None, None, True, True, (1,), times, 0, ())

    def ranking(seed: int) -> tuple[RankedRank, ...]:
        """One rank in a hundred stands out a little, four are flagged."""
        dice = random.Random(seed)
        scores = [dice.uniform(2, 12) if dice.random() < 0.01 else dice.uniform(0, 2) for _ in range(RANKS)]
        flagged = set(dice.sample(range(RANKS), 4))
        rows = [
            RankedRank(rank, hosts[rank], "all", 40.0 if rank in flagged else score, rank in flagged, 10.0, 1e4)
            for rank, score in enumerate(scores)
        ]
        return tuple(sorted(rows, key=lambda row: -row.score))

    rankings = [ranking(seed) for seed in range(4)]
    steps = StepsResult((), (), 0.0, ())
    triage = TriageResult("straggler", (), rankings[0], 1e5, 0.0, 0.0, (1,), ())

    class Made(Session):
        def ask(self, question: Question, *_: object, **__: object) -> object:
            return Answer(question, steps if question.command == "steps" else triage, job)

    class Bench(KairApp):
        BINDINGS = [Binding("c", "recolour", "")]  # noqa: RUF012 - as Textual has it
        turn = 0

        def first_screen(self) -> BaseScreen:
            self.session = Made(Trace(job, (), (1,)), JobSource("made", Path("made"), stored=False))
            return self.made(Place("overview"))

        def action_recolour(self) -> None:
            self.turn += 1
            self.screen.query_one(RankGrid).show(rankings[self.turn % len(rankings)])

    Bench(JobWanted("made"), Look()).run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="of the first paint; the one that took least counts")
    parser.add_argument("--only", choices=("paint",), help="the first paint alone")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--made-job", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.made_job:
        run_made_job()
        return
    rows = [first_paint(options.runs)]
    if options.only is None:
        rows += [stored_verdict(options.runs), *grid(), *table()]
    report("full screen", rows, as_json=options.json)


if __name__ == "__main__":
    main()
