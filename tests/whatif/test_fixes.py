"""Fixes as text: what is written can be read again, in one order and with spans."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kair_engine.errors import UsageError
from kair_engine.results.fixes import fix_text, has_text, parse_fix, parse_scale
from kair_engine.results.whatif import FIX_KINDS, Fix

NUMBERS = st.lists(st.integers(0, 30), unique=True).map(lambda numbers: tuple(sorted(numbers)))
NAMES = st.lists(st.from_regex(r"[a-z:*?_.\[\]-]{1,8}", fullmatch=True), max_size=2).map(tuple)
FIXES = st.builds(
    Fix,
    ranks=NUMBERS,
    hosts=NAMES,
    stages=NUMBERS,
    kinds=st.sets(st.sampled_from(FIX_KINDS)).map(lambda kinds: tuple(kind for kind in FIX_KINDS if kind in kinds)),
    operators=NAMES,
    scopes=NAMES,
    scale=st.none() | st.floats(0, 1e6),
)


@given(FIXES)
def test_a_fix_is_read_from_its_text(fix: Fix) -> None:
    if fix in (Fix(), Fix(scale=fix.scale)):
        assert not has_text(fix)  # everything: nothing names it
        return
    assert has_text(fix)
    assert (parse_fix if fix.scale is None else parse_scale)(fix_text(fix)) == fix


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("rank=3,0,1,2,7,7", "rank=0-3,7"),
        ("kind=host,compute + rank=4", "rank=4+kind=compute,host"),
        ("kind=host+scope=Optimizer.step#*+rank=1", "rank=1+scope=Optimizer.step#*+kind=host"),
        ("op=flash*,gemm+stage=1+host=node1", "host=node1+stage=1+op=flash*,gemm"),
    ],
)
def test_there_is_one_text_for_a_fix(typed: str, text: str) -> None:
    assert fix_text(parse_fix(typed)) == text


@pytest.mark.parametrize(("typed", "text"), [("op=aten::mm:2.0", "op=aten::mm:2"), ("rank=1:0.250", "rank=1:0.25")])
def test_a_factor_is_written_as_short_as_it_can_be(typed: str, text: str) -> None:
    assert fix_text(parse_scale(typed)) == text


def test_a_name_that_holds_the_grammar_s_signs_cannot_be_written() -> None:
    assert not has_text(Fix(hosts=("a+b",)))
    assert not has_text(Fix(hosts=("a,b",)))
    assert has_text(Fix(hosts=("a=b",)))


def test_a_span_that_runs_backwards_is_no_number() -> None:
    with pytest.raises(UsageError, match="'5-3' in 'rank=5-3' is no number"):
        parse_fix("rank=5-3")
