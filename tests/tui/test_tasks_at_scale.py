"""The nine tasks in at most eight keys on six jobs, one of them of 256 ranks, on a terminal of 80 x 24."""

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from compute_faults import SlowHost
from fault_model import Fault
from job_folder import write_job_folder
from layouts import JobLayout
from network_faults import SlowEdge
from simulator import JobSpec, simulate
from support.places import BYTEDANCE, MEGATRON, SAMPLES
from support.screen_text import answered, front, opened, played, screen_lines, screen_text, until
from textual.pilot import Pilot

from kair_tui.tui.frame.app import KairApp
from kair_tui.tui.screens.overview import OverviewScreen
from kair_tui.tui.screens.rank import RankScreen
from kair_tui.tui.screens.whatif import WhatifScreen
from kair_tui.tui.widgets.lateness_map import LatenessMap
from kair_tui.tui.widgets.lists import Findings

MOST_KEYS = 8
SIMULATED: dict[str, tuple[JobLayout, int, Fault]] = {
    "slow link of 256": (JobLayout("3d", dp=8, pp=8, tp=4), 3, SlowEdge(3, 2, 1, extra_ms=8.0)),
    "slow host of 64": (JobLayout("dp", 64), 3, SlowHost("node5", 1.3)),
}

pytestmark = [pytest.mark.usefixtures("own_places"), pytest.mark.slow]


@dataclass(frozen=True)
class Job:
    """What the screens say of a job, each what a user would look for."""

    path: Path | str
    """Of a simulated one its name."""
    verdict: str
    gain: str
    finding: str
    rank: int
    about_rank: str
    came_from: str
    path_end: str
    fix: str
    bar: str = "stragglers "


JOBS = {
    "slow_operator": Job(
        SAMPLES / "slow_operator",
        "straggler: rank 2 (compute, 22.3 of the 95.0 ms step)",
        "rank 2 fixed: +30.7 % throughput",
        "1 ▲ rank 2 on node0: compute in kair_sample::mlp",
        2,
        "23.9 ms instead of 4.09 ms",
        "waiting came from rank 2 (100.0 %)",
        "▲ rank 2 kair_sample::mlp compute: 23.9 ms instead of 4.09 ms",
        "[x] rank=2+kind=compute",
    ),
    "pipeline": Job(
        SAMPLES / "pipeline_slow_operator",
        "straggler: rank 1 (compute, 10.7 of the 119 ms step)",
        "rank 1 fixed: +9.9 % throughput",
        "1 ▲ rank 1 on node0: compute in kair_sample::mlp",
        1,
        "instead of",
        "waiting came from rank 1 (19.7 %)",
        "▲ rank 1 kair_sample::mlp compute: 10.7 ms instead of 4.10 ms",
        "[x] rank=1+kind=compute",
        bar="bubble ",
    ),
    "megatron-tp8": Job(
        MEGATRON,
        "job-wide: CPU contention on all ranks",
        "without CPU contention: +300.3 % throughput",
        "1 △ no rank is to blame: CPU contention (seen on ranks 0-7)",
        0,
        "host takes 210 ms",
        "waiting came from rank 0 (52.2 %) and rank 6 (41.5 %)",
        "lost there",
        "[x] kind=stops",
        bar="last rank ",
    ),
    "ST": Job(
        BYTEDANCE / "trace-ST.parquet",
        "job-wide: stage imbalance on ranks 6-7",
        "without stage imbalance: +15.6 % throughput",
        "1 △ no rank is to blame: stage imbalance (seen on ranks 6-7)",
        7,
        "no part of its step is slower",
        "no rank is waited for much",
        "compute",
        "[x] stage=3",
        bar="bubble ",
    ),
    "slow link of 256": Job(
        "slow link of 256",
        "stragglers: ranks 105, 137 (communication",
        "ranks 105, 137 fixed: +",
        "1 ▲ ranks 105, 137 on node13, node17: communication",
        137,
        "exposed communication takes",
        "▲ triage accuses ranks 105, 137",
        "lost there",
        "[x] rank=105,137+kind=communication",
        bar="bubble ",
    ),
    "slow host of 64": Job(
        "slow host of 64",
        "stragglers: ranks 40-47 compute 1.30× as long",
        "ranks 40-47 fixed: +",
        "1 ▲ ranks 40-47 on node5: compute",
        46,
        "compute takes",
        "waiting came from node5 (ranks 40, ",
        "smaller delays compute:",
        "[x] rank=40-47+kind=compute",
    ),
}


