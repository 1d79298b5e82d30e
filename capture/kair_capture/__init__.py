"""Watches a running training job at next to no cost.

    import kair_capture as kair

    kair.start(job="job123")
    for batch in loader:
        with kair.scope("augment"): ...
        ...
        kair.step()

None of this is needed: `kair capture run -- torchrun … train.py` finds steps and scopes by itself.
"""

from kair_capture.job.api import scope, start, step, stop

__all__ = ["scope", "start", "step", "stop"]
