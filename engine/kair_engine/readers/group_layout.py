"""A rank's place in its parallel dimensions, from the process groups its recording lists."""

import re
from collections.abc import Mapping
from typing import Any, Final

from kair_engine.model import Layout

# How Megatron-Core and PyTorch's DeviceMesh describe the groups of one dimension. Groups of several dimensions
# (`TENSOR_AND_DATA_PARALLEL_GROUP`, `MODEL_PARALLEL_GROUP`) tell no place in one and are passed over.
_DIMENSIONS: Final = {
    "tensor_model_parallel": "tp",
    "tensor": "tp",
    "tp": "tp",
    "pipeline_model_parallel": "pp",
    "pipeline": "pp",
    "pipe": "pp",
    "pp": "pp",
    "data_parallel": "dp",
    "data": "dp",
    "dp": "dp",
    "fsdp": "dp",
}


def layout_of(distributed: Mapping[str, Any], rank: int) -> Layout | None:
    """The layout that `distributedInfo.pg_config` states, with this rank's own place; None where it states none."""
    groups = distributed.get("pg_config")
    found: dict[str, tuple[int, int]] = {}
    for group in groups if isinstance(groups, list) else ():
        if isinstance(group, dict) and (dimension := _dimension(group.get("pg_desc"))) is not None:
            members = group.get("ranks")
            if isinstance(members, list) and rank in members:
                found.setdefault(dimension, (len(members), members.index(rank)))
    if not found:
        return None
    size = {dimension: members for dimension, (members, _) in found.items()}
    return Layout(
        dp=size.get("dp"),
        pp=size.get("pp"),
        tp=size.get("tp"),
        pipeline_stage={rank: found["pp"][1]} if "pp" in found else {},
        dp_rank={rank: found["dp"][1]} if "dp" in found else {},
    )


def _dimension(description: object) -> str | None:
    if not isinstance(description, str):
        return None
    words = re.sub(r"^(mesh|default)_|_group$", "", description.strip().lower())
    return _DIMENSIONS.get(words)