def folder_of(job: Job, beside: Path) -> Path:
    """Where its recording is; a simulated one is made there."""
    if isinstance(job.path, Path):
        if not job.path.exists():
            pytest.skip("no such recording here")
        return job.path
    layout, steps, fault = SIMULATED[job.path]
    (recording,) = simulate([JobSpec(layout, steps, 0, (fault,))])
    return write_job_folder(recording, beside / "simulated")


async def press(app: KairApp, pilot: Pilot[int], *keys: str) -> None:
    """No more keys than a task may take, each answered before the next."""
    assert len(keys) <= MOST_KEYS
    for key in keys:
        await pilot.press(key)
        await until(pilot, lambda: answered(app) or not hasattr(app.screen, "shown"))


@pytest.mark.parametrize("name", JOBS)
def test_the_nine_tasks_are_done(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = JOBS[name]
    path = folder_of(job, tmp_path)
    monkeypatch.chdir(tmp_path)

    def seen(app: KairApp, text: str) -> bool:
        # A sentence is wrapped where the screen ends.
        return text in " ".join(screen_text(app).split())

    @played
    async def play() -> None:
        async with opened(str(path)) as (app, pilot):
            # 1. The worst rank: nothing to press, and why and what is gained stand there as well.
            for text in (job.verdict, job.gain, job.finding):
                assert seen(app, text), screen_text(app)
            assert f" rank {job.rank} " in screen_lines(app)[-2]
            # 2. How much is bubble, how much waiting for stragglers: the bar stands there too.
            assert seen(app, "compute ") and seen(app, job.bar), screen_text(app)
            # 3. Its worst operator, or the part of its step.
            await press(app, pilot, "enter")
            await until(pilot, lambda: isinstance(app.screen, RankScreen) and answered(app))
            assert seen(app, job.about_rank), screen_text(app)
            await press(app, pilot, "1")
            # 4. Why it was late.
            await press(app, pilot, "3")
            assert seen(app, job.came_from), screen_text(app)
            assert seen(app, job.path_end), screen_text(app)
            await press(app, pilot, "1")
            # 5. What fixing it saves.
            await press(app, pilot, "5")
            await until(pilot, lambda: answered(app) and "fixes" in getattr(app.screen, "shown", ()))
            assert isinstance(app.screen, WhatifScreen)
            await press(app, pilot, "space")
            await until(pilot, partial(seen, app, "throughput, "))
            assert seen(app, job.fix) and seen(app, "with 1 fix"), screen_text(app)
            await press(app, pilot, "1")
            # 6. Who was late when, and back to the ranks.
            await press(app, pilot, "H")
            overview = front(app, OverviewScreen)
            await until(pilot, lambda: overview.query_one(LatenessMap).has_map and " step " in screen_lines(app)[-2])
            await press(app, pilot, "H")
            # 7. All of the first finding, with its advice.
            await press(app, pilot, "tab", "tab", "home")
            findings = overview.query_one(Findings)
            assert findings.has_focus and findings.finding is not None
            for _ in range(MOST_KEYS - 2):
                if findings.lines_in_view is not None and findings.lines_in_view[1] < findings.lines_in_view[2]:
                    await press(app, pilot, "pagedown")
            assert findings.at == 0 and (
                findings.lines_in_view is None or findings.lines_in_view[1] == findings.lines_in_view[2]
            )
            await press(app, pilot, "1")
            # 8. The evidence, for somebody else.
            await press(app, pilot, "e", "t", "r", "i", "enter", "enter")
            await until(pilot, partial(seen, app, "saved "))
            (saved,) = tmp_path.glob("*-triage.json")
            assert json.loads(saved.read_text(encoding="utf-8"))["data"]["findings"]
            # 9. The same as a ticket for people.
            await press(app, pilot, "e", "m", "d", "space", "r", "e", "enter", "enter")
            await until(pilot, lambda: bool([*tmp_path.glob("*.md")]))
            (ticket,) = tmp_path.glob("*.md")
            await until(pilot, lambda: "What to do" in ticket.read_text(encoding="utf-8"))

    play()
