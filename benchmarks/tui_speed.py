"""What the full screen costs: CPU until the first paint, a cursor move, a full recolour, and what it sends when idle.

    python benchmarks/tui_speed.py

The program runs in a pseudo-terminal; its bytes are counted and its CPU time is read from /proc, so that neither this
process nor a terminal is measured with it. The grid is that of a made job of 16,384 ranks on 2,048 hosts.
"""

import argparse
import os
import random
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

from measuring import Row, report

SAMPLE = Path(__file__).parents[1] / "sample_traces" / "slow_operator"
SIZE = (160, 50)
RANKS = 16_384
RANKS_PER_HOST = 8
MOVES = 40
RECOLOURS = 8
IDLE_S = 3.0
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Terminal:
    """A pseudo-terminal with a program in it."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        import fcntl
        import pty
        import struct
        import termios

        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", SIZE[1], SIZE[0], 0, 0))
        self._child = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env={**os.environ, **environment}, start_new_session=True
        )
        os.close(slave)
        self.written = b""

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.kill()
        self._child.wait()
        os.close(self._master)

    def read(self, within_s: float) -> bytes:
        """What comes within that time."""
        if not select.select([self._master], [], [], within_s)[0]:
            return b""
        try:
            got = os.read(self._master, 1 << 20)
        except OSError as error:
            raise SystemExit(f"the program ended:\n{self.written[-3000:].decode(errors='replace')}") from error
        self.written += got
        return got

    def wait_for(self, text: str) -> None:
        """Until `text` was written."""
        while text.encode() not in self.written:
            if not self.read(60.0):
                raise SystemExit(f"{text!r} never came:\n{self.written[-3000:].decode(errors='replace')}")

    def settle(self, quiet_s: float) -> bytes:
        """Everything until nothing came for that long."""
        got = b""
        while more := self.read(quiet_s):
            got += more
        return got

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def cpu_s(self) -> float:
        """User and system time so far, of all its threads."""
        fields = Path(f"/proc/{self._child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * _TICK_S


def first_paint(runs: int) -> Row:
    """CPU of the whole process until the first screen was written, the job not yet opened."""
    best = float("inf")
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as cache:
            command = [sys.executable, "-m", "kair_tui", "tui", str(SAMPLE)]
            with Terminal(command, {"KAIR_CACHE": cache, "LANG": "C.UTF-8", "COLORTERM": "truecolor"}) as terminal:
                terminal.wait_for("opening")
                best = min(best, terminal.cpu_s())
    return {"what": "first paint", "CPU ms": best * 1e3, "bytes": None, "aim": "<= 400 ms"}


def grid() -> list[Row]:
    """The made job: moves one by one, then recolours, then nothing."""
    environment = {"LANG": "C.UTF-8", "COLORTERM": "truecolor"}
    with Terminal([sys.executable, __file__, "--made-job"], environment) as terminal:
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

    from kair_engine.model import Job, StepTimes, Trace
    from kair_engine.results import RankedRank, StepsResult, TriageResult
    from kair_tui.job_source import JobSource, JobWanted
    from kair_tui.question import Question
    from kair_tui.screens.app import KairApp
    from kair_tui.screens.framed import FramedScreen
    from kair_tui.session import Place, Session
    from kair_tui.terminal import Look
    from kair_tui.widgets.grid import RankGrid

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
    steps = StepsResult((), (), ())
    triage = TriageResult("straggler", "a made job", (), rankings[0], 1e5, 0.0, 0.0, (1,), ())

    class Made(Session):
        def ask(self, question: Question) -> object:
            return steps if question.command == "steps" else triage

    class Bench(KairApp):
        BINDINGS = [Binding("c", "recolour", "")]  # noqa: RUF012 - as Textual has it
        turn = 0

        def first_screen(self) -> FramedScreen:
            self.session = Made(Trace(job, (), (1,)), JobSource("made", Path("made"), stored=False))
            return self.made(Place("overview"))

        def action_recolour(self) -> None:
            self.turn += 1
            self.screen.query_one(RankGrid).show(rankings[self.turn % len(rankings)])

    Bench(JobWanted("made"), Look()).run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="of the first paint; the one that took least counts")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--made-job", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.made_job:
        run_made_job()
        return
    report("full screen", [first_paint(options.runs), *grid()], as_json=options.json)


if __name__ == "__main__":
    main()
