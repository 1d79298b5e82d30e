"""Sorts blame paths by their root cause, and names their stops as on a line."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from kair_engine.causes import Cause
from kair_engine.results.blame import STEP_BEGIN, BlamePath, BlameResult, PathNode, PathPart, RootCause
from kair_tui.render.text import short_name

_NCCL: Final = re.compile(r"^nccl(Dev)?Kernel_(?=\w)")

Key = tuple[int, str | None, Cause, bool]
"""What tells one root cause from another: rank, operator, cause, whether it is an edge."""


def key_of(cause: RootCause | PathPart) -> Key:
    """The root cause's own."""
    return cause.rank, cause.operator, cause.cause, cause.is_edge


def paths_by_cause(result: BlameResult) -> Mapping[Key, Sequence[BlamePath]]:
    """The paths that each root cause has a part in; those of no known parts are the root cause's at their end."""
    known = {key_of(cause) for cause in result.root_causes}
    found: dict[Key, list[BlamePath]] = defaultdict(list)
    for path in result.paths:
        if path.parts:
            for key in dict.fromkeys(map(key_of, path.parts)):
                found[key].append(path)
        else:
            key = end_of(path)
            found[key if key in known else (key[0], None, path.cause, False)].append(path)
    return found


def end_of(path: BlamePath) -> Key:
    """The root cause at a path's end."""
    return path.chain[-1].rank, _operator(path), path.cause, _is_edge(path)


def short_operator(name: str) -> str:
    """As short as it can be told in a tree: kernels of NCCL without what all of them are called."""
    return _NCCL.sub("", short_name(name))


def stop_name(node: PathNode, path: BlamePath) -> str:
    """The operator as people read it; of an edge the idle time before it."""
    name = short_operator(node.operator)
    if node.role_in_path != "edge":
        return name
    return f"late when the step began, at {name}" if _operator(path) == STEP_BEGIN else f"idle before {name}"


def _is_edge(path: BlamePath) -> bool:
    return path.chain[-1].role_in_path == "edge"


def _operator(path: BlamePath) -> str:
    """As root causes call it: lateness of no known cause was there when the step began."""
    return STEP_BEGIN if _is_edge(path) and path.cause == "unknown" else path.chain[-1].operator
