"""Every format of every answer: the promised fields, valid against the schema, and nothing else on stdout."""

import csv
import io
import json
import re
from dataclasses import replace
from functools import cache
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator, ValidationError  # type: ignore[import-untyped]
from support.cli_samples import ARGUMENTS, HOSTILE_RESULTS, RESULTS, answering, assert_valid, blame, kair, trace

from kair_engine.trace.model import KairWarning
from kair_tui.cli.registry import COMMANDS, find

FORMATS = ("table", "wide", "tree", "json", "ndjson", "csv", "md")
TREES = ("triage", "blame")


def _answer(monkeypatch: pytest.MonkeyPatch, command: str, *arguments: str, **options: Any) -> str:  # noqa: ANN401
    with answering(monkeypatch, options.get("results"), options.get("opened")):
        outcome = kair(command, *ARGUMENTS.get(command, ()), *arguments, terminal=options.get("terminal", False))
    assert outcome.status == 0, outcome.err
    return outcome.out


@pytest.mark.parametrize("command", RESULTS)
def test_json_is_one_document_with_the_promised_envelope(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    document = json.loads(_answer(monkeypatch, command, "--json", "--step", "40-41"))
    assert list(document) == ["schema", "version", "kair", "job", "data", "warnings"]
    assert document["schema"] == f"kair.{command}"
    assert document["version"] == "5.0"
    assert document["job"] == {
        "name": "job123",
        "source": "/traces/job123",
        "world_size": 3,
        "ranks": [0, 1],
        "steps": [40, 41],
    }
    assert "warnings" not in document["data"]
    assert document["warnings"][0] == {"code": "missing_ranks", "message": "rank 2 of 3 left no trace", "run": None}


@pytest.mark.slow
@pytest.mark.parametrize("command", RESULTS)
def test_json_is_what_the_schema_says(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    document = json.loads(_answer(monkeypatch, command, "--json"))
    schema = json.loads(kair("schema", command).out)
    assert set(schema["required"]) == set(document)
    data = schema["$defs"][schema["properties"]["data"]["$ref"].rsplit("/", 1)[1]]
    assert set(data["properties"]) == set(document["data"])
    assert set(data["required"]) <= set(document["data"])
    entry = find(command)
    assert entry is not None
    result_type = entry.result_type()
    read = msgspec.convert({**document["data"], "warnings": []}, result_type, str_keys=True)
    assert read == replace(RESULTS[command], warnings=())
    assert_valid(document, command)
    spoilt = {**document, "data": dict(list(document["data"].items())[1:])}
    with pytest.raises(ValidationError):
        assert_valid(spoilt, command)


def test_warnings_of_job_and_result_come_once_each_in_json_and_on_stderr(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repeated = replace(RESULTS["steps"], warnings=(*trace().job.warnings, KairWarning("x", "another")))
    with answering(monkeypatch, {"steps": repeated}):
        outcome = kair("steps", "--json")
        quiet = kair("steps", "--json", "--quiet")
    assert [warning["code"] for warning in json.loads(outcome.out)["warnings"]] == ["missing_ranks", "x"]
    assert outcome.err == "kair: warning: rank 2 of 3 left no trace\nkair: warning: another\n"
    assert quiet.err == ""
    assert quiet.out == outcome.out


def test_a_float_that_is_no_number_becomes_null(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = replace(RESULTS["triage"], step_time_us=float("nan"), waiting_us_per_step=float("inf"))
    document = json.loads(_answer(monkeypatch, "triage", "--json", results={"triage": broken}))
    assert document["data"]["step_time_us"] is None
    assert document["data"]["waiting_us_per_step"] is None


@pytest.mark.parametrize("command", RESULTS)
def test_ndjson_is_framed_by_a_header_and_an_end(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    lines = _answer(monkeypatch, command, "-o", "ndjson").splitlines()
    records = [json.loads(line) for line in lines]
    header, *rows, end = records
    assert header["record"] == "header"
    assert header["schema"] == f"kair.{command}"
    assert header["warnings"]
    assert end == {"record": "end", "rows": len(rows)}
    assert all(row["record"] not in ("header", "end") for row in rows)


def test_ndjson_of_triage_has_findings_and_ranking(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [json.loads(line) for line in _answer(monkeypatch, "triage", "-o", "ndjson").splitlines()]
    assert [record["record"] for record in records] == ["header", "finding", "rank", "rank", "end"]
    assert records[0]["data"]["verdict"] == "straggler"
    assert records[1]["cause"] == "compute"


def test_csv_is_the_main_table(monkeypatch: pytest.MonkeyPatch) -> None:
    text = _answer(monkeypatch, "localize", "-o", "csv")
    assert "\r" not in text
    header = "rank,host,role,score,p_value,flagged,excess_us.compute,excess_us.host,large_delays,compared"
    assert text.splitlines()[0] == header
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(row["rank"], row["score"]) for row in rows] == [("1", "8.25"), ("0", "-0.5")]


def test_csv_keeps_a_spreadsheet_from_running_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    results = {"localize": replace(RESULTS["localize"], scores=(replace(RESULTS["localize"].scores[0], host="=1+1"),))}
    text = _answer(monkeypatch, "localize", "-o", "csv", "--fields", "host,score", results=results)
    assert text == "host,score\n'=1+1,8.25\n"


@pytest.mark.parametrize("command", RESULTS)
def test_no_cell_of_csv_is_json(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    rows = list(csv.reader(io.StringIO(_answer(monkeypatch, command, "-o", "csv"))))
    assert {len(row) for row in rows} == {len(rows[0])}
    assert not any(cell.startswith(("[", "{", "(")) for row in rows for cell in row)


def test_csv_of_triage_is_the_verdict_and_then_a_row_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict, finding = csv.DictReader(io.StringIO(_answer(monkeypatch, "triage", "-o", "csv")))
    assert (verdict["record"], verdict["number"], verdict["verdict"]) == ("verdict", "", "straggler")
    assert (verdict["text"], verdict["steps"]) == (RESULTS["triage"].summary, "40 41 42")
    assert (finding["record"], finding["number"], finding["cause"], finding["ranks"]) == (
        "finding",
        "1",
        "compute",
        "1",
    )
    assert finding["time_lost_us_per_step"] == "5100.0"
    chosen = _answer(monkeypatch, "triage", "-o", "csv", "--fields", "record,ranks,seen_on")
    assert chosen == "record,ranks,seen_on\nverdict,,\nfinding,1,\n"
    with answering(monkeypatch):
        assert kair("triage", "-o", "csv", "--fields", "rank").status == 2


@cache
def schema_of_command(command: str) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(kair("schema", command).out)
    return schema


WITH_SCHEMA = [entry.name for entry in COMMANDS if entry.has_result]


@pytest.mark.slow
@pytest.mark.parametrize("command", WITH_SCHEMA)
def test_every_schema_is_a_json_schema(command: str) -> None:
    Draft202012Validator.check_schema(schema_of_command(command))


@pytest.mark.parametrize("command", WITH_SCHEMA)
def test_every_property_of_a_schema_is_described(command: str) -> None:
    schema = schema_of_command(command)
    parts = [schema, *schema["$defs"].values()]
    assert [
        name for part in parts for name, of in part.get("properties", {}).items() if not of.get("description")
    ] == []


def test_fields_keep_columns_of_the_main_table(monkeypatch: pytest.MonkeyPatch) -> None:
    document = json.loads(_answer(monkeypatch, "triage", "--json", "--fields", "rank,score"))
    assert document["data"]["ranking"] == [{"rank": 1, "score": 8.25}, {"rank": 0, "score": -0.5}]
    assert document["data"]["findings"][0]["cause"] == "compute"
    records = _answer(monkeypatch, "triage", "-o", "ndjson", "--fields", "rank").splitlines()
    assert [json.loads(line) for line in records[1:-1]] == [
        {"record": "rank", "rank": 1},
        {"record": "rank", "rank": 0},
    ]
    table = _answer(monkeypatch, "localize", "--fields", "p_value,rank,excess_us").splitlines()
    assert table[2].split() == ["p", "rank", "excess", "per", "step"]


@pytest.mark.parametrize("command", RESULTS)
def test_the_answer_is_in_the_first_line(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    table = _answer(monkeypatch, command)
    first = table.splitlines()[0]
    assert first[0].isalnum()
    assert len(first.split()) > 4
    assert "at::native::elementwise_kernel" in table or command in (
        "localize",
        "rank",
        "frequency",
        "steps",
        "info",
        "whatif",
        "timeline",
        "collectives",
    )


@pytest.mark.parametrize("command", RESULTS)
def test_a_terminal_of_80_columns_is_not_overrun(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    table = _answer(monkeypatch, command, terminal=True)
    assert max(map(len, table.splitlines())) <= 80


def test_off_a_terminal_nothing_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    table = _answer(monkeypatch, "triage", "-o", "wide")
    assert RESULTS["triage"].findings[0].operator in table
    assert "…" not in table


@pytest.mark.parametrize(
    ("variables", "arguments"),
    [({"NO_COLOR": "1"}, ()), ({"TERM": "dumb"}, ()), ({}, ("--no-color",))],
)
def test_colour_can_be_declined(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], arguments: tuple[str, ...]
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[1;31m" in _answer(monkeypatch, "localize", terminal=True)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert "\x1b" not in _answer(monkeypatch, "localize", *arguments, terminal=True)


# The report of a triage asks the recording further questions: test_report.py has names in it.
@pytest.mark.parametrize(
    ("command", "output"),
    [(command, output) for command in HOSTILE_RESULTS for output in FORMATS if (command, output) != ("triage", "md")],
)
@pytest.mark.parametrize("ascii_only", [False, True])
def test_names_in_traces_cannot_touch_the_terminal(
    monkeypatch: pytest.MonkeyPatch, command: str, output: str, ascii_only: bool
) -> None:
    options = ("--ascii",) if ascii_only else ()
    with answering(monkeypatch, HOSTILE_RESULTS):
        outcome = kair(command, *ARGUMENTS.get(command, ()), "-o", output, *options)
    assert outcome.status == 0
    everything = (outcome.out + outcome.err).replace("\r\n", "\n")
    assert not [sign for sign in everything if ord(sign) < 0x20 and sign != "\n"]
    assert not {"\x7f", "\x9b", "\u202e"} & set(everything)
    if ascii_only:
        assert everything.isascii()


@pytest.mark.parametrize("command", TREES)
def test_trees_are_as_safe_and_interpret_no_markup(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    tree = _answer(monkeypatch, command, "-o", "tree", results=HOSTILE_RESULTS)
    assert "[red]evil[/red]" in tree
    assert "😄" not in tree
    assert "\x1b" not in tree
    assert "└── " in tree
    assert _answer(monkeypatch, command, "-o", "tree", "--ascii", results=HOSTILE_RESULTS).isascii()


def test_hostile_names_survive_json_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    for options in ((), ("--ascii",)):
        document = json.loads(_answer(monkeypatch, "triage", "--json", *options, results=HOSTILE_RESULTS))
        assert document["data"]["findings"][0]["operator"] == HOSTILE_RESULTS["triage"].findings[0].operator


def test_verbose_says_where_the_job_is_and_how_long_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(monkeypatch):
        assert "kair: /traces/job123: " in kair("steps", "-v").err


def test_localize_shows_slow_operators_and_the_step_that_shares_refer_to(monkeypatch: pytest.MonkeyPatch) -> None:
    text = _answer(monkeypatch, "localize", "-o", "table")
    assert re.search(r"rank +slow operator +excess per step +p\n.*\n +1 +compute +\+5\.15 ms +0\.0003\n", text)
    assert re.search(r"\nstep 105 ms, mean of \d+ steps \(.+\)\n", text)


def test_idle_time_is_called_the_same_in_blame_as_in_the_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    found = blame()
    idle = replace(found, root_causes=(replace(found.root_causes[0], operator="aten::mm", cause="host", is_edge=True),))
    assert "idle before aten::mm" in _answer(monkeypatch, "blame", "-o", "table", results={"blame": idle})
