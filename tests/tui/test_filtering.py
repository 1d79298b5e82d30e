"""What can be typed after `/`."""

import pytest
from support.kept_cases import assert_kept

from kair_engine.errors import UsageError
from kair_tui.tui.filtering import parse_filter

FIELDS = ("rank", "host", "operator", "score")
ROW = {"rank": 12, "host": "node1", "operator": "aten::mm", "score": 3.5}


def matches(text: str) -> bool:
    return parse_filter(text, FIELDS).matches(ROW)


THROUGH = ("", "node1", "NODE", "^aten", "m{2}$", "!gemm", "host:node", "!host:node2", "rank:12", "rank:10-15")
THROUGH += ("rank:>=12", "score:>3", "score:<3.6", "score:=3.5", "aten::mm", "!aten::add", "operator:aten::mm")
THROUGH += ("node1 score:>3 !gemm", '"node1"', r"\d+")
BACK = ("gemm", "!node1", "host:node2", "rank:1", "rank:120", "rank:>12", "rank:1-3", "score:node", "node1 gemm", "!a")


def test_it_lets_the_row_through_or_holds_it_back() -> None:
    assert [text for text in THROUGH if not matches(text)] == []
    assert [text for text in BACK if matches(text)] == []


def test_what_is_wrong_is_named() -> None:
    said = {}
    for text in ("x[", '"open', "size:3"):
        with pytest.raises(UsageError) as caught:
            parse_filter(text, FIELDS)
        said[text] = str(caught.value)
    assert_kept("wrong_filters", said)


def test_a_field_that_is_not_known_of_a_row_is_empty() -> None:
    unknown = {**ROW, "host": None}
    assert not parse_filter("host:node", FIELDS).matches(unknown)
    assert parse_filter("!host:node", FIELDS).matches(unknown)
