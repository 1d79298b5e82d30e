"""The formats of a graph, which `kair blame` has: read back, and safe whatever the names are."""

import json
import re
from dataclasses import replace
from io import BytesIO
from typing import Any

import networkx as nx
import pytest
from support.cli_samples import HOSTILE, HOSTILE_RESULTS, RESULTS, answering, kair, waiting_for
from support.places import SAMPLES

from kair.app.waiting_graph import OTHERS
from kair_engine.results.blame import BlameResult
from kair_tui.render.blame_graph import MOST_CAUSES, MOST_RANKS, drawing, graph
from kair_tui.render.view import GRAPH_FORMATS, graph_text

_STRING = r'"(?:[^"\\]|\\.)*"'
_ATTRIBUTES = rf"\[(?:\w+={_STRING}(?:, )?)*\]"
_DOT_LINE = re.compile(
    rf"  (?:\w+={_STRING}|(?:node|edge) {_ATTRIBUTES}|(?P<one>{_STRING})(?: -> (?P<other>{_STRING}))? {_ATTRIBUTES});"
)


def _answer(monkeypatch: pytest.MonkeyPatch, *arguments: str, result: BlameResult | None = None) -> str:
    with answering(monkeypatch, {"blame": result or RESULTS["blame"]}):
        outcome = kair("blame", *arguments)
    assert outcome.status == 0, outcome.err
    return outcome.out


def _read_dot(text: str) -> tuple[set[str], set[tuple[str, str]]]:
    """Nodes and edges of DOT as Kair writes it: a line each, every value in quotes that are closed on it."""
    first, *lines, last, nothing = text.split("\n")
    assert (first, last, nothing) == ("digraph kair {", "}", "")
    found = [_DOT_LINE.fullmatch(line) for line in lines]
    assert all(found), [line for line, match in zip(lines, found, strict=True) if not match]
    nodes = {match["one"] for match in found if match and match["one"] and not match["other"]}
    return nodes, {(match["one"], match["other"]) for match in found if match and match["other"]}


def test_node_link_is_read_back_as_the_same_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    data = json.loads(_answer(monkeypatch, "-o", "node-link"))
    read = nx.node_link_graph(data, edges="edges")
    assert nx.utils.graphs_equal(read, graph(RESULTS["blame"], "node-link"))
    assert read.edges["rank0", "rank1"] == {
        "kind": "waited",
        "waited_us": 5000.0,
        "share": 5000 / 6800,
        "collectives": 1,
        "label": "5.00 ms",
    }
    assert read.graph["title"].startswith("waiting came from rank 1 (75.0 %)")


def test_graphml_is_read_back_with_every_value(monkeypatch: pytest.MonkeyPatch) -> None:
    read = nx.parse_graphml(_answer(monkeypatch, "-o", "graphml"))
    assert dict(read.nodes(data=True)) == dict(graph(RESULTS["blame"], "graphml").nodes(data=True))
    assert read.edges["rank1", "rank1_cause1"]["blamed_us"] == 5100.0
    assert read.edges[OTHERS, "rank1"] == {
        "kind": "waited",
        "waited_us": 100.0,
        "share": 100 / 6800,
        "collectives": 2,
    } | {"label": "100 µs"}


def test_dot_is_one_graph_with_every_node_and_where_waiting_came_from_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    text = _answer(monkeypatch, "-o", "dot")
    nodes, edges = _read_dot(text)
    assert nodes == {'"rank0"', '"rank1"', '"rank1_cause1"', '"others"'}
    assert edges == {('"rank0"', '"rank1"'), ('"others"', '"rank1"'), ('"rank1"', '"rank1_cause1"')}
    filled = [line.split()[0] for line in text.splitlines() if 'fillcolor="#f3e2b3"' in line]
    assert filled == ['"rank1"', '"rank1_cause1"']
    assert '"rank0" -> "rank1" [label="5.00 ms", penwidth="4.68"];' in text


