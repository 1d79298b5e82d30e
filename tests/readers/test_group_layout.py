"""The parallel layout that a recording's process groups state."""

from typing import Any

import pytest

from kair_engine.readers.kineto.collectives import layout_of, only_group, process_groups


def group(description: str, ranks: list[int]) -> dict[str, Any]:
    return {"pg_name": "1", "pg_desc": description, "pg_size": len(ranks), "ranks": ranks}


def test_megatron_groups_tell_the_place_of_a_rank() -> None:
    config = [
        group("default_pg", list(range(16))),
        group("TENSOR_MODEL_PARALLEL_GROUP", [4, 5]),
        group("PIPELINE_MODEL_PARALLEL_GROUP", [1, 5, 9, 13]),
        group("DATA_PARALLEL_GROUP", [5, 7]),
        group("TENSOR_AND_DATA_PARALLEL_GROUP", [4, 5, 6, 7]),
    ]
    layout = layout_of({"pg_config": config}, rank=5)
    assert layout is not None
    assert (layout.dp, layout.pp, layout.tp) == (2, 4, 2)
    assert (layout.pipeline_stage, layout.dp_rank) == ({5: 1}, {5: 0})


def test_device_mesh_names_are_understood() -> None:
    layout = layout_of({"pg_config": [group("mesh_tp", [2, 3]), group("mesh_dp", [1, 3])]}, rank=3)
    assert layout is not None
    assert (layout.dp, layout.pp, layout.tp, layout.pipeline_stage) == (2, None, 2, {})


@pytest.mark.parametrize(
    "distributed",
    [
        {},
        {"pg_config": "text"},
        {"pg_config": [None, {"pg_desc": 3}, {"pg_desc": "tp", "ranks": "0-7"}]},
        {"pg_config": [group("undefined", [0, 1])]},
        {"pg_config": [group("tp", [2, 3])]},
    ],
)
def test_nothing_stated_is_no_layout(distributed: dict[str, Any]) -> None:
    assert layout_of(distributed, rank=0) is None


def test_groups_of_one_rank_do_not_make_a_group_ambiguous() -> None:
    assert only_group({"pg_config": [group("default_pg", [0, 1]), group("mesh_tp", [0])]}) == "1 [0, 1]"
    assert only_group({"pg_config": [group("default_pg", [0, 1]), group("mesh_dp", [0, 1])]}) is None


def test_groups_that_run_on_devices_alone_are_no_candidates() -> None:
    config = [group("default_pg", [0, 1]), {**group("mesh_dp", [0, 1]), "backend_config": "cuda:nccl"}]
    assert [one.description for one in process_groups({"pg_config": config}, rank=0)] == ["default_pg"]


@pytest.mark.parametrize("ranks", [None, "0-7", [0, "1"], [0, -1]])
def test_a_group_whose_ranks_are_not_listed_leaves_all_of_them_open(ranks: object) -> None:
    config = [group("default_pg", [0, 1]), {**group("mesh_dp", []), "ranks": ranks}]
    assert process_groups({"pg_config": config}, rank=0) == ()
