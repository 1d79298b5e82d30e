"""What of telemetry no case of a file shows (tests/cases/evidence): a server that is asked, limits, what is hostile."""

import gzip
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.cases import CASES, input_of

from kair_engine.errors import InputError
from kair_engine.readers.evidence import nvidia_smi, opening, prometheus_api, prometheus_names, prometheus_text
from kair_engine.trace.evidence_table import SCHEMA, EvidenceFile
from kair_engine.trace.measures import MEASURES

UUID = "GPU-5f3e0000-0000-4000-8000-00000000000a"


GPU = f"gpu:{UUID}"


AT = 1_732_700_000


Row = tuple[float, str | None, str, str, float | str | None]


def rows(file: EvidenceFile, name: str | None = None) -> list[Row]:
    """(seconds, host, entity, name, value or text) in order of time."""
    assert file.table.schema == SCHEMA
    return [
        (round(row["time_ns"] / 1e9, 3), row["host"], row["entity"], row["name"], row["text"] or row["value"])
        for row in file.table.to_pylist()
        if name in (None, row["name"])
    ]


def values(file: EvidenceFile, name: str) -> list[float | str | None]:
    return [row[-1] for row in rows(file, name)]


@pytest.mark.parametrize(
    "mark", ["# 2024-11-27T09:33:20Z", "2024-11-27 09:33:20+00:00", "1732700000", "# time: 1732700000.0"]
)
def test_a_line_before_a_scrape_tells_its_time(tmp_path: Path, mark: str) -> None:
    (tmp_path / "metrics.prom").write_text(f"{mark}\nnode_memory_MemTotal_bytes 8\n")
    file = prometheus_text.read(tmp_path / "metrics.prom")
    assert [row[0] for row in rows(file)] == [AT]
    assert file.sources[0].clock == "host"
    assert file.sources[0].passed_over == 0


def test_a_cut_compressed_file_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    whole = gzip.compress("".join(f"node_memory_MemTotal_bytes {at % 7} {AT + at}000\n" for at in range(5000)).encode())
    path = tmp_path / "metrics.prom.gz"
    path.write_bytes(whole[: len(whole) // 2])
    file = prometheus_text.read(path)
    assert 100 < len(file.table) < 5000
    assert any("not read to its end" in note for note in file.sources[0].notes)


def test_all_names_stand_for_measures_that_there_are() -> None:
    for meanings in prometheus_names.NAMES.values():
        for one in meanings:
            kind = MEASURES[one.measure].kind
            assert (kind == "event") == (one.form in ("last code", "codes", "growth"))
            assert (kind == "state") == (one.form == "state")


def test_long_lines_are_cut_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"first\r\n" + b"x" * 900_000 + b"\nlast")
    lines = opening.Lines(path)
    assert [(number, len(line)) for number, line in lines] == [(1, 5), (2, opening.LONGEST_LINE), (3, 4)]
    assert lines.cut_lines == 1
    assert list(opening.Lines(path))[2] == (3, "last")


def test_no_more_is_read_than_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"one\ntwo\nthree\n")
    lines = opening.Lines(path, 9)
    assert [line for _, line in lines] == ["one", "two", "t"]
    assert lines.is_cut
    bomb = tmp_path / "bomb.gz"
    bomb.write_bytes(gzip.compress(b"0" * (8 << 20)))
    with pytest.raises(InputError, match="holds more than"):
        opening.read_bounded(bomb, 1 << 20)
    assert len(opening.read_bounded(bomb, 8 << 20)) == 8 << 20


@given(content=st.binary(max_size=300), size=st.integers(1, 40))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
def test_lines_are_those_of_the_file(tmp_path: Path, content: bytes, size: int) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(content)
    if content[:2] == b"\x1f\x8b" or content[:4] == b"\x28\xb5\x2f\xfd":
        return
    told = [line for _, line in opening.Lines(path, size)]
    expected = content[:size].split(b"\n")
    assert told == [
        line.removesuffix(b"\r").decode("utf-8", "replace") for line in (expected if expected[-1] else expected[:-1])
    ]


