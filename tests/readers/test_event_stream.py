"""The stream of events is the same whatever the layout of the JSON, the size of the chunks, and the damage."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kair_engine.readers.formats import NotATraceError
from kair_engine.readers.kineto import event_stream
from kair_engine.readers.kineto.event_stream import EventStream


def read(text: bytes, *, chunk: int = 1 << 20, block: int = 1 << 20) -> tuple[list[str], EventStream]:
    blocks = (text[at : at + block] for at in range(0, len(text), block))
    stream = EventStream(iter(blocks), chunk_size=chunk)
    return [event.name for events in stream for event in events], stream


def events(*names: str, **more: object) -> list[dict[str, Any]]:
    return [{"ph": "X", "cat": "cpu_op", "name": name, "ts": 1, "dur": 1, "pid": 1, "tid": 1, **more} for name in names]


_NAMES = st.lists(st.text(max_size=30) | st.sampled_from(["}, {", '"}]', "],", "\\", '{"ph"', "a\nb"]), max_size=12)
_NESTED = st.sampled_from([{}, {"args": {"list": [{"a": 1}, {"b": [{}, {}]}]}}, {"args": None}, {"args": {"s": "},{"}}])


@settings(deadline=None)
@given(
    names=_NAMES,
    nested=_NESTED,
    indent=st.sampled_from([None, 0, 1, 2]),
    chunk=st.integers(1, 400),
    block=st.integers(1, 400),
    header_first=st.booleans(),
)
def test_layout_and_chunks_do_not_matter(
    *, names: list[str], nested: dict[str, Any], indent: int | None, chunk: int, block: int, header_first: bool
) -> None:
    header = {"baseTimeNanoseconds": 5, "deviceProperties": [{"id": 0}, {"id": 1}]}
    body = {"traceEvents": events(*names, **nested)}
    text = json.dumps({**header, **body} if header_first else {**body, **header}, indent=indent).encode()
    found, stream = read(text, chunk=chunk, block=block)
    assert found == names
    assert stream.complete
    assert stream.bad_events == 0
    assert stream.header["baseTimeNanoseconds"] == 5


@settings(deadline=None)
@given(names=st.lists(st.text('ab}{[],"\\', max_size=8), min_size=1, max_size=8), data=st.data())
def test_a_cut_text_gives_its_complete_events(names: list[str], data: st.DataObject) -> None:
    whole = json.dumps({"traceEvents": events(*names)}).encode()
    begin = whole.index(b"[") + 1
    cut = data.draw(st.integers(begin, len(whole) - 3))
    chunk = data.draw(st.integers(1, 300))
    found, stream = read(whole[:cut], chunk=chunk)
    ends, position = [], begin
    for event in events(*names):
        position = whole.index(json.dumps(event).encode(), position) + len(json.dumps(event))
        ends.append(position)
    assert found == [name for name, end in zip(names, ends, strict=True) if end <= cut]
    assert not stream.complete
    assert stream.bad_events == 0


def test_a_bare_array_may_lack_its_bracket() -> None:
    text = json.dumps(events("a", "b")).encode()
    for variant in (text, text[:-1], text[:-1] + b",\n"):
        found, stream = read(variant)
        assert (found, stream.complete) == (["a", "b"], True)


def test_events_on_lines_without_commas_are_no_single_long_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "_MAX_EVENT", 1 << 14)
    lines = [json.dumps(event, indent=1).encode() for event in events(*map(str, range(1000)))]
    lines[70] = b'{"ph": "X", "name": oops}'
    for chunk in (1 << 12, 1 << 20):
        found, stream = read(b"[\n" + b"\r\n".join(lines) + b"\n", chunk=chunk, block=1 << 13)
        assert found == [str(number) for number in range(1000) if number != 70]
        assert (stream.bad_events, stream.complete) == (1, True)


def test_an_event_that_is_no_json_is_skipped_and_counted() -> None:
    parts = [json.dumps(event).encode() for event in events("a", "b", "c", "d")]
    parts[1] = b'{"ph": "X", "name": "b", "dur": }'
    found, stream = read(b'{"traceEvents": [' + b",\n".join(parts) + b"]}")
    assert found == ["a", "c", "d"]
    assert stream.bad_events == 1
    assert stream.complete


def test_many_bad_events_among_good_ones() -> None:
    good, bad = json.dumps(events("a")[0]), '{"ph": "X", "name": oops}'
    text = '{"traceEvents": [' + ", ".join([good, bad] * 500 + [good]) + "]}"
    found, stream = read(text.encode())
    assert (len(found), stream.bad_events) == (501, 500)


def test_numbers_as_c_prints_them_do_not_cost_the_event() -> None:
    text = b'{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 1, "args": {"blocks per SM": -nan}}]}'
    assert read(text)[0] == ["a"]


def test_an_unclosed_quote_costs_only_its_event() -> None:
    parts = [json.dumps(event) for event in events("a", "b", "c")]
    parts[1] = '{"ph": "X", "name": b"}'
    found, stream = read(('{"traceEvents": [' + ", ".join(parts) + "]}").encode())
    assert (found, stream.bad_events) == (["a", "c"], 1)


def test_fields_of_other_types_are_read_leniently() -> None:
    odd = {"ph": "X", "cat": "Kernel", "name": "k", "ts": "12.5", "dur": 3, "pid": "0", "tid": "stream 7",
           "args": {"correlation": "42", "External id": None, "dtype": 5}}  # fmt: skip
    text = json.dumps({"traceEvents": [odd, *events("a", args=[1, 2]), *events("b", pid=None, tid=[1], name=7)]})
    stream = EventStream(iter([text.encode()]))
    first, second, third = (event for batch in stream for event in batch)
    assert (bytes(first.ts), first.args.correlation if first.args else None) == (b"12.5", 42)
    assert (second.name, second.args) == ("a", None)
    assert (third.name, third.tid) == ("", "[1]")


def test_the_last_of_doubled_keys_counts() -> None:
    text = b'{"traceEvents": [{"ph": "X", "name": "a", "name": "b", "ts": 1, "dur": 1}]}'
    assert read(text)[0] == ["b"]


@pytest.mark.parametrize("text", [b"{}", b'{"a": 1}', b"hello", b"", b'{"text": "\\"traceEvents\\": ["}'])
def test_what_is_no_trace_is_refused(text: bytes) -> None:
    with pytest.raises(NotATraceError):
        read(text)


def test_trace_events_named_in_the_header_do_not_mislead() -> None:
    text = json.dumps({"note": '"traceEvents": [', "traceEvents": events("a")}).encode()
    found, stream = read(text)
    assert (found, stream.header["note"]) == (["a"], '"traceEvents": [')


def test_deep_nesting_is_no_crash() -> None:
    deep = b'{"ph": "X", "name": "deep", "args": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    good = json.dumps(events("a")[0]).encode()
    found, stream = read(b'{"traceEvents": [' + good + b"," + deep + b"," + good + b"]}")
    assert (found, stream.bad_events) == (["a", "a"], 1)


@pytest.mark.parametrize("unit", [b"{},{", b"{{},{", b"{x},{", b'{"a":{},{'])
def test_the_search_between_damage_has_an_end(unit: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "_FREE_EFFORT", 1 << 18)
    looked_at: list[int] = []
    find = event_stream.last_boundary

    def counted(text: bytes, limit: int, start: int = 0) -> int | None:
        looked_at.append(limit - start)
        return find(text, limit, start)

    monkeypatch.setattr(event_stream, "last_boundary", counted)
    text = b'{"traceEvents":[' + unit * 8000
    stream = EventStream(iter([text]))
    assert sum(map(len, stream)) < 10
    assert not stream.complete
    assert sum(looked_at) < 40 * len(text)


@pytest.mark.slow
def test_as_many_events_as_there_are_can_be_salvaged() -> None:
    event = b'{"ph":"X","name":"a","ts":1,"dur":1,"args":{"blocks per SM":inf}},'
    stream = EventStream(iter([b"[" + event * 5000]))
    assert sum(map(len, stream)) == 5000


@settings(deadline=None)
@given(text=st.lists(st.sampled_from([b"{", b"}", b",", b" ", b"a"]), max_size=60).map(b"".join), data=st.data())
def test_the_last_boundary_is_found_among_any_number_of_braces(text: bytes, data: st.DataObject) -> None:
    limit = data.draw(st.integers(0, len(text)))
    start = data.draw(st.integers(0, limit))
    found = [at for at in range(start + 1, limit) if text[at : at + 1] == b"}" and _is_boundary(text[at + 1 : limit])]
    text += b"{" * 200  # beyond the limit, and no part of it
    assert event_stream.last_boundary(text, limit, start) == (found[-1] + 1 if found else None)


def _is_boundary(behind: bytes) -> bool:
    between = behind.lstrip()
    return between.startswith(b",") and between[1:].lstrip().startswith(b"{")


@pytest.mark.slow
def test_brackets_without_end_are_given_up() -> None:
    for piece in (b"{", b'{"a":', b"},", b'{"a":[{'):
        names, stream = read(b'{"traceEvents":[' + piece * 300_000)
        assert (names, stream.complete) == ([], False)
