"""Calls of a runtime that wait for the device: told by what they do, and by known names."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from support.places import CASES2

from kair_engine.readers.blocking_calls import blocking_functions
from kair_engine.readers.kineto.classify import NameClass, name_class_of
from kair_engine.recording.opening import open_trace
from kair_engine.triage.analysis import triage

CASE = CASES2 / "xpu_blocking_call" / "input"
US = 1_000


def found(*calls: tuple[str, int, int]) -> list[str]:
    """Those of (function, begin, duration) that wait, in µs.

    Of a device that runs something from 0 to 400, 1000 to 1400, 2000 to 2400 and so on; beside it another stream runs
    all the time.
    """
    names = sorted({name for name, _, _ in calls})
    name, begin, lasted = (np.array(of) for of in zip(*((names.index(of), *at) for of, *at in calls), strict=True))
    ran = np.array([(at, at + 400) for at in range(0, 10_000, 1000)] + [(at, at + 50) for at in range(0, 10_000, 50)])
    stream = np.repeat([7, 20], [10, 200])
    times = {"launching": np.array([names.index("launch")] if "launch" in names else [], int), "stream": stream}
    waiting = blocking_functions(
        names, name, begin * US, (begin + lasted) * US, **times, ran_ns=ran.T.astype(np.int64) * US
    )
    return [names[at] for at in waiting.tolist()]


def test_a_call_that_returns_as_a_stream_has_nothing_left_waits_for_it() -> None:
    assert found(*(("waitForAll", at + 50, 355) for at in range(0, 10_000, 1000))) == ["waitForAll"]


def test_no_call_that_returns_at_any_time_does() -> None:
    assert found(*(("loadModule", at + at // 10, 355) for at in range(0, 10_000, 1000))) == []


def test_what_launches_something_is_a_launch_and_what_frees_memory_is_memory() -> None:
    assert found(*(("launch", at + 50, 355) for at in range(0, 10_000, 1000))) == []
    assert found(*(("hipFree", at + 50, 355) for at in range(0, 10_000, 1000))) == []


def test_short_calls_and_few_ones_tell_nothing() -> None:
    assert found(*(("query", at + 395, 10) for at in range(0, 10_000, 1000))) == []
    assert found(("waitForAll", 50, 355), ("waitForAll", 1050, 355)) == []


@pytest.mark.parametrize(
    "name",
    ["urQueueFinish", "urEventWait", "synStreamSynchronize", "hipDeviceSynchronize", "aclrtSynchronizeStream",
     "cudaStreamSynchronize", "clWaitForEvents", "cnrtQueueSync", "zeEventHostSynchronize"],
)  # fmt: skip
def test_known_names(name: str) -> None:
    assert name_class_of(name) is NameClass.SYNCHRONIZE


@pytest.mark.parametrize("name", ["urEnqueueKernelLaunch", "urEnqueueEventsWait", "hipStreamWaitEvent"])
def test_what_only_tells_the_device_to_wait_is_no_wait(name: str) -> None:
    assert name_class_of(name) is NameClass.PLAIN


@pytest.mark.slow
@pytest.mark.skipif(not CASE.is_dir(), reason="needs ../shared")
@pytest.mark.parametrize("name", ["urQueueFinish", "waitForAllQueues"])
def test_behind_a_wait_of_any_name_a_slow_device_is_found(tmp_path: Path, name: str) -> None:
    for path in CASE.glob("*.gz"):
        text = gzip.decompress(path.read_bytes()).replace(b'"urQueueFinish"', json.dumps(name).encode())
        (tmp_path / path.stem).write_bytes(text)
    (finding,) = triage(open_trace(tmp_path, cache=tmp_path / "cache")).findings
    assert (finding.ranks, finding.cause) == ((2,), "compute")
    assert finding.time_lost_us_per_step == pytest.approx(6_900, rel=0.05)
