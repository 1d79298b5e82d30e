"""By how much more a rank gives an operator: in the dimensions that differ, whatever is as large on all."""

from pathlib import Path

import numpy as np
import pytest
from support.trace_builder import Row, build

from kair_engine.localize.input_growth import Dimension, Growth, growths
from kair_engine.timeline.inputs import InputShapes, input_shapes, joined_shapes
from kair_engine.trace.loading import load_step
from kair_engine.trace.operations import Operations


def step_of(folder: Path, rows: list[Row], ranks: int) -> Operations:
    return load_step(build(folder, rows, {(rank, 0): (0, 100) for rank in range(ranks)}), 0)


def shapes_of(folder: Path, shapes: list[list[str]]) -> InputShapes:
    """Of one step in which each rank calls `mm` with these inputs, and nothing else."""
    rows = [
        Row(rank, "main", "mm", 10.0 * at, 5, size=1, inputs=text)
        for rank, of_rank in enumerate(shapes)
        for at, text in enumerate(of_rank)
    ]
    ops = step_of(folder, rows, len(shapes))
    return input_shapes(ops, np.flatnonzero(ops.given_by >= 0))


def growth(of: InputShapes, name: str = "mm") -> Growth:
    return growths(of, np.zeros(of.calls.shape[1], dtype=np.int64), [name])[name]


def test_weights_which_are_as_large_on_all_ranks_hide_no_tokens(tmp_path: Path) -> None:
    """44 % more tokens beside weights of 8 experts: 6 % more elements."""
    found = growth(shapes_of(tmp_path, [[f"{tokens},2048;8,2048,1408"] for tokens in (1950, 1940, 1960, 2806)]))
    assert found.larger == pytest.approx([0, -0.005, 0.005, 0.435], abs=0.01)
    assert found.dimensions.keys() == {Dimension("mm", 0, 0)}
    assert found.dimensions[Dimension("mm", 0, 0)].tolist() == [1950, 1940, 1960, 2806]


@pytest.mark.parametrize(
    ("usual", "more", "larger"),
    [
        ("100,8;100,16", "150,8;150,16", 0.5),  # the tensors share a dimension
        ("4,100", "6,200", 2.0),  # two that differ
        ("100,8;64", "100,8;64", 0.0),
        ("100,8;64", "50,8;64", -0.5),
    ],
)
def test_what_differs_counts_once(usual: str, more: str, larger: float, tmp_path: Path) -> None:
    assert growth(shapes_of(tmp_path, [[usual]] * 3 + [[more]])).larger == pytest.approx([0, 0, 0, larger])


def test_calls_of_ragged_sizes_are_compared_in_their_mean(tmp_path: Path) -> None:
    ragged = [["100,8", "300,8"], ["250,8", "150,8"], ["200,8", "200,8"], ["200,8", "400,8"]]
    assert growth(shapes_of(tmp_path, ragged)).larger == pytest.approx([0, 0, 0, 0.5])


def test_another_kernel_for_some_of_the_same_inputs_is_no_more_in_all(tmp_path: Path) -> None:
    """The last rank's library takes the large kernel for all calls."""
    rows = [
        row
        for rank in range(4)
        for at, (text, kernel) in enumerate([("100,8", "big" if rank == 3 else "small"), ("300,8", "big")])
        for row in (
            Row(rank, "main", "mm", 10.0 * at, 9, size=1, inputs=text),
            Row(rank, "main", "launch", 10.0 * at + 1, 1, correlation=at),
            Row(rank, "gpu7", kernel, 10.0 * at + 3, 5, correlation=at),
        )
    ]
    ops = step_of(tmp_path, rows, 4)
    found = growth(input_shapes(ops, np.flatnonzero(ops.on_stream)), "big")
    assert found.larger == pytest.approx([0, 0, 0, -1 / 3])
    assert found.in_all == pytest.approx([0, 0, 0, 0])


def test_of_a_rank_that_tells_nothing_nothing_is_known(tmp_path: Path) -> None:
    found = growth(shapes_of(tmp_path, [["100,8"], ["100,8"], ["180,8"], []]))
    assert np.isnan(found.larger).tolist() == [False, False, False, True]
    assert found.larger[:3] == pytest.approx([0, 0, 0.8])


def test_parts_of_the_ranks_are_put_side_by_side(tmp_path: Path) -> None:
    parts = [
        shapes_of(tmp_path / str(number), [[text] for text in of])
        for number, of in enumerate([("100,8", "100,8"), ("100,8", "180,8")])
    ]
    assert growth(joined_shapes(parts)).larger == pytest.approx([0, 0, 0, 0.8])
