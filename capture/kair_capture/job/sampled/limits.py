"""What the system lets this thread have of its host's cores: ranks that have less than others are slow for it."""

import os
from contextlib import suppress
from typing import Any

from kair_capture.job.sampled.quota import Quota


def limits(quota: Quota) -> dict[str, Any]:
    """Its `nice` level, the `cpus` that it may run on, and the `quota` of its process in cores; None for none."""
    found: dict[str, Any] = {"nice": None, "cpus": [], "quota": quota.cores()}
    with suppress(OSError):
        found["nice"] = os.getpriority(os.PRIO_PROCESS, 0)
        found["cpus"] = sorted(os.sched_getaffinity(0))
    return found
