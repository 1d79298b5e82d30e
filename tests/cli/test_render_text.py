"""The one place where untrusted text is made safe, and the figures as people read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kair_tui.render.drawing import RAMP, heat_row, resampled
from kair_tui.render.text import clean, escape_controls, json_in_ascii, short_name, to_ascii
from kair_tui.render.units import duration, p_value, plural, ratio, signed_duration, spans


@pytest.mark.parametrize(
    ("name", "safe", "ascii_safe"),
    [
        ("\x1b[2J", "␛[2J", "\\x1b[2J"),
        ("a\nb\tc\r", "a␊b␉c␍", "a\\x0ab\\x09c\\x0d"),
        ("\x7f\x9b", "␡\\x9b", "\\x7f\\x9b"),
        ("\u202egnp", "\\u202egnp", "\\u202egnp"),
        ("a\u200bb\ufeff", "a\\u200bb\\ufeff", "a\\u200bb\\ufeff"),
        ("\udcff", "\\udcff", "\\udcff"),
        ("µs × →", "µs × →", "us x ->"),
        ("größe", "größe", "gr\\xf6\\xdfe"),
    ],
)
def test_control_characters_become_visible(name: str, safe: str, ascii_safe: str) -> None:
    assert clean(name) == safe
    assert clean(name, ascii_only=True) == ascii_safe


@given(st.text())
def test_no_text_can_carry_a_control_character(text: str) -> None:
    assert clean(text).isprintable() or not set(clean(text)) & set(map(chr, [*range(32), *range(127, 160)]))
    assert all(" " <= sign <= "~" for sign in clean(text, ascii_only=True))


def test_json_escapes_what_json_itself_would_let_through() -> None:
    assert escape_controls('{"a": "\x9b\u202e\U000e0041"}') == '{"a": "\\u009b\\u202e\\udb40\\udc41"}'
    assert json_in_ascii('"é𝄞"') == '"\\u00e9\\ud834\\udd1e"'


def test_line_breaks_of_a_page_survive_ascii() -> None:
    assert to_ascii("1.3×\n–") == "1.3x\n-"


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "void at::native::elementwise_kernel<128, 4, at::native::Add<float> >(int, at::Add<float>)",
            "at::native::elementwise_kernel",
        ),
        ("void (anonymous namespace)::softmax<float>(float*) const", "softmax"),
        (
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        ),
        ("at::kernel(int, at::impl(Iterator&, F<int> const&)::{lambda(int)#1})", "at::kernel"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pinned -> Device)"),
        ("enumerate(DataLoader)#_Iter.__next__", "enumerate(DataLoader)#_Iter.__next__"),
        ("aten::add_", "aten::add_"),
        ("<unknown>", "<unknown>"),
        ("a < b", "a < b"),
        ("", ""),
        ("x" * 100, "x" * 59 + "…"),
    ],
)
def test_kernel_names_are_shortened(name: str, short: str) -> None:
    assert short_name(name) == short


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "0 µs"),
        (0.25, "0.25 µs"),
        (813, "813 µs"),
        (999.6, "1.00 ms"),
        (1240, "1.24 ms"),
        (105_000, "105 ms"),
        (2_940_000, "2.94 s"),
        (-12.5, "-12.5 µs"),
    ],
)
def test_durations_choose_their_unit(us: float, text: str) -> None:
    assert duration(us) == text


def test_other_figures() -> None:
    assert signed_duration(12.5) == "+12.5 µs"
    assert ratio(1.336) == "1.34×"
    assert [p_value(value) for value in (None, 1e-9, 0.00002, 0.0312)] == ["–", "<1e-6", "2e-5", "0.0312"]
    assert plural(1, "rank") == "1 rank"
    assert plural(12345, "rank") == "12,345 ranks"
    assert spans((3, 1, 2, 9, 11, 12)) == "1-3, 9, 11-12"
    assert spans(tuple(range(0, 100, 2)), limit=2) == "0, 2 and 48 more"


def test_a_heat_row_shows_zero_as_blank_and_the_peak_darkest() -> None:
    assert heat_row((0, 1, 8), 8, 10, ascii_only=False) == f" ▁{RAMP[-1]}"
    assert heat_row((0, 1, 8), 8, 10, ascii_only=True) == " .@"
    assert resampled((1, 3, 5, 7), 2) == [2.0, 6.0]
    assert resampled((), 5) == []