@pytest.mark.parametrize("form", GRAPH_FORMATS)
@pytest.mark.parametrize("ascii_only", [False, True])
def test_names_in_traces_cannot_touch_the_terminal(
    monkeypatch: pytest.MonkeyPatch, form: str, ascii_only: bool
) -> None:
    options = ("--ascii",) if ascii_only else ()
    text = _answer(monkeypatch, "-o", form, *options, result=HOSTILE_RESULTS["blame"])
    assert not [sign for sign in text if ord(sign) < 0x20 and sign != "\n"]
    assert not {"\x7f", "\x9b", "\u202e"} & set(text)
    assert not ascii_only or text.isascii()
    if form == "dot":
        _read_dot(text)
    elif form == "node-link":
        assert json.loads(text)["nodes"][2]["operator"] == HOSTILE
    else:
        assert "[red]evil[/red]" in nx.parse_graphml(text).nodes["rank1_cause1"]["operator"]


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ('a"];b [label="', '"a\\"];b [label=\\"'),
        ("ends with \\", '"ends with \\\\'),
        ("\\N \\G \\l", '"\\\\N \\\\G \\\\l'),
        ("a&quot;b", '"a&amp;quot;b'),
        ("<table>", '"<table>'),
        ("two\nlines", '"two␊lines (compute)\\non rank 1'),
        ("nul\0 and \ufffe", '"nul␀ and '),
    ],
)
def test_names_stay_inside_their_quotes(name: str, label: str) -> None:
    found = RESULTS["blame"]
    named = replace(found, made_late=(replace(found.made_late[0], operator=name),))
    text = graph_text(graph(named, "dot"), "dot")
    nodes, _ = _read_dot(text)
    assert len(nodes) == 4
    assert f"[label={label}" in text
    read = nx.read_graphml(BytesIO(graph_text(graph(named, "graphml"), "graphml").encode()))
    assert len(read) == 4


@pytest.mark.slow
@pytest.mark.parametrize("form", GRAPH_FORMATS)
def test_only_an_answer_that_is_a_graph_has_these_formats(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    with answering(monkeypatch):
        outcome = kair("localize", "-o", form)
    assert (outcome.status, outcome.out) == (2, "")
    assert f"--output '{form}' is not one of 'table', 'wide', 'tree', 'json', 'ndjson', 'csv'" in outcome.err
    commands = {command["name"]: command for command in json.loads(kair("spec").out)["data"]["commands"]}
    has = {
        name
        for name, command in commands.items()
        for option in command["options"]
        if option["name"] == "output" and form in option["choices"]
    }
    assert has == {"blame"}
    assert form in kair("blame", "--help").out
    assert form not in kair("triage", "--help").out


@pytest.mark.slow
def test_of_a_recording_the_formats_tell_the_same(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ANN401
    monkeypatch.setenv("KAIR_CACHE", str(tmp_path))
    written = {form: kair("blame", str(SAMPLES / "slow_operator"), "-o", form).out for form in GRAPH_FORMATS}
    of_json = nx.node_link_graph(json.loads(written["node-link"]), edges="edges")
    of_xml = nx.parse_graphml(written["graphml"])
    assert dict(of_json.nodes(data=True)) == dict(of_xml.nodes(data=True))
    assert list(of_json.edges(data=True)) == list(of_xml.edges(data=True))
    assert of_json.in_degree("rank2", weight="share") >= 0.99
    _, edges = _read_dot(written["dot"])
    assert {('"rank0"', '"rank2"'), ('"rank1"', '"rank2"'), ('"rank3"', '"rank2"')} < edges


# A job of many ranks, drawn.


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "culprits"), [(64, (5,)), (64, (5, 9, 40)), (64, ()), (101, (7,))])
def test_of_many_ranks_a_few_are_drawn_and_the_rest_together(ranks: int, culprits: tuple[int, ...]) -> None:
    picture = drawing(graph(waiting_for(culprits, ranks), "graphml"))
    assert len(picture) <= 2 * (MOST_RANKS + MOST_CAUSES) + 2
    assert {f"rank{rank}" for rank in culprits} <= set(picture)
    assert OTHERS in picture
    if culprits == (5,):
        assert picture.nodes[OTHERS]["label"][0] == "ranks 0-4, 6-63"
        assert picture.edges[OTHERS, "rank5"]["label"] == "63.0 ms"


def test_lines_that_are_not_drawn_are_told() -> None:
    few = waiting_for((5,), 8)
    picture = drawing(graph(few, "graphml"))
    assert set(picture) == {*(f"rank{rank}" for rank in range(8)), "rank5_cause1"}
    assert picture.graph["label"][1].endswith("; lines under 1 % are left out, 0.7 % of the waiting")
    assert "left out" not in drawing(graph(waiting_for(tuple(range(8)), 8), "graphml")).graph["label"][1]
