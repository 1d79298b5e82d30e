"""JSON in lines: each value in one, whatever stands in its texts."""

import json

import numpy as np
import pytest

from kair_engine.trace.json_text import encode_ascii_lines, encode_json


def test_a_line_for_each_value_and_nothing_that_a_terminal_obeys() -> None:
    texts = ["plain", "a\nb", "del\x7f", "\u202egnp.exe", "\x1b[2J", "gelöst"]
    lines = encode_ascii_lines([{"name": text} for text in texts]).split(b"\n")
    assert [json.loads(line)["name"] for line in lines] == texts
    assert all(0x20 <= byte < 0x7F for line in lines for byte in line)


def test_bytes_of_a_file_name_are_shown_where_they_are_no_text() -> None:
    assert encode_ascii_lines(["rank\udcff", "good"]) == b'"rank\\\\xff"\n"good"'


def test_numbers_of_numpy_are_numbers() -> None:
    numbers = [np.float64(0.5), np.float32(0.25), np.int64(7), np.bool_(True)]
    assert encode_json(numbers) == encode_ascii_lines([numbers]) == b"[0.5,0.25,7,true]"
    with pytest.raises(TypeError, match="objects of type object"):
        encode_json([object()])
