"""Capture inside real training jobs: steps and scopes are found, nothing changes, and failures never reach training."""

import json
import os
import subprocess
import sys
import zipfile
from collections import Counter
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.answers import recorded
from support.captured import rings_of

from kair_capture.agent.ring_reader import Records, RingReader
from kair_capture.agent.spool import Spool
from kair_capture.agent.step_rows import ScopeSums
from kair_capture.coordinator.step_log import ScopeLog
from kair_capture.places import JobPlaces
from kair_capture.ring import Kind, NameReader, StepFlag
from kair_engine.trace.columns import read_columns
from kair_engine.trace.model import NOT_RECORDED
from kair_engine.triage.analysis import triage

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(find_spec("torch") is None, reason="training needs torch: pip install 'kair[record]'"),
]
SCRIPT = Path(__file__).parents[1] / "support" / "captured_jobs.py"
JOBS = (
    "plain", "captured", "sharded", "pipelined", "accumulation", "kept_model", "several_optimizers", "skipped_steps",
    "compiled", "failing_hook", "loads_ahead", "own_profiler", "explicit", "no_place", "frozen_heap", "on_a_device",
)  # fmt: skip
WINDOW = list(range(4, 20))


@dataclass(frozen=True)
class Step:
    flags: int
    begin: int
    end: int
    scopes: list[str]
    """Names of scopes as they ended, `INPUT` and `COLLECTIVE` among them."""


@dataclass(frozen=True)
class Jobs:
    folder: Path

    def seen(self, job: str, rank: int = 0) -> dict[str, Any]:
        seen: dict[str, Any] = json.loads((self.folder / f"{job}-{rank}.json").read_text())
        return seen

    def steps(self, job: str, rank: int = 0) -> list[Step]:
        """The steps that a rank's rings tell."""
        rings = sorted((self.folder / job / "run").glob(f"rank-{rank}-*.ring"))
        records = np.concatenate([records_of(ring)[0] for ring in rings])
        names = records_of(rings[0])[1]
        return [step_of(record, records, names) for record in records[records["kind"] == Kind.STEP]]

    def events(self, job: str) -> list[str]:
        (ring,) = (self.folder / job / "run").glob("rank-0-*-0.ring")
        records, names = records_of(ring)
        return [names.text(int(name)) for name in records["name"][records["kind"] == Kind.USER_EVENT]]


def records_of(ring: Path) -> tuple[Records, NameReader]:
    reader = RingReader(ring)
    records = reader.peek()
    assert (reader.lost, reader.drops) == (0, 0)
    reader.close()
    return records, NameReader(ring.with_name(ring.name.rsplit("-", 1)[0] + ".names"))


def step_of(step: np.void, records: Records, names: NameReader) -> Step:
    own = records[records["step"] == step["step"]]
    scopes = []
    for record in own:
        if record["kind"] == Kind.SCOPE:
            scopes.append(names.text(int(record["name"])))
        elif record["kind"] in (Kind.INPUT, Kind.COLLECTIVE):
            scopes.append(Kind(int(record["kind"])).name)
    begin = int(step["time_ns"])
    return Step(int(step["extra"]), begin, begin + int(step["value"]), scopes)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    folder = tmp_path_factory.mktemp("jobs")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder), *JOBS],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "KINETO_LOG_LEVEL": "6"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return Jobs(folder)


def test_the_loss_is_the_same_to_the_last_bit(jobs: Jobs) -> None:
    for rank in range(2):
        assert jobs.seen("captured", rank)["started"]
        assert jobs.seen("captured", rank)["losses"] == jobs.seen("plain", rank)["losses"]
    assert len(set(jobs.seen("plain")["losses"])) == 24


def test_a_data_parallel_step_has_input_forward_wait_backward_optimizer(jobs: Jobs) -> None:
    for rank in range(2):
        steps = jobs.steps("captured", rank)
        assert len(steps) == 24
        assert [number for number, step in enumerate(steps) if step.flags & StepFlag.SAMPLED] == WINDOW
        # The models, and the wait of the first backward, are known once the first optimizer has run.
        assert steps[0].scopes[-4:] == ["INPUT", "forward", "backward", "optimizer"]
        whole = ["INPUT", "forward", "COLLECTIVE", "backward", "optimizer"]
        assert [step.scopes for step in steps[1:]] == [whole] * 23
    unsampled = [jobs.steps("captured")[number] for number in (*range(1, 3), *range(20, 23))]
    follow = [jobs.steps("captured")[number + 1].begin for number in (*range(1, 3), *range(20, 23))]
    assert [step.end for step in unsampled] == follow


