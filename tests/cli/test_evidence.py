"""`kair evidence` and `--evidence`: what is kept with a job, lies beside its traces, or is named."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from support import kineto_builder as kb
from support.cli_samples import assert_valid, kair, store_variables

from kair_engine.trace.measures import EvidenceSource
from kair_tui.render.evidence import notes_of, sources_in_words

BEGIN_NS = 1_795_788_180_000_000_000
XID = "2026-11-27T14:03:20,123456+00:00 NVRM: Xid (PCI:0000:1b:00): 79, pid=1896, GPU has fallen off the bus.\n"
METRICS = (
    "# TYPE DCGM_FI_DEV_SM_CLOCK gauge\n"
    'DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-5f3e0000-0000-0000-0000-000000000000",Hostname="node-7"} 1395 '
    f"{BEGIN_NS // 10**6}\n"
)


@pytest.fixture(autouse=True)
def _own_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store_variables(monkeypatch, tmp_path)
    monkeypatch.chdir(tmp_path)


def traces(folder: Path, *, absolute: bool = True) -> Path:
    """Two ranks; `absolute`: their recordings say at what time they ran."""
    header = {"baseTimeNanoseconds": BEGIN_NS} if absolute else {}
    for rank in (0, 1):
        content = kb.trace(kb.training_steps(3), rank=rank, world=2, **header)
        kb.write(folder / f"rank{rank}.json.gz", content)
    return folder


def log(path: Path, text: str = XID) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def data(*arguments: str) -> dict[str, Any]:
    outcome = kair(*arguments, "--json")
    assert outcome.status == 0, outcome.err
    document: dict[str, Any] = json.loads(outcome.out)
    assert_valid(document, arguments[0])
    found: dict[str, Any] = document["data"]
    return found


def kinds(found: dict[str, Any]) -> list[str]:
    return [one["kind"] for one in found["sources"]]


@pytest.fixture
def job(tmp_path: Path) -> str:
    assert kair("import", str(traces(tmp_path / "traces")), "--job", "job1").status == 0
    return "job1"


@pytest.mark.slow
def test_what_lies_beside_traces_is_read_by_itself(tmp_path: Path) -> None:
    folder = traces(tmp_path / "run")
    assert data("triage", str(folder))["sources"] == []
    assert "evidence" not in kair("triage", str(folder)).out
    log(folder / "evidence" / "host=node-7" / "dmesg.txt")
    assert kinds(data("triage", str(folder))) == ["kernel log"]
    outcome = kair("triage", str(folder))
    assert outcome.out.splitlines()[-1] == "evidence: 1 source (kernel log)"
    assert "dmesg" not in outcome.err
    listed = data("evidence", str(folder))
    assert [(one["name"], one["rows"], one["hosts"]) for one in listed["sources"]] == [
        ("host=node-7/dmesg.txt", 1, ["node-7"])
    ]
    assert kinds(data("evidence", str(folder / "rank0.json.gz"))) == ["kernel log"]


def test_damage_beside_traces_does_not_cost_the_verdict(tmp_path: Path) -> None:
    folder = traces(tmp_path / "run")
    (folder / "evidence").mkdir()
    (folder / "evidence" / "cut.parquet").write_bytes(b"PAR1 and nothing more")
    outcome = kair("triage", str(folder))
    assert outcome.status == 0
    assert "warning: " in outcome.err
    assert "cut.parquet" in outcome.err
    assert "evidence:" not in outcome.out


@pytest.mark.slow
def test_evidence_is_added_once_and_listed(job: str, tmp_path: Path) -> None:
    log(tmp_path / "telemetry" / "dmesg.txt")
    log(tmp_path / "telemetry" / "node.prom", METRICS)
    first = data("evidence", "add", job, str(tmp_path / "telemetry"))
    assert [one["was_there"] for one in first["added"]] == [False, False]
    again = kair("evidence", "add", job, str(tmp_path / "telemetry"))
    assert again.out.splitlines()[0] == "job1: 0 files of evidence added; 2 files were there already"
    for words in ((job,), ("list", job), ("list",), ()):
        assert sorted(kinds(data("evidence", *words))) == sorted(kinds(first))
    assert "kernel log" in kinds(first)
    assert len(data("triage", job)["sources"]) == 2
    assert kair("evidence", job).out.startswith("job1: 2 sources of evidence, 2 rows\n")


def test_the_job_in_use_is_taken_and_told_where_none_is_named(job: str) -> None:
    outcome = kair("evidence")
    assert outcome.out == f"{job}: no evidence next to the recording (kair evidence add {job} FILE keeps some)\n"
    assert f"using job {job}" in outcome.err


@pytest.mark.slow
def test_a_triage_that_was_kept_before_there_was_evidence_counts_no_more(job: str, tmp_path: Path) -> None:
    (recording,) = (tmp_path / "store" / job).glob("recording-*")
    kair("triage", job, "--evidence", str(log(tmp_path / "other.txt", XID * 2)))
    kept = (recording / "triage.json").read_bytes()
    assert data("triage", job)["sources"] == []
    kair("evidence", "add", job, str(log(tmp_path / "dmesg.txt")))
    assert len(data("triage", job)["sources"]) == 1
    assert (recording / "triage.json").read_bytes() != kept


def test_a_recording_at_another_time_is_told(job: str, tmp_path: Path) -> None:
    log(tmp_path / "old.txt", XID.replace("2026-11-27", "2026-11-20"))
    found = data("evidence", job, "--evidence", str(tmp_path / "old.txt"))
    assert found["outside"] == ["old.txt"]
    assert found["first_ns"] < found["last_ns"] < found["first_ns"] + 10**9
    assert "nothing of that time: old.txt" in kair("evidence", job, "--evidence", str(tmp_path / "old.txt")).out


@contextmanager
def prometheus() -> Iterator[tuple[str, list[dict[str, list[str]]]]]:
    """A server that knows one clock, at every time that it is asked for; its address, and what it was asked."""
    asked: list[dict[str, list[str]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            form = parse_qs(urlsplit(self.path).query)
            asked.append(form)
            labels = {"__name__": "DCGM_FI_DEV_SM_CLOCK", "UUID": "GPU-5f3e0000-0000-0000-0000-000000000000"}
            values = [[float(form["start"][0]), "1755"], [float(form["end"][0]), "1395"]]
            result = [{"metric": labels, "values": values}] if "DCGM_FI_DEV_SM_CLOCK" in form["query"][0] else []
            text = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.slow
def test_a_server_is_asked_about_the_time_of_the_job(job: str) -> None:
    with prometheus() as (url, asked):
        found = data("evidence", job, "--evidence", url)
        assert data("triage", job, "--evidence", url)["sources"] == found["sources"]
        added = data("evidence", "add", job, url)
    (source,) = found["sources"]
    assert source["name"] == url.removeprefix("http://")
    assert source["first_ns"] == pytest.approx(BEGIN_NS - 600 * 10**9, abs=2 * 10**9)
    assert source["last_ns"] == pytest.approx(BEGIN_NS + 600 * 10**9, abs=20 * 10**9)
    assert all(float(form["step"][0]) == 15 for form in asked)
    assert [one["was_there"] for one in added["added"]] == [False]
    # The server is gone, and what it told is kept.
    assert data("evidence", job)["sources"] == found["sources"]


def test_a_server_is_not_asked_about_a_job_that_has_no_times(tmp_path: Path) -> None:
    folder = traces(tmp_path / "run", absolute=False)
    with prometheus() as (url, asked):
        outcome = kair("triage", str(folder), "--evidence", url)
    assert (outcome.status, outcome.out, asked) == (3, "", [])
    assert "does not say at what time it ran" in outcome.err.splitlines()[0]
    log(folder / "evidence" / "dmesg.txt")
    assert data("evidence", str(folder))["first_ns"] is None


def test_evidence_is_not_added_to_a_store_behind_a_url(tmp_path: Path) -> None:
    log(tmp_path / "dmesg.txt")
    (tmp_path / "far").mkdir()
    outcome = kair("evidence", "add", "job1", "dmesg.txt", "--store", f"file://{tmp_path / 'far'}")
    assert (outcome.status, outcome.out) == (2, "")
    assert "written by kair coordinator alone" in outcome.err


def test_sources_are_counted_by_their_kinds() -> None:
    def source(kind: str, every: float | None = None) -> EvidenceSource:
        return EvidenceSource(name="x", kind=kind, interval_s=every)

    three = (source("dcgm", 30.0), source("kernel log"), source("capture", 1.0))
    assert sources_in_words(three) == "3 sources (dcgm every 30 s, kernel log, capture every 1 s)"
    many = tuple(source("kernel log") for _ in range(64))
    assert sources_in_words(many) == "64 sources (64 × kernel log)"
    kinds = tuple(source(f"kind {number}") for number in range(10))
    assert sources_in_words(kinds).endswith("kind 7 and 2 kinds more)")


def test_a_note_of_several_sources_is_said_once() -> None:
    every = (1.0, 5.0, 10.0)
    sources = tuple(
        EvidenceSource(name=f"capture, every {s:g} s", kind="capture", interval_s=s, notes=("no NVML",)) for s in every
    )
    assert notes_of(sources) == ["capture, every 1 s and 2 more: no NVML"]


def test_nothing_of_a_log_reaches_the_terminal(tmp_path: Path) -> None:
    folder = traces(tmp_path / "run")
    log(folder / "evidence" / "host=\x1b[31mred\x9b" / "dmesg\x1b]0;owned\x07.txt")
    for form in ("table", "wide", "json", "csv", "ndjson", "tree"):
        outcome = kair("evidence", str(folder), "-o", form)
        assert outcome.status == 0
        assert not [sign for sign in outcome.out + outcome.err if (ord(sign) < 0x20 and sign != "\n") or sign == "\x9b"]


def test_a_terminal_of_80_columns_is_not_overrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("COLUMNS", "80"), ("TERM", "xterm"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    folder = traces(tmp_path / "run")
    log(folder / "evidence" / "host=node-7" / f"{'dmesg-' * 12}.txt")
    log(folder / "evidence" / "node.prom", METRICS)
    for command in ("evidence", "triage"):
        table = kair(command, str(folder), terminal=True).out
        assert "kernel log" in table
        assert max(map(len, table.splitlines())) <= 80


@pytest.mark.slow
def test_in_a_shell_the_job_in_hand_is_listed_and_a_verdict_is_asked_anew(job: str, tmp_path: Path) -> None:
    log(tmp_path / "dmesg.txt")
    lines = f"triage; evidence; evidence add {job} dmesg.txt; evidence list; triage"
    outcome = kair("shell", job, "-c", lines)
    assert outcome.status == 0, outcome.err
    assert outcome.out.count("evidence: 1 source (kernel log)") == 1
    assert f"{job}: no evidence next to the recording" in outcome.out
    assert f"{job}: 1 source of evidence, 1 row" in outcome.out


def test_evidence_beside_traces_is_kept_with_the_imported_job(tmp_path: Path) -> None:
    folder = traces(tmp_path / "traces")
    log(folder / "evidence" / "dmesg.txt")
    assert kair("import", str(folder), "--job", "one").status == 0
    assert kinds(data("evidence", "one")) == ["kernel log"]
    log(folder / "evidence" / "dmesg.txt", "nothing that any tool says\n")
    outcome = kair("import", str(folder), "--job", "two")
    assert outcome.status == 0
    assert "evidence next to the traces" in outcome.err


def test_where_one_of_several_is_bad_none_is_kept(tmp_path: Path) -> None:
    folder = traces(tmp_path / "traces")
    assert kair("import", str(folder), "--job", "one").status == 0
    bad = log(tmp_path / "bad.txt", "nothing that any tool says\n")
    assert kair("evidence", "add", "one", str(log(tmp_path / "dmesg.txt")), str(bad)).status == 3
    assert data("evidence", "one")["sources"] == []
