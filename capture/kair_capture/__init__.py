"""Watches a running training job at next to no cost.

    import kair_capture as kair

    kair.start(job="job123")
    for batch in loader:
        with kair.scope("augment"): ...
        ...
        kair.step()

None of this is needed: `kair capture run -- torchrun … train.py` finds steps and scopes by itself.
"""

import os

from kair_capture.job.api import perf_scope_begin, perf_scope_end, samples, scope, start, step, stop
from kair_capture.job.callbacks import callback
from kair_capture.job.trackers import log_to

__all__ = ["callback", "log_to", "perf_scope_begin", "perf_scope_end", "samples", "scope", "start", "step", "stop"]

if os.environ.get("KAIR_CAPTURE_ATTACHABLE"):
    from kair_capture.job.launch import arm_attachable

    arm_attachable()
