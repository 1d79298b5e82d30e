"""How large what operators are given is, where the recording tells their inputs' shapes."""

from typing import Any

import pytest
from support import kineto_builder as kb
from support.kineto_rows import ALL_REDUCE, read, row


def shapes(*inputs: tuple[list[Any], str]) -> dict[str, object]:
    return {"Input Dims": [of for of, _ in inputs], "Input type": [kind for _, kind in inputs]}


MATRICES = shapes(([8], "float"), ([4, 6], "float"), ([6, 8], "c10::BFloat16"), ([], "Scalar"))
"""32, 96 and 96 bytes."""


def test_an_operator_has_the_bytes_of_all_its_inputs() -> None:
    rows, _ = read(
        [
            kb.step(0, 0, 100),
            kb.op("aten::addmm", 5, 10, **MATRICES),
            kb.op("aten::relu", 20, 10),
            kb.launch(22, 2, 2),
            kb.kernel(ALL_REDUCE, 50, 5, 2, **MATRICES),
        ]
    )
    sizes = {name: row(rows, name)["bytes"] for name in ("aten::addmm", "aten::relu", "cudaLaunchKernel")}
    assert sizes == {"aten::addmm": 224, "aten::relu": None, "cudaLaunchKernel": None}


def test_the_calls_of_one_operator_have_sizes_of_their_own() -> None:
    """Many are alike but for their times and ids, and are told apart by their shapes alone."""
    calls = [
        kb.op("aten::relu", 10 + 10 * at, 5, **{"External id": at}, **shapes(([2 + at % 3, 5], "float")))
        for at in range(60)
    ]
    rows, _ = read([kb.step(0, 0, 1000), *calls], rank=None)
    found = rows.filter(name="aten::relu").sort("start_ns")["bytes"].to_list()
    assert found == [40, 60, 80] * 20


@pytest.mark.parametrize(
    "told",
    [
        shapes(([], "Scalar")),
        shapes(([[2, 3], [4, 5]], "TensorList")),
        shapes(([2, -3], "float")),
        shapes(([1 << 40] * 8, "float")),
        shapes(([2, 3], "unknown")),
        shapes(([1] * 10_000, "float")),
        {"Input Dims": "[[2, 3]]", "Input type": "float"},
        {"Input Dims": [[2, 3]]},
    ],
    ids=["none", "lists", "negative", "too large", "of no known type", "endless", "texts", "no types"],
)
def test_what_tells_no_size(told: dict[str, object]) -> None:
    rows, _ = read([kb.step(0, 0, 100), kb.op("aten::cat", 5, 10, **told)], rank=None)
    assert row(rows, "aten::cat")["bytes"] is None


def test_an_operator_has_the_dimensions_of_its_tensors() -> None:
    """Whatever their types; lists of tensors and what is none are left out."""
    told = shapes(([8], "float"), ([4, 6], "unknown"), ([], "Scalar"), ([[2, 3]], "TensorList"), ([3, -1], "float"))
    rows, _ = read(
        [
            kb.step(0, 0, 100),
            kb.op("aten::addmm", 5, 10, **told),
            kb.op("aten::relu", 20, 10),
            kb.op("aten::mul", 40, 10, **{"Input Dims": [[5, 7]]}),
            kb.op("aten::endless", 60, 10, **shapes(([1] * 10_000, "float"))),
        ],
        rank=None,
    )
    found = {name: row(rows, f"aten::{name}")["inputs"] for name in ("addmm", "relu", "mul", "endless")}
    assert found == {"addmm": "8;4,6", "relu": None, "mul": "5,7", "endless": None}


@pytest.mark.parametrize("dtype", ["float", "c10::BFloat16", "c10::Float8_e4m3fn", "a type of tomorrow"])
def test_the_type_of_weights_changes_no_dimension(dtype: str) -> None:
    told = shapes(([2787, 2048], "c10::BFloat16"), ([8, 2048, 1408], dtype))
    rows, _ = read([kb.step(0, 0, 100), kb.op("aten::_grouped_mm", 5, 10, **told)], rank=None)
    assert row(rows, "aten::_grouped_mm")["inputs"] == "2787,2048;8,2048,1408"
