"""Telemetry of a whole day beside a job of the morning: what is read is of the job's time, and what is told is not."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import pytest
from support.cli_samples import kair

from kair.app.step_history import time_of_job, unsampled
from kair_capture.agent.step_rows import ROW
from kair_capture.coordinator.step_log import write_part
from kair_capture.places import JobPlaces
from kair_engine.evidence.by_silence import FEWEST_READINGS, INTERVALS
from kair_engine.evidence.case import AROUND_NS
from kair_engine.evidence.happenings import UNVOUCHED_S, WITHIN_S
from kair_engine.readers.evidence.formats import require_evidence
from kair_engine.recording import evidence_files
from kair_engine.recording.evidence_files import read_evidence_of, stored_evidence
from kair_engine.results.watch import Sampling, WatchedRank, WatchResult
from kair_engine.trace.evidence_table import (
    EvidenceFile,
    EvidenceRows,
    described,
    read_evidence,
    together,
    within,
    write_evidence,
)
from kair_engine.trace.evidence_time import JobTime
from kair_engine.trace.files import make_folder
from kair_engine.trace.measures import HOST, EvidenceSource, process

NS = 10**9
DAY_S = 1_795_737_600
"""2026-11-27, 0:00."""
MORNING_S, RANKS, STEPS, STEP_S = DAY_S + 7 * 3600, 4, 240, 5
EVERY_S, FILES = 20, 24
NOT_RUN = 0.2
"""Of each second, rank 1 is stopped by its quota, from the middle of the job on."""


def morning_job(store: Path) -> JobPlaces:
    """A watched job of twenty minutes, from 7:00 on: rank 1 takes a second of five longer from the middle on."""
    places = JobPlaces(store, "job")
    places.capture.mkdir(parents=True)
    make_folder(places.steps)
    rows, random = np.zeros(RANKS * STEPS, ROW), np.random.default_rng(1)
    rows["rank"], rows["step"] = np.tile(np.arange(RANKS), STEPS), np.repeat(np.arange(STEPS), RANKS)
    own = 4e6 * (1 + 0.01 * random.standard_normal(len(rows)))
    own[(rows["rank"] == 1) & (rows["step"] >= STEPS // 2)] += STEP_S * NOT_RUN * 1e6
    longest = np.repeat(own.reshape(STEPS, RANKS).max(axis=1), RANKS)
    rows["begin_us"] = (MORNING_S + rows["step"].astype(np.int64) * STEP_S) * 10**6
    rows["step_us"], rows["self_us"], rows["waited_us"] = longest, own, longest - own
    write_part(places.steps / "part-00000001.parquet", rows)
    ranks = tuple(WatchedRank(rank, "node-1", STEPS - 1, None, None, None, 0.0, slow=False) for rank in range(RANKS))
    now, sampling = datetime.now(UTC).isoformat(), Sampling(0.01, 0.0, 0, 0, 0, ())
    status = WatchResult("job", now, "over", STEPS - 1, None, None, RANKS, ranks, (), (), sampling, {})
    places.status.write_bytes(msgspec.json.encode(status))
    return places


def sampled(begin_s: int, end_s: int) -> EvidenceFile:
    """What a sampler says of these seconds: rank 1 alone is stopped, and not before the job's middle."""
    rows, onset_s = EvidenceRows(), MORNING_S + STEPS // 2 * STEP_S
    for at in range(begin_s, end_s, EVERY_S):
        for rank in range(RANKS):
            stopped = NOT_RUN * max(at - onset_s, 0) if rank == 1 else 0.0
            name = "process_throttled_time"
            rows.add(at * NS, process(1000 + rank), name, stopped, host="node-1", rank=rank)
    source = EvidenceSource("capture, every 20 s", "capture", "host", 1.0, float(EVERY_S), hosts=("node-1",))
    return described(rows, source)


def deliver(places: JobPlaces) -> Path:
    """A file of each hour of the day."""
    folder = places.evidence / "host=node-1"
    folder.mkdir(parents=True)
    for hour in range(FILES):
        begin_s = DAY_S + hour * 3600
        write_evidence(folder / f"samples-{begin_s * 1000}.parquet", sampled(begin_s, begin_s + 3600))
    return folder


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobPlaces:
    monkeypatch.setenv("KAIR_STORE", str(tmp_path / "store"))
    return morning_job(tmp_path / "store")


