"""The causes of lost time."""

from typing import Literal

Cause = Literal[
    "compute",
    "communication",
    "input",
    "host",
    "garbage_collection",
    "stage_imbalance",
    "sequence_imbalance",
    "unknown",
]
