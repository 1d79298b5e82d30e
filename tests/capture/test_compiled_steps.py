"""Steps of frameworks that compile them whole, as far as none of these is needed for it."""

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import pytest

from kair_capture.agent.ring_reader import RingReader
from kair_capture.cupti import PlainJob
from kair_capture.job.compiled_hooks import Jitted, ProfilerTurns, TrainingCalls, XplaneProfile, place_in, watching
from kair_capture.job.session import Session, current
from kair_capture.ring import Kind, NameReader, StepFlag
from kair_capture.settings import settings_of


class Compiled:
    """What a compiler makes of a function: its Python runs once, while it is traced."""

    def __init__(self, compiler: "Compiler", function: Callable[[int], int]) -> None:
        self.compiler, self.function = compiler, function
        self.is_traced = False

    def __call__(self, value: int) -> int:
        if not self.is_traced or self.compiler.tracing:
            self.is_traced = True
            self.compiler.tracing += 1
            self.function(value)
            self.compiler.tracing -= 1
        return value + 1

    def lower(self) -> str:
        return "its code"


class Compiler:
    tracing = 0

    def jit(self, function: Callable[[int], int]) -> Compiled:
        return Compiled(self, function)


@pytest.fixture
def calls(tmp_path: Path) -> Iterator[tuple[Compiler, TrainingCalls]]:
    settings = settings_of({"KAIR_RUN_DIR": str(tmp_path / "run"), "KAIR_RING_RECORDS": "4096"})
    compiler = Compiler()
    # JAX says of a call's own tracing that nothing is traced yet when it begins, and no more when it is over.
    calls = TrainingCalls("jax", lambda: compiler.tracing > 0)
    current.arm("jax", lambda begin: Session(settings, PlainJob(), begin=begin), settings.run_dir)
    yield compiler, calls
    current.stop()


def recorded(folder: Path) -> list[tuple[int, int, list[str]]]:
    """Number, flags and scopes of each step."""
    (ring,) = (folder / "run").glob("*.ring")
    names, records = NameReader(next((folder / "run").glob("*.names"))), RingReader(ring).peek()
    scopes: dict[int, list[str]] = {}
    for record in records[records["kind"] == Kind.SCOPE]:
        scopes.setdefault(int(record["step"]), []).append(names.text(int(record["name"])))
    steps = records[records["kind"] == Kind.STEP]
    return [(int(one["step"]), int(one["extra"]), scopes.get(int(one["step"]), [])) for one in steps]


def test_a_step_is_a_call_of_what_takes_a_gradient_when_it_is_traced(
    tmp_path: Path, calls: tuple[Compiler, TrainingCalls]
) -> None:
    compiler, training = calls
    jit = watching(compiler.jit, training)

    def loss(value: int) -> int:
        training.gradient_taken()
        training.compiled(1, 5_000_000)
        return value

    inner = jit(loss)
    step, evaluate = jit(inner), jit(lambda value: value)
    evaluate(1)
    assert current.session is None
    for value in range(4):
        assert step(value) == value + 1
        evaluate(value)
    assert current.session is not None
    # Traced into something else it does not run: no step.
    compiler.tracing = 1
    step(9)
    compiler.tracing = 0
    # The same gradient within another function, which does not trace it anew.
    assert jit(inner)(7) == 8
    current.stop()
    steps = recorded(tmp_path)
    assert [scopes for *_, scopes in steps] == [
        *[["step function"]] * 3,
        ["step function", "compile", "compile", "step function"],
    ]
    # A device may not be done with the last one when the job ends.
    assert [flags for _, flags, _ in steps[1:]] == [0, 0, StepFlag.INCOMPLETE]


def test_a_watched_function_is_itself_in_all_else(calls: tuple[Compiler, TrainingCalls]) -> None:
    compiler, training = calls
    jit = watching(compiler.jit, training)

    @jit
    def named(value: int) -> int:
        return value

    assert named.lower() == "its code"
    assert type(named) is Jitted
    assert type(copy.copy(named)) is Compiled

    class Model:
        step = jit(lambda value: value)

    with pytest.raises(TypeError):
        Model().step()  # as a method it gets the instance, which cannot be added to
    plain = watching(lambda *_, **__: lambda function: function, training)
    assert plain(static=1)(len) is len


def test_of_several_frameworks_the_one_that_trains_is_captured(calls: tuple[Compiler, TrainingCalls]) -> None:
    started = []

    def start(begin: int | None) -> Session:
        started.append(begin)
        raise OSError("no place for its files")

    current.arm("torch", start, Path("nowhere"))
    # Waiting for PyTorch's data loader is no sign that PyTorch trains, where JAX may.
    assert current.begin(framework="torch", alone=True) is None
    assert not started
    _, training = calls
    jit = watching(calls[0].jit, training)

    def step(value: int) -> int:
        training.gradient_taken()
        return value

    jit(step)(1)
    assert current.session is not None
    assert not started


class Profile(XplaneProfile):
    """A profiler that writes one file, and is the process' only one."""

    running: ClassVar[list[str]] = []

    def scope(self, name: str) -> AbstractContextManager[object]:
        return nullcontext(name)

    def start(self, folder: str) -> None:
        if self.running:
            raise RuntimeError("busy")
        self.running.append(folder)

    def _marked(self, step: int) -> AbstractContextManager[object]:
        return nullcontext(step)

    def _wait(self) -> None:
        pass

    def _end(self) -> None:
        folder = Path(self.running.pop()) / "plugins/profile/now"
        folder.mkdir(parents=True)
        (folder / "host.xplane.pb").write_bytes(b"a profile")


def test_the_jobs_own_profile_goes_before_captures(tmp_path: Path) -> None:
    def made() -> Profile | None:
        profile = Profile(tmp_path)
        return profile if profile.begin(profile.start, (RuntimeError,)) else None

    turns = ProfilerTurns(made)
    profile = turns.start()
    assert profile is not None
    profile.stop()
    profile.save(tmp_path / "kept", {})
    assert (tmp_path / "kept").read_bytes() == b"a profile"
    lost = turns.start()
    own = turns.giving_way(lambda: Profile.running.append("own"))
    own()
    assert lost is not None
    assert lost.is_lost
    assert turns.start() is None
    Profile.running.clear()
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    begun = turns.start()
    assert begun is not None
    begun.discard()
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


@pytest.mark.parametrize(
    ("task", "place"),
    [(("worker", 1), (2, 3)), (("chief", 0), (0, 3)), (("ps", 0), None), (("worker", 7), None)],
)
def test_a_tensorflow_process_rank_is_the_clusters(task: tuple[str, int], place: tuple[int, int] | None) -> None:
    cluster: dict[str, Any] = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}
    assert place_in(json.dumps({"cluster": cluster, "task": {"type": task[0], "index": task[1]}})) == place
    assert place_in("{}") is place_in("") is None
