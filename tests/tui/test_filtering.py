"""What can be typed after `/`."""

import pytest

from kair_engine.errors import UsageError
from kair_tui.tui.filtering import parse_filter

FIELDS = ("rank", "host", "operator", "score")
ROW = {"rank": 12, "host": "node1", "operator": "aten::mm", "score": 3.5}


def matches(text: str) -> bool:
    return parse_filter(text, FIELDS).matches(ROW)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "node1",
        "NODE",
        "^aten",
        "m{2}$",
        "!gemm",
        "host:node",
        "!host:node2",
        "rank:12",
        "rank:10-15",
        "rank:>=12",
        "score:>3",
        "score:<3.6",
        "score:=3.5",
        "aten::mm",
        "!aten::add",
        "operator:aten::mm",
        "node1 score:>3 !gemm",
        '"node1"',
        r"\d+",
    ],
)
def test_it_lets_the_row_through(text: str) -> None:
    assert matches(text)


@pytest.mark.parametrize(
    "text",
    ["gemm", "!node1", "host:node2", "rank:1", "rank:120", "rank:>12", "rank:1-3", "score:node", "node1 gemm", "!a"],
)
def test_it_holds_the_row_back(text: str) -> None:
    assert not matches(text)


@pytest.mark.parametrize(
    ("text", "named"),
    [("x[", "x["), ('"open', "quote"), ("size:3", "no field 'size'"), ("size:3", "rank, host, operator, score")],
)
def test_what_is_wrong_is_named(text: str, named: str) -> None:
    with pytest.raises(UsageError, match=r".") as caught:
        parse_filter(text, FIELDS)
    assert named in str(caught.value)


def test_a_field_that_is_not_known_of_a_row_is_empty() -> None:
    unknown = {**ROW, "host": None}
    assert not parse_filter("host:node", FIELDS).matches(unknown)
    assert parse_filter("!host:node", FIELDS).matches(unknown)