def test_a_window_is_a_kineto_recording_with_steps_and_numbered_collectives(jobs: Jobs) -> None:
    for rank in range(2):
        window = json.loads((jobs.folder / "captured/run/windows" / f"rank-{rank}-4-19.json").read_text())
        told, steps = window["kair"], jobs.steps("captured", rank)
        assert [number for number, *_ in told["steps"]] == WINDOW
        assert [[begin, length] for _, begin, _, length in told["steps"]] == [
            [steps[number].begin, steps[number].end - steps[number].begin] for number in WINDOW
        ]
        origin = window["baseTimeNanoseconds"]
        marks = {event["name"]: origin + event["ts"] * 1000 for event in window["traceEvents"] if event["ph"] == "X"}
        # The step's begin as the profiler has it and as the ring has it, microseconds apart on one clock.
        assert all(abs(marks[f"ProfilerStep#{number}"] - unix) < 2e9 for number, _, unix, _ in told["steps"])
        numbers = [entry["collective_seq_id"] for entry in told["collectives"]]
        assert numbers == list(range(numbers[0], numbers[0] + len(WINDOW)))
        # 50 µs each, on the training thread.
        assert not jobs.seen("captured", rank)["objects_made"]
    assert {"window stop ns", "window save ns"} <= set(jobs.events("captured"))


def test_each_sampled_step_tells_what_its_thread_had_of_the_processor(jobs: Jobs) -> None:
    """Rank 1 sleeps 80 ms in each, and rank 0 waits for it: nobody computes meanwhile."""
    times = recorded(jobs.folder / "captured/run/windows").job.step_times
    assert times.step == (*WINDOW, *WINDOW)
    for row in times.rows():
        _, step, _, length, _, cpu, delay, _, of_communication, halted, given, helpers, *_ = row
        assert 0 < cpu < length
        assert min(delay, of_communication) >= 0
        # On a busy machine the thread that counts may begin to wait in the first one only.
        assert halted == 0 or (halted, step) == (NOT_RECORDED, WINDOW[0])
        assert 0 <= helpers < length
        assert given == 8 * 16 * 4  # of the batch, not of what it is compared with


def test_a_window_tells_what_its_rank_may_have_of_the_host(jobs: Jobs) -> None:
    limits = recorded(jobs.folder / "captured/run/windows").job.limits
    assert {rank: (one.nice, one.cpus) for rank, one in limits.items()} == dict.fromkeys(
        range(2), (os.getpriority(os.PRIO_PROCESS, 0), tuple(sorted(os.sched_getaffinity(0))))
    )


def test_what_a_model_is_given_counts_wherever_it_is_put() -> None:
    import torch

    from kair_capture.job.torch_scopes import bytes_in

    images, words = torch.zeros(4, 3), torch.zeros(5, dtype=torch.int64)
    assert bytes_in(((images, [words]), {"mask": {"of": images}, "name": "x"})) == 48 + 40 + 48
    assert bytes_in(((), {})) == 0
    assert bytes_in([words] * 1000) == 0  # no batch has so many


def test_windows_hold_what_an_ordinary_recording_of_the_run_holds(jobs: Jobs) -> None:
    contents = []
    for folder in ("plain", "captured/run/windows"):
        trace = recorded(jobs.folder / folder)
        assert [*trace.steps] == WINDOW
        rows = read_columns(trace, ["name", "kind", "phase", "group_seq"])
        phases = [None if code < 0 else rows.texts["phase"][code] for code in rows.of["phase"]]
        if folder != "plain":
            of_collective = rows.chosen(rows.is_any("kind", ("collective",)))
            # One a step; all of them have the flight recorder's numbers.
            assert np.diff(np.unique(of_collective.of["group_seq"])).tolist() == [1] * (len(WINDOW) - 1)
        contents.append(set(zip(rows.of["rank"].tolist(), rows.text("name"), rows.text("kind"), phases, strict=True)))
        # Of two runs on a busy machine one can be too noisy for an accusation; who is waited for shows in both.
        assert triage(trace).ranking[0].rank == 1
    assert contents[0] == contents[1]


def test_sharded_models_wait_in_collectives(jobs: Jobs) -> None:
    for step in jobs.steps("sharded")[1:]:
        counts = Counter(step.scopes)
        assert counts["COLLECTIVE"] >= 4
        assert (counts["forward"], counts["backward"], counts["optimizer"]) == (1, 1, 1)