def answer(*series: tuple[dict[str, str], list[Any]]) -> dict[str, Any]:
    result = [{"metric": metric, "values": points} for metric, points in series]
    return {"status": "success", "data": {"resultType": "matrix", "result": result}}


class Server(BaseHTTPRequestHandler):
    """Answers with the series of `series` that the query's first selector names."""

    series: ClassVar[list[dict[str, str]]] = []
    asked: ClassVar[list[dict[str, str]]] = []
    headers_seen: ClassVar[list[Any]] = []
    most_steps: ClassVar[int] = 11_000
    fixed: ClassVar[tuple[int, bytes] | None] = None

    def do_GET(self) -> None:
        query = {name: value[0] for name, value in parse_qs(urlsplit(self.path).query).items()}
        self.asked.append(query | {"path": urlsplit(self.path).path})
        self.headers_seen.append(dict(self.headers))
        if self.fixed is not None:
            self._say(*self.fixed)
            return
        begin, end, step = (float(query[name]) for name in ("start", "end", "step"))
        count = int((end - begin) / step + 1e-9) + 1
        if count > self.most_steps:
            self._say(422, b'{"status":"error","error":"query processing would load too many samples"}')
            return
        found = [
            (metric, [[begin + step * at, str(begin + step * at - AT)] for at in range(count)])
            for metric in self.series
            if self._is_asked(query["query"], metric)
        ]
        told = [
            ({k: v for k, v in m.items() if k != "__name__"} if " without " in query["query"] else m, p)
            for m, p in found
        ]
        self._say(200, json.dumps(answer(*told)).encode())

    @staticmethod
    def _is_asked(query: str, metric: dict[str, str]) -> bool:
        for name, matchers in re.findall(r"(\w*)\{([^}]*)\}", query):
            wanted = [("__name__", name)] if name else []
            wanted += re.findall(r'(\w+)=~"([^"]*)"', matchers)
            if all(re.fullmatch(pattern, metric.get(label, "")) for label, pattern in wanted):
                return True
        return False

    def _say(self, status: int, body: bytes) -> None:
        self.send_response(status)
        if status in (301, 302):
            self.send_header("Location", "http://192.0.2.1/")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@contextmanager
def serving(**attributes: Any) -> Iterator[tuple[str, type[Server]]]:  # noqa: ANN401
    handler = type("Handler", (Server,), {"asked": [], "headers_seen": [], **attributes})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", handler
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


NODES = [
    {"__name__": "DCGM_FI_DEV_SM_CLOCK", "UUID": UUID, "Hostname": host, "instance": f"10.0.0.{at}:9400"}
    for at, host in enumerate(("node-7", "node-8", "node-77"))
]


UNAME = [
    {"__name__": "node_uname_info", "nodename": host, "instance": f"10.0.0.{at}:9100"}
    for at, host in enumerate(("node-7.cluster", "node-8.cluster"))
]


CORES = [{"__name__": "node_cpu_seconds_total", "mode": "steal", "instance": f"10.0.0.{at}:9100"} for at in (0, 1)]


def test_a_server_is_asked_for_the_jobs_hosts_alone() -> None:
    with serving(series=[*NODES, *UNAME, *CORES]) as (url, server):
        file = prometheus_api.fetch(f"{url}/prom/", AT * 10**9, (AT + 60) * 10**9, 15, ["node-7"])
    assert {(row[1], row[2], row[3]) for row in rows(file)} == {
        ("node-7", GPU, "gpu_sm_clock"),
        # By the address that node_exporter has on that host.
        ("node-7.cluster", "host", "cpu_steal_time"),
    }
    assert values(file, "gpu_sm_clock") == [0.0, 15.0, 30.0, 45.0, 60.0]
    (source,) = file.sources
    assert (source.clock, source.interval_s, source.name) == ("unix", 15.0, url.removeprefix("http://"))
    assert {one["path"] for one in server.asked} == {"/prom/api/v1/query_range"}
    assert all(set(one) == {"query", "start", "end", "step", "path"} for one in server.asked)


