"""The one place where untrusted text is made safe, and the figures as people read them."""

from hypothesis import given
from hypothesis import strategies as st
from support.kept_cases import assert_kept

from kair_tui.render.drawing import RAMP, heat_row, resampled
from kair_tui.render.text import clean, escape_controls, json_in_ascii, short_name, to_ascii
from kair_tui.render.units import duration, p_value, plural, ratio, signed_duration, spans

UNSAFE = ["\x1b[2J", "a\nb\tc\r", "\x7f\x9b", "\u202egnp", "a\u200bb\ufeff", "\udcff", "µs × →", "größe"]
KERNELS = [
    "void at::native::elementwise_kernel<128, 4, at::native::Add<float> >(int, at::Add<float>)",
    "void (anonymous namespace)::softmax<float>(float*) const",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "at::kernel(int, at::impl(Iterator&, F<int> const&)::{lambda(int)#1})",
    "Memcpy HtoD (Pinned -> Device)",
    "enumerate(DataLoader)#_Iter.__next__",
    "aten::add_",
    "<unknown>",
    "a < b",
    "",
    "x" * 100,
]
DURATIONS = [0, 0.25, 813, 999.6, 1240, 105_000, 2_940_000, -12.5]


def test_names_become_safe_and_short_and_figures_have_units() -> None:
    said = {
        "safe": [clean(name) for name in UNSAFE],
        "safe in ASCII": [clean(name, ascii_only=True) for name in UNSAFE],
        "kernels": [short_name(name) for name in KERNELS],
        "durations": [duration(us) for us in DURATIONS],
        "signed": signed_duration(12.5),
        "ratio": ratio(1.336),
        "p": [p_value(value) for value in (None, 1e-9, 0.00002, 0.0312)],
        "plural": [plural(1, "rank"), plural(12345, "rank")],
        "spans": [spans((3, 1, 2, 9, 11, 12)), spans(tuple(range(0, 100, 2)), limit=2)],
    }
    assert_kept("texts", said)


@given(st.text())
def test_no_text_can_carry_a_control_character(text: str) -> None:
    assert clean(text).isprintable() or not set(clean(text)) & set(map(chr, [*range(32), *range(127, 160)]))
    assert all(" " <= sign <= "~" for sign in clean(text, ascii_only=True))


def test_json_escapes_what_json_itself_would_let_through() -> None:
    assert escape_controls('{"a": "\x9b\u202e\U000e0041"}') == '{"a": "\\u009b\\u202e\\udb40\\udc41"}'
    assert json_in_ascii('"é𝄞"') == '"\\u00e9\\ud834\\udd1e"'


def test_line_breaks_of_a_page_survive_ascii() -> None:
    assert to_ascii("1.3×\n–") == "1.3x\n-"


def test_a_heat_row_shows_zero_as_blank_and_the_peak_darkest() -> None:
    assert heat_row((0, 1, 8), 8, 10, ascii_only=False) == f" ▁{RAMP[-1]}"
    assert heat_row((0, 1, 8), 8, 10, ascii_only=True) == " .@"
    assert resampled((1, 3, 5, 7), 2) == [2.0, 6.0]
    assert resampled((), 5) == []