def test_ranks_tell_how_they_communicate(jobs: Jobs) -> None:
    def told(job: str, rank: int) -> Any:  # noqa: ANN401  (JSON)
        return json.loads((jobs.folder / job / "run" / f"rank-{rank}.json").read_text())["communication"]

    for rank in range(2):
        # Five steps of one bucket of gradients each.
        assert told("captured", rank) == {"sends": [], "receives": [], "groups": [[2, 5]]}
        stage = told("pipelined", rank)
        assert (stage["sends"], stage["receives"]) == ([1 - rank], [1 - rank])


def test_gradients_that_accumulate_are_one_step(jobs: Jobs) -> None:
    steps = jobs.steps("accumulation")
    assert [step.scopes for step in steps] == [[*["INPUT", "forward", "backward"] * 3, "optimizer"]] * 4
    assert all(step.flags & StepFlag.ACCUMULATING for step in steps)


def test_nothing_of_capture_is_kept_with_a_model(jobs: Jobs) -> None:
    with zipfile.ZipFile(jobs.folder / "kept_model.pt") as saved:
        pickled = next(name for name in saved.namelist() if name.endswith("data.pkl"))
        assert b"kair" not in saved.read(pickled)
    assert jobs.seen("kept_model") == {"scripted": True, "replica": True}
    assert len(jobs.steps("kept_model")) == 6
    assert all("forward" in step.scopes for step in jobs.steps("kept_model"))


def test_several_optimizers_make_one_step_once_all_were_seen(jobs: Jobs) -> None:
    both = ["forward", "backward", "optimizer"] * 2
    first, second, *rest = jobs.steps("several_optimizers")
    assert first.scopes + second.scopes == ["INPUT", *both]
    assert [step.scopes for step in rest] == [["INPUT", *both]] * 7


def test_a_step_that_the_scaler_skips_is_one_and_says_so(jobs: Jobs) -> None:
    steps = jobs.steps("skipped_steps")
    assert [bool(step.flags & StepFlag.SKIPPED) for step in steps] == [number == 3 for number in range(6)]
    assert "optimizer" not in steps[3].scopes


def test_what_a_thread_beside_the_loop_waits_for_is_no_wait_of_the_step(jobs: Jobs) -> None:
    steps = jobs.steps("loads_ahead")
    assert len(steps) == 10
    assert [step.scopes[-3:] for step in steps] == [["forward", "backward", "optimizer"]] * 10
    # The first batches are waited for before it shows which thread trains.
    assert not any("INPUT" in step.scopes for step in steps[3:])


def test_nothing_is_compiled_anew(jobs: Jobs) -> None:
    seen = jobs.seen("compiled")
    assert seen["with"] == seen["without"]
    assert seen["with"][0] == 1
    first, *others = [step.scopes for step in jobs.steps("compiled")]
    assert first == ["INPUT", "compile", "forward", "backward", "optimizer"]
    assert others == [["INPUT", "forward", "backward", "optimizer"]] * 4


def test_a_failure_in_a_hook_is_one_warning_and_training_goes_on(jobs: Jobs) -> None:
    assert jobs.seen("failing_hook") == {"session": False}
    (line,) = (jobs.folder / "failing_hook.stderr").read_text().splitlines()
    assert line.startswith("kair: warning: capture is off, training goes on: RuntimeError: the ring is gone")
    assert len(jobs.steps("failing_hook")) == 3


def test_without_a_place_for_its_files_capture_stays_off(jobs: Jobs) -> None:
    assert jobs.seen("no_place") == {}
    (line,) = (jobs.folder / "no_place.stderr").read_text().splitlines()
    assert line.startswith("kair: warning: capture is off, training goes on: NotADirectoryError")


def test_the_jobs_own_profiler_goes_before_a_window(jobs: Jobs) -> None:
    assert jobs.seen("own_profiler")["own"] > 50
    assert [path.name for path in (jobs.folder / "own_profiler/run/windows").iterdir()] == ["rank-0-10-10.json"]
    assert jobs.events("own_profiler")[0] == "window missed"
    recorded = json.loads((jobs.folder / "own_profiler/run/windows/rank-0-10-10.json").read_text())
    assert recorded["kair"]["options"] == ["stacks", "shapes"]
    events = recorded["traceEvents"]
    assert {"python_function", "cpu_op"} <= {one.get("cat") for one in events}
    assert any("Input Dims" in one.get("args", {}) for one in events)
    assert len(jobs.steps("own_profiler")) == 14
    assert jobs.steps("own_profiler")[5].scopes[1:3] == ["inner", "augment"]


