"""The real cupti-python, on machines without a GPU: what capture asks of it is there, and it refuses well."""

import inspect
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.answers import shared_cache

from kair_capture import cupti as backend
from kair_capture.cupti import CuptiProfile, CuptiRefusedError, PlainJob, load_cupti
from kair_engine.recording.opening import open_trace
from kair_engine.trace.columns import read_columns

cupti = pytest.importorskip("cupti.cupti", reason="cupti-python is not installed: pip install 'kair[cupti]'")

CALLS = {
    "activity_register_callbacks": 2,
    "activity_enable": 1,
    "activity_disable": 1,
    "activity_flush_all": 1,
    "activity_push_external_correlation_id": 2,
    "activity_pop_external_correlation_id": 1,
    "activity_get_num_dropped_records": 3,
    "get_timestamp": 0,
}
"""Function → how many arguments capture gives it."""
RECORDS = {
    "CONCURRENT_KERNEL": "ActivityKernel",
    "MEMCPY": "ActivityMemcpy",
    "MEMSET": "ActivityMemset",
    "RUNTIME": "ActivityAPI",
    "EXTERNAL_CORRELATION": "ActivityExternalCorrelation",
}
"""Kind → its class, of which the one with the highest number is delivered."""


def record_class(kind: str) -> type[Any]:
    """The newest class of a kind's records."""
    named = re.compile(rf"{RECORDS[kind]}(\d*)")
    numbered = {int(found[1] or 0): name for name in dir(cupti) if (found := named.fullmatch(name))}
    return getattr(cupti, numbered[max(numbered)])


def record(kind: str, **fields: object) -> Any:  # noqa: ANN401 - a library without types
    """A record as CUPTI delivers one, of the library's own class."""
    made = record_class(kind)()
    for name, value in {"kind": int(cupti.ActivityKind[kind]), **fields}.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize("name", CALLS)
def test_a_function_takes_what_capture_gives_it(name: str) -> None:
    inspect.signature(getattr(cupti, name)).bind(*range(CALLS[name]))


@pytest.mark.parametrize("kind", backend._COPIED)
def test_a_record_has_the_fields_that_are_kept_of_it(kind: str) -> None:
    assert backend._COPIED[kind](record(kind))


def test_copies_and_calls_are_named_as_the_library_numbers_them() -> None:
    numbered = {kind.name.replace("TO", "to"): int(kind) for kind in cupti.ActivityMemcpyKind}
    assert backend._COPY_KINDS.items() <= {number: name for name, number in numbered.items()}.items()
    for number, name in backend._LAUNCHES.items():
        assert cupti.Runtime_api_trace_cbid(number).name.rpartition("_")[0] == name


def test_without_a_driver_capture_says_so_and_the_job_goes_on() -> None:
    try:
        cupti.get_timestamp()
    except RuntimeError as refusal:
        job = PlainJob()
        assert job.start_profile() is None
        assert job.refusal == " ".join(str(refusal).split())[:200]
        with pytest.raises(CuptiRefusedError, match="driver"):
            CuptiProfile(load_cupti({}))
    else:
        pytest.skip("this machine has a driver: capture/check_gpu.py tries it")


class Driver:
    """The real module, but for the calls that need a driver; it delivers records of the real classes."""

    def __init__(self) -> None:
        self.now = 1_000
        self.pending: list[Any] = []
        self.stack: list[int] = []
        self.completed: Any = None

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(cupti, name)

    def get_timestamp(self) -> int:
        self.now += 10
        return self.now

    def activity_register_callbacks(self, _: object, completed: object) -> None:
        self.completed = completed

    def activity_enable(self, kind: int) -> None:
        assert kind in {cupti.ActivityKind[name] for name in RECORDS}

    def activity_disable(self, kind: int) -> None:
        self.activity_enable(kind)

    def activity_push_external_correlation_id(self, kind: int, number: int) -> None:
        assert kind == cupti.ExternalCorrelationKind.CUSTOM0
        self.stack.append(number)

    def activity_pop_external_correlation_id(self, _: int) -> None:
        self.stack.pop()

    def activity_get_num_dropped_records(self, *_: int) -> None:
        """None was dropped."""

    def activity_flush_all(self, _: int) -> None:
        self.completed(self.pending)

    def launch(self, correlation: int, length: int) -> Sequence[Any]:
        """A kernel, its launch and its stage."""
        at, shared = self.get_timestamp(), {"correlation_id": correlation}
        return [
            record("EXTERNAL_CORRELATION", external_id=self.stack[-1], **shared),
            record("RUNTIME", cbid=211, thread_id=7, start=at, end=at + 5, **shared),
            record("CONCURRENT_KERNEL", name="gemm", start=at + 5, end=at + length, stream_id=7, **shared),
        ]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    made = Driver()
    monkeypatch.setattr("cupti.cupti", made)
    yield made


def test_the_librarys_own_records_become_a_trace_that_is_read(driver: Driver, tmp_path: Path) -> None:
    profile = CuptiProfile(load_cupti({}), lambda: 1_700_000_000_000_000_000 + driver.now)
    profile.begin_step(5)
    with profile.scope("forward"):
        for number in range(20):
            driver.pending += driver.launch(number + 1, 40)
        driver.now += 2_000
    profile.end_step()
    profile.stop()
    profile.save(tmp_path / "rank-0-5-5.json", {"rank": 0, "steps": [[5, 0, 1_700_000_000_000_001_000, 3_000]]})
    trace = open_trace(tmp_path, cache=shared_cache())
    assert (trace.job.ranks, [*trace.steps]) == ((0,), [5])
    rows = read_columns(trace, ["name", "kind", "duration_ns"])
    assert [*rows.text("name")].count("gemm") == 20
    events = json.loads((tmp_path / "rank-0-5-5.json").read_text())["traceEvents"]
    kernels = [event for event in events if event["cat"] == "kernel"]
    assert {(event["dur"], event["args"]["stage"]) for event in kernels} == {(0.035, "forward")}
