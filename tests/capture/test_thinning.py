"""Short steps: their parts are recorded in one of several, and every reader's row has them all the same."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.captured import rings_of, rows_for
from support.cli_samples import kair, store_variables
from support.live_status import STATUS, write_status
from support.screen_text import opened, played, screen_text, until

from kair_capture.agent.ring_reader import Trainer
from kair_capture.agent.step_rows import Rows
from kair_capture.coordinator.step_log import scope_series, write_part
from kair_capture.coordinator.step_table import StepTable
from kair_capture.job.recorder import Recorder, ThreadRings
from kair_capture.job.session import StepTracker
from kair_capture.job.thinning import BLOCK, MOST, SHARE, THINNED_NS, WHOLE_NS, Thinning
from kair_capture.ring import EVERY_SHIFT, Kind, StepFlag

US = 1000


def chosen(step_us: int, blocks: int = 3) -> Thinning:
    thinning = Thinning()
    for step in range(blocks * BLOCK + 1):
        thinning.begin(step, 10**9 + step * step_us * US)
    return thinning


@pytest.mark.parametrize(("step_us", "every"), [(20_000, 1), (5000, 1), (4000, 2), (2500, 8), (1000, MOST)])
def test_the_shorter_a_step_the_fewer_record_their_parts(step_us: int, every: int) -> None:
    assert chosen(step_us).every == every
    if every < MOST:
        assert WHOLE_NS + (every - 1) * THINNED_NS <= SHARE * step_us * US * every


def test_steps_that_record_all_are_no_multiples_and_common_to_all_intervals() -> None:
    thinning = Thinning()
    whole: dict[int, set[int]] = {}
    for thinning.every in (2, 4, 8):
        numbers = [step for step in range(1, 4000) if step % BLOCK]
        whole[thinning.every] = {step for step in numbers if not thinning.begin(step, 0) & StepFlag.THINNED}
        assert len(whole[thinning.every]) == pytest.approx(len(numbers) / thinning.every, rel=0.1)
        assert thinning.begin(5, 0) >> EVERY_SHIFT == thinning.every.bit_length() - 1
    assert whole[8] < whole[4] < whole[2]
    assert all(len({step % 40 for step in of}) == 40 for of in whole.values())


class OneJob:
    """Steps of 2 ms: 100 µs of input, 400 forward, 500 backward (of which 200 are waited), 300 optimizer."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 10**9
        for module in ("recorder", "session"):
            monkeypatch.setattr(f"kair_capture.job.{module}.clock", lambda: self.now)
        self.recorder = Recorder(ThreadRings(folder, 3, 4096), folder / "rank-3-1.names")
        self.steps = StepTracker(self.recorder, lambda *_: False, begin=self.now)

    def step(self, input_us: int = 100) -> None:
        self.steps.phase_begins()
        self._part("input", input_us, Kind.INPUT)
        self._part("forward", 400)
        begin = self.now
        self._pass(500 - 200)
        last = self.now
        self._pass(200)
        self.recorder.wait("gradients", last)
        self.recorder.part(Kind.SCOPE, "backward", begin)
        self._part("optimizer", 300)
        self.steps.optimizer_ran(1)
        self._pass(700)

    def _pass(self, us: int) -> None:
        self.now += us * US

    def _part(self, name: str, us: int, kind: Kind = Kind.SCOPE) -> None:
        begin = self.now
        self._pass(us)
        self.recorder.part(kind, name, begin)


def test_rows_of_thinned_steps_have_their_own_waits_and_the_parts_of_the_last_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = OneJob(tmp_path, monkeypatch)
    for number in range(400):
        job.step(1500 if number == 390 else 100)
    job.steps.phase_begins()
    (ring,) = tmp_path.glob("*.ring")
    pid = int(ring.name.split("-")[2])
    (tmp_path / "rank-3-1.names").rename(tmp_path / f"rank-3-{pid}.names")
    drained = rings_of(tmp_path, Trainer(3, pid)).peek()
    assert drained is not None and drained.rows is not None
    rows = drained.rows
    assert rows["step"].tolist() == [*range(400)]
    thinned = rows["flags"] & StepFlag.THINNED > 0
    assert not thinned[: 2 * BLOCK].any() and 0.8 < thinned[2 * BLOCK :].mean() < 1
    assert set((rows["flags"][2 * BLOCK :] >> EVERY_SHIFT).tolist()) == {4}
    assert set(rows["waited_us"].tolist()) == {200}
    usual = np.arange(400) != 390
    for name, us in {"input": 100, "forward": 400, "backward": 500, "optimizer": 300, "self": 1800}.items():
        # Of the first step the time before it began is none of its own.
        assert set(rows[f"{name}_us"][usual].tolist()) == {us}, name
    # A part that takes half of a usual step is recorded in any case.
    assert thinned[390] and rows["input_us"][390] == 1500


def thinned_rows(rank: int, every: int, steps: range = range(300)) -> Rows:
    rows = rows_for(rank, steps, step_us=2500, self_us=2000)
    rows["flags"] = (every.bit_length() - 1) << EVERY_SHIFT
    return rows


def test_the_coordinator_says_how_far_records_are_thinned() -> None:
    table = StepTable()
    assert table.parts_every is None
    table.add(thinned_rows(0, 1))
    assert table.parts_every == 1
    table.add(thinned_rows(1, 8))
    assert table.parts_every == 8, "of ranks that differ the most"
    table.add(thinned_rows(1, 2, range(300, 310)))
    assert table.parts_every == 2, "as of now"


@pytest.mark.slow
def test_commands_and_the_screen_say_how_far_records_are_thinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_variables(monkeypatch, tmp_path)
    said = "steps are short: one in 8 records its parts, all record their time and what they waited"
    for every in (1, 8):
        write_status(tmp_path / "store", replace(STATUS, alerts=(), parts_every=every))
        (tmp_path / "store" / "job123" / "steps").mkdir(exist_ok=True)
        rows = np.concatenate([thinned_rows(rank, every) for rank in range(4)])
        write_part(tmp_path / "store" / "job123" / "steps" / "part-00000001.parquet", rows)
        for words in (("watch", "job123", "--once"), ("info", "job123"), ("steps", "job123")):
            outcome = kair(*words)
            assert (outcome.status, said in outcome.out) == (0, every > 1), (words, outcome.out, outcome.err)
            assert json.loads(kair(*words, "--json").out)["data"]["parts_every"] == every

    @played
    async def on_the_screen() -> None:
        async with opened("job123", size=(120, 40)) as (app, pilot):
            await until(pilot, lambda: said in screen_text(app))

    on_the_screen()


def test_phases_are_tested_in_the_steps_that_recorded_them(tmp_path: Path) -> None:
    rows = np.concatenate([rows_for(rank, range(32)) for rank in range(2)])
    rows["forward_us"] = 500
    rows["flags"][rows["step"] % 16 > 0] = int(StepFlag.THINNED)
    steps = {one.scope: one.steps.tolist() for one in scope_series(rows, tmp_path)[0]}
    assert steps == {"self": [*range(32)], "forward": [0, 16]}