def test_where_no_series_names_the_hosts_all_are_asked_for() -> None:
    with serving(series=NODES) as (url, _):
        file = prometheus_api.fetch(url, AT * 10**9, (AT + 15) * 10**9, 15, ["gpu-box"])
    assert {row[1] for row in rows(file)} == {"node-7", "node-8", "node-77"}
    assert any("every host it knows" in note for note in file.sources[0].notes)


@pytest.mark.slow
def test_a_long_time_is_asked_for_in_parts_without_gaps_or_repeats() -> None:
    with serving(series=NODES[:1], most_steps=700) as (url, server):
        file = prometheus_api.fetch(url, AT * 10**9, (AT + 23_000) * 10**9, 1)
    assert values(file, "gpu_sm_clock") == [float(at) for at in range(23_001)]
    assert all(float(one["end"]) - float(one["start"]) <= 11_000 for one in server.asked)


def test_a_user_in_the_address_is_sent_and_not_shown() -> None:
    with serving(series=NODES[:1]) as (url, server):
        file = prometheus_api.fetch(url.replace("//", "//me:s%40crit@"), AT * 10**9, AT * 10**9, 1)
    assert server.headers_seen[0]["Authorization"] == "Basic bWU6c0Bjcml0"
    assert "crit" not in file.sources[0].name


@pytest.mark.parametrize(
    ("fixed", "said"),
    [
        (
            (400, b'{"status":"error","error":"parse error: \\u001b[31munexpected"}'),
            r"refuses the query \(400\): parse",
        ),
        ((401, b""), "requires a login"),
        ((302, b""), "redirects to another address"),
        ((200, b"<html>log in"), "does not answer as Prometheus does: <html>"),
        ((422, b'{"error":"too many samples"}'), "refuses the query: too many samples"),
        ((200, json.dumps(answer()).encode()), "none of the metrics"),
    ],
)
def test_errors_of_a_server_are_one_line_with_a_way_out(fixed: tuple[int, bytes], said: str) -> None:
    with serving(fixed=fixed) as (url, _), pytest.raises(InputError, match=said) as failure:
        prometheus_api.fetch(url.replace("//", "//me:secret@"), AT * 10**9, (AT + 60) * 10**9, 15, ["node-7"])
    told = f"{failure.value} {failure.value.hint}"
    assert told.isprintable()
    assert "secret" not in told
    assert failure.value.hint


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://host/", "host:9090", "http://", "http://[::1", "http://h:x/"]
)
def test_only_servers_of_http_are_asked(url: str) -> None:
    with pytest.raises(InputError, match="no address of a server"):
        prometheus_api.fetch(url, 0, 1, 1)


def test_a_server_that_is_not_there(unused_port: int) -> None:
    with pytest.raises(InputError, match="does not answer"):
        prometheus_api.fetch(f"http://127.0.0.1:{unused_port}", AT * 10**9, AT * 10**9, 1)


@pytest.fixture
def unused_port() -> int:
    with serving() as (url, _):
        return urlsplit(url).port or 0


SMI = input_of(CASES / "evidence/nvidia_smi/all_that_nvidia_smi_knows_of_a_device")


@pytest.mark.parametrize(
    "doctype",
    [
        '<!DOCTYPE nvidia_smi_log [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]>',
        '<!DOCTYPE nvidia_smi_log [<!ENTITY a SYSTEM "file:///etc/passwd">]>',
        '<!DOCTYPE other SYSTEM "x.dtd">',
    ],
)
def test_xml_that_defines_entities_is_refused(tmp_path: Path, doctype: str) -> None:
    path = tmp_path / "smi.xml"
    path.write_text(SMI.read_text().replace('<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">', doctype))
    with pytest.raises(InputError, match="defines entities"):
        nvidia_smi.read(path)


def test_deep_xml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "smi.xml"
    path.write_text("<?xml version='1.0'?><nvidia_smi_log>" + "<a>" * 100_000)
    with pytest.raises(InputError):
        nvidia_smi.read(path)
