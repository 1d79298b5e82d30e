"""Says which rank a process of a TensorFlow cluster is."""

import json


def place_in(cluster: str) -> tuple[int, int] | None:
    """Rank and world size in the text of TF_CONFIG: chief and workers, in this order; None where it says neither."""
    try:
        told = json.loads(cluster)
        sizes = {role: len(told["cluster"].get(role, ())) for role in ("chief", "worker")}
        role, index = told["task"]["type"], int(told["task"]["index"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    if role not in sizes or not 0 <= index < sizes[role]:
        return None
    return index + (sizes["chief"] if role == "worker" else 0), sum(sizes.values())
