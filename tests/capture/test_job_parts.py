"""The parts of capture that need no framework: steps, control words, settings, files, the command's environment."""

import json
import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.captured import rings_of
from support.patience import PATIENCE_S

import kair_capture as kair
from kair_capture import wire as messages
from kair_capture.agent.ring_reader import Records, RingReader, Trainer
from kair_capture.agent.run_folders import communication_in
from kair_capture.agent.step_rows import rows_of
from kair_capture.control import EVERYTHING, NOTHING_MORE, ProfileOptions
from kair_capture.files import add_to_json, make_secure_dir, own_folder_in
from kair_capture.job import api
from kair_capture.job.framework import Communication, Framework, Profile
from kair_capture.job.hooks import around_next, input_ended, never
from kair_capture.job.launch import SITE, environment_of
from kair_capture.job.recorder import MOST_RINGS, Recorder, ThreadRings
from kair_capture.job.session import Session, current
from kair_capture.job.windows import MOST_STEPS, MOST_WAITING, ControlWords, Periodic, Window
from kair_capture.ring import Kind, NameReader, StepFlag
from kair_capture.settings import Settings, SettingsError, safe_name, settings_of

RANK = 3


class FakeProfile(Profile):
    """Writes which steps it was told of."""

    def __init__(self, options: ProfileOptions = NOTHING_MORE) -> None:
        self.options = options
        self.steps: list[int] = []

    def scope(self, name: str) -> AbstractContextManager[str]:
        return nullcontext(name)

    def begin_step(self, step: int) -> None:
        self.steps.append(step)

    def end_step(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def save(self, path: Path, details: Mapping[str, Any]) -> None:
        if self.steps == [60]:
            raise OSError(28, "No space left on device")
        path.write_text(json.dumps({"steps": self.steps, "kair": details}))

    def collectives(self, begin: int, end: int) -> Sequence[Mapping[str, Any]]:
        return [{"begin": begin, "end": end}]


class FakeFramework(Framework):
    """A framework whose profiler can be someone else's."""

    is_taken = False
    profile_options = EVERYTHING

    def place(self) -> tuple[int, int]:
        return RANK, 8

    def communication(self) -> Communication:
        return Communication(sends=(4,), receives=(2,), groups=((8, 5),))

    def start_profile(self, options: ProfileOptions = NOTHING_MORE, /) -> FakeProfile | None:
        return None if self.is_taken else FakeProfile(options)


def settings(folder: Path, **variables: str) -> Settings:
    return settings_of({"KAIR_RUN_DIR": str(folder), "KAIR_RING_RECORDS": "4096", **variables})


def told(folder: Path) -> tuple[Records, NameReader]:
    (ring,) = folder.glob("rank-3-*-0.ring")
    return RingReader(ring).peek(), NameReader(next(folder.glob("*.names")))


def steps_of(records: Records) -> list[tuple[int, int, int, int]]:
    steps = records[records["kind"] == Kind.STEP]
    return list(zip(*(steps[name].tolist() for name in ("step", "time_ns", "value", "extra")), strict=True))


def optimizer_steps(session: Session, count: int, *optimizers: int) -> None:
    for _ in range(count):
        for optimizer in optimizers:
            session.steps.phase_begins()
            session.steps.optimizer_ran(optimizer)


def test_a_step_ends_where_the_next_one_begins(tmp_path: Path) -> None:
    session = Session(settings(tmp_path / "run"), FakeFramework(), begin=5)
    optimizer_steps(session, 4, 1)
    session.close()
    steps = steps_of(told(tmp_path / "run")[0])
    assert [number for number, *_ in steps] == [0, 1, 2, 3]
    assert steps[0][1] == 5
    assert all(begin + length == following for (_, begin, length, _), (_, following, _, _) in pairwise(steps))
    assert all(flags == 0 for *_, flags in steps)


def test_a_step_that_was_under_way_says_that_its_begin_was_not_seen(tmp_path: Path) -> None:
    session = Session(settings(tmp_path / "run"), FakeFramework(), begin=None)
    optimizer_steps(session, 2, 1)
    session.close()
    assert [flags for *_, flags in steps_of(told(tmp_path / "run")[0])] == [StepFlag.INCOMPLETE, 0]


def test_a_thread_that_loads_ahead_while_autograd_runs_is_not_waited_for(tmp_path: Path) -> None:
    """Threads of autograd belong to the step; whoever fetches a batch meanwhile is none of them."""
    session = Session(settings(tmp_path / "run"), FakeFramework(), begin=5)
    optimizer_steps(session, 2, 1)
    session.steps.in_backward = True
    told_by: list[bool] = []
    other = threading.Thread(target=lambda: told_by.extend([session.steps.concerns(), input_ended(session, 5)]))
    other.start()
    other.join()
    assert told_by == [True, False]
    assert input_ended(session, 5)
    session.close()


def test_a_process_can_be_captured_twice(tmp_path: Path) -> None:
    for number in range(2):
        session = Session(settings(tmp_path / "run"), FakeFramework(), begin=5)
        session.recorder.scope(f"scope {number}", 5)
        session.recorder.scope("both", 5)
        session.close()
    names = NameReader(next((tmp_path / "run").glob("*.names")))
    rings = sorted((tmp_path / "run").glob("*.ring"))
    texts = [[names.text(int(name)) for name in RingReader(ring).peek()["name"]] for ring in rings]
    assert texts == [["scope 0", "both"], ["scope 1", "both"]]


def test_scopes_that_begin_and_end_in_different_places_are_those_of_a_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(settings(tmp_path / "run"), FakeFramework(), begin=5)
    monkeypatch.setattr(current, "session", session)
    kair.perf_scope_end("nothing that began")
    kair.perf_scope_begin("forward")
    kair.perf_scope_begin("attention")
    kair.perf_scope_begin("left by an exception")
    kair.perf_scope_end("attention")
    with kair.scope("experts"):
        pass
    kair.perf_scope_end()
    kair.perf_scope_end()
    session.close()
    names = NameReader(next((tmp_path / "run").glob("*.names")))
    (ring,) = (tmp_path / "run").glob("*.ring")
    scopes = [names.text(int(name)) for name in RingReader(ring).peek()["name"]]
    assert scopes == ["left by an exception", "attention", "experts", "forward"]


def test_a_loop_that_leaves_out_the_ends_of_its_scopes_keeps_few_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(settings(tmp_path / "run"), FakeFramework(), begin=5)
    monkeypatch.setattr(current, "session", session)
    for _ in range(1000):
        kair.perf_scope_begin("forward")
    assert session.depths.depth <= 64
    for _ in range(64):
        kair.perf_scope_end()
    assert session.depths.depth == 0
    session.close()


def test_an_optimizer_that_is_no_longer_used_ends_no_steps(tmp_path: Path) -> None:
    session = Session(settings(tmp_path / "run"), FakeFramework(), begin=5)
    optimizer_steps(session, 5, 1, 2)
    optimizer_steps(session, 100, 1)
    session.close()
    # Two to learn that there are two, four of both, one that waited for the second, then one for each of the first.
    assert len(steps_of(told(tmp_path / "run")[0])) == 6 + 100 - 64


def test_windows_are_sampled_where_they_were_asked_for(tmp_path: Path) -> None:
    folder, framework = tmp_path / "run", FakeFramework()
    agent = ControlWordsOf(folder)
    session = Session(settings(folder), framework, begin=5)
    optimizer_steps(session, 2, 1)
    agent.ask(Window(5, 2))
    optimizer_steps(session, 8, 1)  # up to step 9
    agent.ask(Window(4, 1))
    optimizer_steps(session, 2, 1)
    agent.ask(Window(14, 10**9))
    optimizer_steps(session, MOST_STEPS + 10, 1)
    framework.is_taken = True
    agent.ask(Window(session.recorder.step + 2, 1))
    optimizer_steps(session, 5, 1)
    session.close()
    windows = {path.name: json.loads(path.read_text()) for path in (folder / "windows").iterdir()}
    assert set(windows) == {"rank-3-5-6.json", f"rank-3-14-{13 + MOST_STEPS}.json"}
    assert windows["rank-3-5-6.json"]["steps"] == [5, 6]
    records, names = told(folder)
    sampled = [step for step, *_, flags in steps_of(records) if flags & StepFlag.SAMPLED]
    assert sampled == [5, 6, *range(14, 14 + MOST_STEPS)]
    events = [names.text(int(name)) for name in records["name"][records["kind"] == Kind.USER_EVENT]]
    assert events.count("window missed") == 2
    # The step after what was missed says so to the coordinator.
    assert [step for step, *_, flags in steps_of(records) if flags & StepFlag.MISSED] == [10, MOST_STEPS + 23]
    told_of_it = communication_in(folder, Trainer(RANK, os.getpid()))
    assert told_of_it == messages.Communication(RANK, 8, (4,), (2,), ((8, 5),))
    told_steps = windows["rank-3-5-6.json"]["kair"]["steps"]
    assert [[step, begin, length] for step, begin, _, length in told_steps] == [
        [step, begin, length] for step, begin, length, _ in steps_of(records) if step in (5, 6)
    ]


def test_samples_that_the_script_tells_are_in_rows_and_in_windows(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    agent = ControlWordsOf(folder)
    current.session = session = Session(settings(folder), FakeFramework(), begin=5)
    agent.ask(Window(3, 2))
    for step in range(6):
        for part in (step, 10) if step != 1 else ():  # two micro-batches
            api.samples(part)
        optimizer_steps(session, 1, 1)
    agent.ask(Window(8, 1))
    optimizer_steps(session, 5, 1)
    api.stop()
    assert rows_of(RANK, told(folder)[0], {})["samples"].tolist() == [10, 0, 12, 13, 14, 15, *[0] * 5]
    windows = {path.name: json.loads(path.read_text())["kair"] for path in (folder / "windows").iterdir()}
    assert windows["rank-3-3-4.json"]["samples"] == [[3, 13], [4, 14]]
    assert "samples" not in windows["rank-3-8-8.json"]


class ControlWordsOf:
    """An agent that asks once the rank is there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def ask(self, window: Window) -> None:
        with closing(self._words()) as words:
            words.ask(window)

    def tell_pace(self, overhead_ppm: int, every: int = 0) -> None:
        with closing(self._words()) as words:
            words.tell_pace(overhead_ppm, every)

    def _words(self) -> ControlWords:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        return ControlWords(self._folder / f"rank-{RANK}.control")


def test_a_window_that_cannot_be_written_ends_sampling_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    every = settings(tmp_path / "run", KAIR_SAMPLE_EVERY="20", KAIR_MAX_OVERHEAD="100%")
    session = Session(every, FakeFramework(), begin=5)
    optimizer_steps(session, 100, 1)
    session.close()
    assert sorted(path.name for path in (tmp_path / "run" / "windows").iterdir()) == [
        "rank-3-20-20.json",
        "rank-3-40-40.json",
    ]
    assert len(steps_of(told(tmp_path / "run")[0])) == 100
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kair: warning: no more steps are sampled, the rest of capture goes on: OSError")


def test_windows_that_nobody_takes_do_not_fill_the_memory(tmp_path: Path) -> None:
    every = settings(tmp_path / "run", KAIR_SAMPLE_EVERY="2", KAIR_MAX_OVERHEAD="100%")
    session = Session(every, FakeFramework(), begin=5)
    (tmp_path / "run" / "windows").mkdir()
    for number in range(MOST_WAITING):
        (tmp_path / "run" / "windows" / f"rank-3-{number}-{number}.json").touch()
    optimizer_steps(session, 10, 1)
    session.close()
    assert len(list((tmp_path / "run" / "windows").iterdir())) == MOST_WAITING


class FakeClock:
    """Stands still unless it is told otherwise."""

    def __init__(self) -> None:
        self.now = 1

    def __call__(self) -> int:
        return self.now


@pytest.mark.slow
def test_steps_that_nobody_asked_for_are_sampled_as_often_as_they_can_be_afforded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, framework = FakeClock(), FakeFramework()
    for module in ("windows", "session", "recorder"):
        monkeypatch.setattr(f"kair_capture.job.{module}.clock", clock)

    class Dear(FakeProfile):
        """Takes 30 ms to end."""

        def stop(self) -> None:
            clock.now += 30_000_000

    monkeypatch.setattr(framework, "start_profile", Dear)
    every = settings(tmp_path / "run", KAIR_SAMPLE_EVERY="50", KAIR_RING_RECORDS="16384")
    ControlWordsOf(tmp_path / "run").tell_pace(20_000, 7777)  # an earlier process of the rank
    session = Session(every, framework, begin=1)
    told_pace = {1500: (20_000, 0), 1900: (9000, 0), 2050: (9000, 1600), 3250: (9000, 50)}
    for step in range(3650):
        if step == 701:
            ControlWordsOf(tmp_path / "run").ask(Window(705, 2))
        if step in told_pace:
            ControlWordsOf(tmp_path / "run").tell_pace(*told_pace[step])
        clock.now += 10_000_000
        optimizer_steps(session, 1, 1)
    session.close()
    # A window costs three steps' time: at 1 % one in 300, and so one in 400. What is asked for goes before: after the
    # one at 705 that at 800 can not be afforded. Nor that at 1600, while windows on other ranks have taken 2 %. From
    # 2050 to 3250 another rank can afford one in 1600 only: then 2400 and 2800 would have nothing to compare with.
    sampled = [step for step, *_, flags in steps_of(told(tmp_path / "run")[0]) if flags & StepFlag.SAMPLED]
    assert sampled == [50, 400, 705, 706, 1200, 2000, 3200, 3600]
    # The agent hears of it.
    rings = rings_of(tmp_path / "run", Trainer(RANK, os.getpid()))
    rings.peek()
    assert rings.sampled_every == 400
    rings.close(remove=False)


@given(
    share=st.sampled_from([0.001, 0.01, 0.05]),
    step=st.integers(10**4, 10**9),
    costs=st.lists(st.integers(0, 10**9), min_size=1, max_size=20),
)
def test_what_nobody_asked_for_costs_at_no_time_more_than_its_share_and_one_window(
    share: float, step: int, costs: list[int]
) -> None:
    periodic, spent, elapsed = Periodic(10, share), 0, 0
    waiting = iter(costs)
    for number in range(3000):
        if not periodic.is_due(number) or not number:
            periodic.passed(step)
            elapsed += step
            continue
        if (cost := next(waiting, None)) is None:
            break
        periodic.spent([step], cost, is_own=True)
        spent, elapsed = spent + cost, elapsed + step
        assert spent <= share * elapsed + max(costs)
        assert periodic.overhead == pytest.approx(spent / elapsed)
        assert periodic.interval % 10 == 0


def test_every_thread_has_a_ring_of_its_own_up_to_a_number(tmp_path: Path) -> None:
    rings, gate, written = ThreadRings(tmp_path, 0, 256), threading.Event(), threading.Semaphore(0)

    def write(number: int) -> None:
        rings.here.emit(Kind.USER_EVENT, number, 0, 0)
        written.release()
        gate.wait()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(MOST_RINGS + 2)]
    for thread in threads:
        thread.start()
        written.acquire()
    gate.set()
    for thread in threads:
        thread.join()
    rings.close()
    contents = [RingReader(path).peek()["time_ns"].tolist() for path in tmp_path.glob("*.ring")]
    assert sorted(contents) == [[number] for number in range(MOST_RINGS)]
    assert rings.turned_away == 2


def test_a_profiler_that_fails_while_data_is_awaited_costs_no_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    framework = FakeFramework()

    class Broken(FakeProfile):
        def scope(self, name: str) -> AbstractContextManager[str]:
            raise RuntimeError(f"no scope {name}")

    monkeypatch.setattr(framework, "start_profile", Broken)
    session = Session(settings(tmp_path / "run"), framework, begin=5)
    monkeypatch.setattr(current, "session", session)
    monkeypatch.setattr(current, "_failed", False)
    ControlWordsOf(tmp_path / "run").ask(Window(2, 5))
    optimizer_steps(session, 4, 1)
    following = around_next(next, ended=lambda *_: None, unless=never)
    assert following(iter("ab")) == "a"
    assert current.session is None
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kair: warning: capture is off, training goes on: RuntimeError: no scope input")


def test_a_handler_that_records_in_the_middle_of_a_record_hangs_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal's handler runs between any two lines: also where a name is written, or a thread's ring is made."""
    rings = ThreadRings(tmp_path, 0, 256)
    recorder = Recorder(rings, tmp_path / "rank-0.names")
    interrupted: list[str] = []

    def interrupting(name: str) -> None:
        original = getattr(os, name)

        def call(*arguments: object) -> object:
            if name not in interrupted:
                interrupted.append(name)
                recorder.event("handler")
            return original(*arguments)

        monkeypatch.setattr(os, name, call)

    interrupting("write")
    interrupting("posix_fallocate")
    thread = threading.Thread(target=recorder.event, args=("interrupted",), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert interrupted == ["write", "posix_fallocate"]
    recorder.close()
    (ring,) = tmp_path.glob("*.ring")
    names = NameReader(tmp_path / "rank-0.names")
    assert [names.text(int(one)) for one in RingReader(ring).peek()["name"]] == ["", "interrupted"]


def test_a_folder_that_others_can_write_is_not_used(tmp_path: Path) -> None:
    make_secure_dir(tmp_path / "a" / "run")
    assert stat.S_IMODE((tmp_path / "a" / "run").stat().st_mode) == 0o700
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(PermissionError):
        make_secure_dir(tmp_path / "open")
    with pytest.raises(PermissionError, match="lets others replace mine"):
        make_secure_dir(tmp_path / "open" / "mine")


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files to other users")
@pytest.mark.parametrize("planted", ["link", "dangling", "folder", "file"])
def test_what_another_user_planted_under_the_name_of_the_run_folders_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    """In a folder that everybody writes into, as `/dev/shm` is."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    shared, own = tmp_path / "shm", tmp_path / "own"
    shared.mkdir()
    shared.chmod(0o1777)
    own.mkdir(0o700)
    taken = shared / f"kair-{os.getuid()}"
    assert own_folder_in(shared) == taken
    if planted in ("link", "dangling"):
        taken.symlink_to(own if planted == "link" else tmp_path / "nowhere")
    elif planted == "folder":
        taken.mkdir(0o777)
    else:
        taken.touch()
    os.chown(taken, 12345, 12345, follow_symlinks=False)
    with pytest.raises(OSError, match=r"another user's link|lets others replace|Not a directory"):
        make_secure_dir(taken / "job")
    assert not any(own.iterdir())
    assert not (tmp_path / "nowhere").exists()
    # All processes of the user find the same other one, and nobody else can guess it.
    instead = own_folder_in(shared)
    assert instead == own_folder_in(shared) != taken
    assert re.fullmatch(rf"kair-{os.getuid()}-[0-9a-f]{{32}}", instead.name)
    make_secure_dir(instead / "job")
    assert stat.S_IMODE((tmp_path / "runtime" / "kair-run-folder").stat().st_mode) == 0o600


def test_the_training_process_needs_nothing_of_kair_but_capture(tmp_path: Path) -> None:
    """Its interpreter may be another one than Kair's."""
    program = """
import sys
for name in ("kair_engine", "kair_tui", "numpy", "pyarrow", "msgspec", "torch", "jax", "tensorflow"):
    sys.modules[name] = None
import kair_capture as kair
kair.start(job="alone")
for _ in range(3):
    with kair.scope("part"):
        pass
    kair.step()
kair.stop()
kair.start()
kair.start()
kair.step()
"""
    environment = {**os.environ, "KAIR_RUN_DIR": str(tmp_path / "run")}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("", "")
    assert len(list((tmp_path / "run").glob("rank-0-*.ring"))) == 2


def test_a_member_is_added_to_a_json_file_by_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"traceEvents": [' + ",".join(['{"a": {}}'] * 1000) + '], "last": {"x": 1}\n}\n')
    add_to_json(path, "kair", {"steps": [[1, 2, 3, 4]]})
    document = json.loads(path.read_text())
    assert document["kair"] == {"steps": [[1, 2, 3, 4]]}
    assert len(document["traceEvents"]) == 1000
    path.write_text("[1, 2]")
    with pytest.raises(ValueError, match="does not end"):
        add_to_json(path, "kair", {})


_TRAINS = """
import multiprocessing, sys
for name in ("torch", "jax", "tensorflow"):
    sys.modules[name] = None
import kair_capture as kair
from kair_capture.job.session import current
def train():
    kair.start(job="alone")
    for _ in range(3):
        current.session.steps.phase_begins()
        current.session.steps.optimizer_ran(1)
worker = multiprocessing.get_context("fork").Process(target=train)
"""


@pytest.mark.slow
def test_the_last_step_of_a_worker_that_was_forked_is_not_lost(tmp_path: Path) -> None:
    """It leaves by `os._exit`."""
    steps = []
    for name, trains in (("alone", "train()"), ("forked", "worker.start(); worker.join()")):
        environment = {**os.environ, "KAIR_RUN_DIR": str(tmp_path / name), "RANK": "0"}
        subprocess.run([sys.executable, "-c", _TRAINS + trains], env=environment, check=True)
        rings = rings_of(tmp_path / name)
        drained = rings.peek(to_the_end=True)
        assert drained is not None
        rows = drained.new_rows(None)
        assert rows is not None
        steps.append(rows["step"].tolist())
    assert steps == [[0, 1, 2]] * 2


def test_settings_are_the_launchers_and_kairs() -> None:
    found = settings_of(
        {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "KAIR_JOB": "../a b", "KAIR_DISABLE": "yes"}
    )
    assert (found.rank, found.world_size, found.local_rank, found.disabled) == (3, 8, 1, True)
    assert found.run_dir == Path(f"/dev/shm/kair-{os.getuid()}/{safe_name('../a b')}")
    assert settings_of({}, job="x").job == "x"
    assert settings_of({"KAIR_RUN_DIR": "here"}).run_dir == Path.cwd() / "here"


def test_names_of_two_jobs_stay_two_and_leave_no_folder() -> None:
    given = ["job", "a_b", "a/b", "a:b", "a\nb", ".", "..", "../a b", "x" * 101, "x" * 102, "\udcff"]
    names = [safe_name(job) for job in given]
    assert len({*names}) == len(given)
    assert [safe_name(name) for name in names] == names
    assert names[:2] == given[:2]
    assert all(re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}", name) for name in names)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RANK", "-1"),
        ("WORLD_SIZE", "0"),
        ("KAIR_RING_RECORDS", "1000"),
        ("KAIR_SAMPLE_EVERY", "x" * 100),
        ("KAIR_HOOKS", "maybe"),
        ("KAIR_MAX_OVERHEAD", "200%"),
    ],
)
def test_a_setting_that_cannot_be_understood_names_its_variable(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        settings_of({name: value})


def test_the_commands_environment_leaves_what_the_job_set() -> None:
    base = {"PYTHONPATH": "/own", "TORCH_FR_BUFFER_SIZE": "7"}
    environment = environment_of(base, job="a", run_dir=Path("/run"))
    assert environment["PYTHONPATH"] == f"{SITE}:/own"
    assert environment["TORCH_FR_BUFFER_SIZE"] == "7"
    assert environment_of({}, job="a", run_dir=Path("/run"))["PYTHONPATH"] == str(SITE)
    assert base == {"PYTHONPATH": "/own", "TORCH_FR_BUFFER_SIZE": "7"}