@pytest.mark.slow
def test_a_job_of_the_morning_is_explained_by_telemetry_of_the_whole_day(
    places: JobPlaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver(places)
    monkeypatch.setattr(evidence_files, "MOST_ROWS", 3 * RANKS * 3600 // EVERY_S)  # three hours of 24
    outcome = kair("triage", "job", "--json")
    answer = json.loads(outcome.out)
    (finding,) = answer["data"]["findings"]
    assert (finding["ranks"], finding["since"]) == ([1], STEPS // 2)
    words = {one["part"]: one["word"] for one in finding["explanations"]}
    assert words["cpu_quota"] == "explains"
    assert "evidence_left_out" not in {one["code"] for one in answer["warnings"]}


@pytest.mark.slow
def test_files_of_other_hours_are_not_opened_but_for_the_first_and_the_last(
    places: JobPlaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, opened = deliver(places), list[str]()

    def opening(path: Path, when: JobTime | None = None) -> EvidenceFile:
        opened.append(path.name)
        return read_evidence(path, when)

    monkeypatch.setattr(evidence_files, "read_evidence", opening)
    found, warnings = stored_evidence(folder.parent.parent, when=time_of(places))
    hours = sorted((int(name[8:-8]) // 1000 - DAY_S) // 3600 for name in opened)
    assert hours == [0, *range(4, 11), 23] and not warnings
    # Those that were opened tell their times, and have rows near the job's alone.
    assert (found.sources[0].first_ns, found.sources[0].last_ns) == (DAY_S * NS, (DAY_S + 86_400 - EVERY_S) * NS)
    assert 2 * 720 <= np.ptp(found.table["time_ns"].to_numpy()) / NS <= 1300 + 2 * (720 + 20 * EVERY_S)


def time_of(places: JobPlaces) -> JobTime:
    trace = unsampled(places.folder)
    assert trace is not None
    when = time_of_job(trace.job)
    assert when is not None
    return when


@pytest.mark.slow
@pytest.mark.parametrize("joined", [(), range(2, 6), range(6, 12), range(24)], ids=str)
def test_joined_files_and_others_have_the_same_rows(places: JobPlaces, joined: range) -> None:
    folder = deliver(places)
    whole, when = stored_evidence(places.folder)[0], time_of(places)
    names = [f"samples-{(DAY_S + hour * 3600) * 1000}.parquet" for hour in joined]
    if names:
        content = together(read_evidence(folder / name) for name in names)
        write_evidence(folder / names[-1].replace("samples", "joined"), EvidenceFile(content.table, content.sources))
        for name in names:
            (folder / name).unlink()
    wanted = readings(within(whole, when))
    assert 0 < len(wanted) < len(whole.table) / 6
    for found, warnings in (
        stored_evidence(places.folder, when=when),
        read_evidence_of([places.evidence], when=when),
    ):
        assert readings(found) == wanted and not warnings


def readings(evidence: EvidenceFile) -> list[tuple[int, int, float]]:
    return sorted((row["time_ns"], row["rank"], row["value"]) for row in evidence.table.to_pylist())


def scraped(path: Path) -> Path:
    """Scrapes of a day, every minute, as a loop around curl leaves them; with a line in front that says the time."""
    lines = []
    for at in range(DAY_S, DAY_S + 86_400, 60):
        lines.append(f"# time {at}")
        lines += [f'node_pressure_cpu_waiting_seconds_total{{instance="node-1"}} {at - DAY_S}']
    path.write_text("\n".join(lines) + "\n")
    return path


def with_own_times(path: Path) -> Path:
    """The same, each sample with its time."""
    name = 'node_pressure_cpu_waiting_seconds_total{instance="node-1"}'
    text = "".join(f"{name} {at - DAY_S} {at}000\n" for at in range(DAY_S, DAY_S + 86_400, 60))
    path.write_text("# TYPE node_pressure_cpu_waiting_seconds_total counter\n" + text)
    return path


def answered(path: Path) -> Path:
    """What a server says of the same day."""
    values = [[at, str(at - DAY_S)] for at in range(DAY_S, DAY_S + 86_400, 60)]
    metric = {"__name__": "node_pressure_cpu_waiting_seconds_total", "instance": "node-1"}
    data = {"resultType": "matrix", "result": [{"metric": metric, "values": values}]}
    path.write_text(json.dumps({"status": "success", "data": data}))
    return path


def damaged(path: Path) -> Path:
    """The same with a value that is none, where the begin of the job's time is looked for."""
    text = answered(path).read_text()
    path.write_text(text.replace(f'[{DAY_S + 43_200}, "43200"]', '["noon", []]'))
    return path


FORMS = (scraped, with_own_times, answered)
MORNING = JobTime(MORNING_S * NS, (MORNING_S + 600) * NS)


@pytest.mark.parametrize("form", FORMS)
def test_what_a_reader_passes_over_changes_no_row_and_no_source(form: Callable[[Path], Path], tmp_path: Path) -> None:
    path = form(tmp_path / "metrics")
    whole, near = require_evidence(path)(), require_evidence(path, MORNING)()
    assert len(near.table) < len(whole.table) / 3
    assert within(near, MORNING).table.to_pylist() == [
        # Numbers of lines are those of the first that was read.
        {**row, "raw": near.table["raw"][0].as_py()}
        for row in within(whole, MORNING).table.to_pylist()
    ]
    assert near.sources == whole.sources
    found, _ = read_evidence_of([path], when=MORNING)
    assert np.ptp(found.table["time_ns"].to_numpy()) == (600 + 2 * (720 + 20 * 60)) * NS


def test_of_a_damaged_answer_the_good_values_are_read(tmp_path: Path) -> None:
    path = damaged(tmp_path / "metrics")
    whole, near = require_evidence(path)(), require_evidence(path, MORNING)()
    assert whole.sources[0].passed_over == 1
    assert within(near, MORNING).table.to_pylist() == within(whole, MORNING).table.to_pylist()


@pytest.mark.parametrize("form", FORMS)
def test_telemetry_of_another_day_is_told_to_be_of_another_day(form: Callable[[Path], Path], tmp_path: Path) -> None:
    other = JobTime(MORNING.begin_ns + 5 * 86_400 * NS, MORNING.end_ns + 5 * 86_400 * NS)
    found, warnings = read_evidence_of([form(tmp_path / "metrics")], when=other)
    (source,) = found.sources
    assert not len(found.table) and not warnings
    assert (source.first_ns, source.last_ns, source.rows) == (DAY_S * NS, (DAY_S + 86_340) * NS, 1440)


def told(**of: object) -> EvidenceFile:
    """Two rows of a day, of a source that is described so."""
    rows = EvidenceRows()
    for at in (DAY_S, DAY_S + 86_399):
        rows.add(at * NS, HOST, "xid" if of.get("interval_s") is None else "psi_cpu_time", 79.0, host="node-1")
    source = msgspec.convert({"name": "a", "kind": "any", "clock": "host", **of}, EvidenceSource)
    return EvidenceFile(rows.table(), (source,))


@pytest.mark.parametrize(
    ("of", "is_whole"),
    [
        ({"interval_s": None}, True),
        ({"interval_s": 15.0, "clock": "unknown"}, True),
        ({"interval_s": 15.0, "doubts": ["its times name no time zone"]}, True),
        ({"interval_s": 15.0}, False),
        ({"interval_s": 7200.0}, True),
        ({"interval_s": 1e9}, True),  # longer than 64 bits count
    ],
    ids=str,
)
def test_logs_and_times_in_doubt_are_read_whole(of: dict[str, object], is_whole: bool, tmp_path: Path) -> None:
    write_evidence(tmp_path / "a.parquet", told(**of))
    assert len(read_evidence_of([tmp_path], when=MORNING)[0].table) == (2 if is_whole else 0)
    assert len(read_evidence_of([tmp_path])[0].table) == 2


SOURCES = (
    EvidenceSource("a", "capture", "host", 2.0, 1.0, holds_s=32.0),
    EvidenceSource("a", "prometheus", "unix", None, 60.0),
)


@pytest.mark.parametrize("source", SOURCES, ids=lambda one: one.kind)
def test_no_rule_looks_at_what_was_not_read(source: EvidenceSource) -> None:
    time = MORNING.around([source])
    assert time is not None and source.interval_s is not None
    bound_s = UNVOUCHED_S if source.bound_s is None else source.bound_s
    margin_s = min(MORNING.begin_ns - time.begin_ns, time.end_ns - MORNING.end_ns) / NS
    held_s = source.holds_s or 3 * source.interval_s
    assert margin_s >= max(AROUND_NS / NS, WITHIN_S + bound_s) + held_s
    assert margin_s >= (FEWEST_READINGS + INTERVALS) * source.interval_s