def test_the_scripts_own_scopes_are_in_the_store_for_every_step(jobs: Jobs, tmp_path: Path) -> None:
    run, places = jobs.folder / "own_profiler" / "run", JobPlaces(tmp_path / "store", "job")
    drained = rings_of(run).peek(to_the_end=True)
    assert drained is not None
    assert drained.rows is not None
    sums, spool = ScopeSums(tmp_path), Spool(tmp_path / "spool", 1 << 20, places.delivered, "node-1")
    sums.add(drained.scopes_of(drained.rows[:10]))
    sums.add(drained.scopes_of(drained.rows[10:]))
    assert sums.waiting
    sums.deliver(spool, tmp_path, b"k" * 32, at_once=True)
    assert (sums.waiting, spool.waiting) == (False, 1)
    spool.deliver_waiting()
    ScopeLog(places, b"k" * 32).round()
    rows = pq.read_table(places.scopes).to_pylist()
    assert [(one["rank"], one["step"], one["scope"], one["calls"]) for one in rows] == [
        (0, step, scope, 1) for step in range(14) for scope in ("augment", "inner")
    ]
    begins = dict(zip(drained.rows["step"].tolist(), drained.rows["begin_us"].tolist(), strict=True))
    assert all(one["begin_us"] == begins[one["step"]] and one["time_us"] < 10**6 for one in rows)


def test_a_script_can_say_everything_itself(jobs: Jobs) -> None:
    assert [step.scopes for step in jobs.steps("explicit")] == [["forward", "beside"]] * 5
    # Five threads came and went: they used one ring, one after another.
    (beside,) = (jobs.folder / "explicit/run").glob("rank-0-*-1.ring")
    records, names = records_of(beside)
    assert [names.text(int(name)) for name in records["name"]] == ["beside"] * 5


UNAWARE = """
import site_was_here, torch
assert "KAIR_CAPTURE" in __import__("os").environ
assert __import__("sys").argv[1:] == ["", "x"]
net = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for batch in torch.utils.data.DataLoader(torch.ones(40, 3), 4):
    net(batch).sum().backward()
    optimizer.step()
raise SystemExit(7)
"""


def test_a_command_is_captured_without_a_change_to_its_script(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys, types\nsys.modules['site_was_here'] = types.ModuleType('x')\n")
    script = tmp_path / "train.py"
    script.write_text(UNAWARE)
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(own)])
    done = subprocess.run(
        [sys.executable, "-m", "kair_tui", "capture", "run", "--no-agent", "--", sys.executable, str(script), "", "x"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "KAIR_RUN_DIR": str(tmp_path / "run"), "KAIR_SAMPLE_EVERY": "5"},
    )
    assert done.returncode == 7, done.stderr
    assert done.stderr.startswith("kair: capturing job train-")
    assert done.stderr.count("\n") == 1
    (ring,) = (tmp_path / "run").glob("rank-0-*.ring")
    records, names = records_of(ring)
    steps = [step_of(record, records, names) for record in records[records["kind"] == Kind.STEP]]
    assert [step.scopes for step in steps] == [["INPUT", "forward", "backward", "optimizer"]] * 10
    assert [path.name for path in (tmp_path / "run" / "windows").iterdir()] == ["rank-0-5-5.json"]
    identity = json.loads((tmp_path / "run" / "rank-0.json").read_text())
    assert (identity["rank"], identity["framework"], identity["device"]) == (0, "torch", "cpu")


def test_a_model_is_found_though_the_heap_was_frozen(jobs: Jobs) -> None:
    """As loops do after their set-up: the collector then tells of no object of before."""
    assert jobs.seen("frozen_heap")["found"]


def test_a_device_tells_each_step_without_what_it_waits(jobs: Jobs) -> None:
    run = jobs.folder / "on_a_device" / "run"
    rings = rings_of(run)
    rows = rings.peek(to_the_end=True).rows
    rings.close(remove=False)
    settled = rows[-5:]  # which gradient comes last is learnt first
    assert (settled["device_us"] > 0).all()
    # A busy machine may stop a thread between a step's end and its event: a step's time is the next one's then.
    assert np.median(settled["step_us"].astype(np.int64) - settled["device_us"]) > 15_000
