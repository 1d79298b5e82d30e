"""Times become whole nanoseconds exactly as the text says, on the fast path and on the slow one."""

from decimal import ROUND_HALF_EVEN, Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kair_engine.readers.kineto.events import INVALID, exact_nanoseconds, nanoseconds


def expected(text: str) -> int:
    value = int((Decimal(text) * 1000).to_integral_value(ROUND_HALF_EVEN))
    return value if abs(value) < 4 * 10**18 else INVALID


_DECIMALS = st.builds(
    lambda sign, whole, fraction: f"{sign}{whole}" + (f".{fraction}" if fraction else ""),
    st.sampled_from(["", "-"]),
    st.integers(0, 10**17),
    st.text("0123456789", max_size=6),
)


@given(st.lists(_DECIMALS, min_size=1, max_size=20))
def test_any_decimal_text_is_exact(texts: list[str]) -> None:
    assert nanoseconds([text.encode() for text in texts]).tolist() == [expected(text) for text in texts]


@given(st.lists(st.decimals(allow_nan=True, allow_infinity=True), min_size=1, max_size=5))
def test_both_paths_agree_on_any_number(values: list[Decimal]) -> None:
    texts = [str(value).encode() for value in values]
    assert nanoseconds(texts).tolist() == [exact_nanoseconds(text) for text in texts]


@given(st.lists(st.binary(max_size=12), min_size=1, max_size=5))
def test_no_text_crashes_the_conversion(texts: list[bytes]) -> None:
    assert len(nanoseconds(texts)) == len(texts)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"1706850122821045", 1706850122821045000),
        (b"1706850122821045.123", 1706850122821045123),
        (b"4394162679094.005", 4394162679094005),
        (b"-1.5", -1500),
        (b"1e3", 1_000_000),
        (b'"12.5"', 12_500),
        (b"0.0005", 0),
        (b"0.0015", 2),
        (b"NaN", INVALID),
        (b"Infinity", INVALID),
        (b"1e400", INVALID),
        (b"99999999999999999999", INVALID),
        (b"null", INVALID),
        (b"true", INVALID),
        (b"", INVALID),
    ],
)
def test_known_texts(text: bytes, value: int) -> None:
    assert nanoseconds([text]).tolist() == [value]
    assert nanoseconds([text, b"1"]).tolist() == [value, 1000]


def test_no_texts() -> None:
    assert nanoseconds([]).tolist() == []
