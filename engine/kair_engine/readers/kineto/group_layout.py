"""The process groups a recording lists (`distributedInfo.pg_config`), and a rank's place in its parallel dimensions."""

import re
from collections.abc import Mapping
from typing import Any, Final

from kair_engine.readers.identity import MAX_RANKS
from kair_engine.readers.kineto.collective_details import group_text
from kair_engine.trace.model import Layout, ProcessGroup

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
    found: dict[str, tuple[int, int]] = {}
    for group in _listed(distributed):
        if (dimension := _dimension(group.get("pg_desc"))) is not None:
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


def only_group(distributed: Mapping[str, Any]) -> str | None:
    """The process group of every collective, where the job has no other of two ranks and more."""
    groups = [group for group in _listed(distributed) if group.get("pg_size") != 1]
    if len(groups) != 1:
        return None
    name, ranks = groups[0].get("pg_name"), groups[0].get("ranks")
    return group_text(str(name), str(ranks) if ranks else None) if isinstance(name, str | int) else None


def process_groups(distributed: Mapping[str, Any], rank: int) -> tuple[ProcessGroup, ...]:
    """The groups of two ranks and more that list their ranks, `rank` among them, and can run on the host (gloo).

    Empty where the list leaves something open.
    """
    found = []
    for group in _listed(distributed):
        if group.get("pg_size") == 1 or "gloo" not in str(group.get("backend_config", "gloo")):
            continue
        name, ranks = group.get("pg_name"), group.get("ranks")
        listed = isinstance(ranks, list) and all(type(one) is int and 0 <= one < MAX_RANKS for one in ranks)
        if not isinstance(name, str | int) or not isinstance(ranks, list) or not listed:
            # Who is in a group that is not listed cannot be told from when its members leave.
            return ()
        if len(ranks) > 1 and rank in ranks:
            text = group_text(str(name), str(ranks)) or ""
            found.append(ProcessGroup(text, str(group.get("pg_desc") or ""), tuple(ranks)))
    return tuple(found)


def _listed(distributed: Mapping[str, Any]) -> list[dict[str, Any]]:
    groups = distributed.get("pg_config")
    return [group for group in groups if isinstance(group, dict)] if isinstance(groups, list) else []


def _dimension(description: object) -> str | None:
    if not isinstance(description, str):
        return None
    words = re.sub(r"^(mesh|default)_|_group$", "", description.strip().lower())
    return _DIMENSIONS.get(words)
