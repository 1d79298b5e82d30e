"""Runs the published what-if analyzer once and prints, as JSON, what that took. whatif_speed.py runs it.

Needs nothing but the analyzer's own packages, so that it runs in its environment. Imports are made before the clock
starts; nothing is dumped but the answer.
"""

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from measuring import peak_mb


def timed(function: Callable[..., Any], took: list[float]) -> Callable[..., Any]:
    """The same, telling what each call took that is not within another one."""

    def run(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        calls, begin = len(took), time.process_time()
        result = function(*arguments, **named)
        took[calls:] = [time.process_time() - begin]
        return result

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact", type=Path, help="a checkout of the analyzer")
    parser.add_argument("trace", type=Path)
    parser.add_argument("metadata", type=Path)
    options = parser.parse_args()
    # Its modules import one another both ways.
    sys.path[:0] = [str(options.artifact), str(options.artifact / "analyzer")]
    analyzer, yaml = import_module("analyzer.wia"), import_module("yaml")
    took: list[float] = []
    # A scenario's durations are put together and replayed by the second, which calls the first.
    for name in ("simulate", "simulate_if_replace"):
        setattr(analyzer, name, timed(getattr(analyzer, name), took))
    begin = time.process_time()
    job = analyzer.JobMeta(**yaml.safe_load(options.metadata.read_text()))
    result = analyzer.WhatIfAnalyzer(str(options.trace), root=None, steps=None).analyze(job)
    json.dumps(dataclasses.asdict(result))
    cpu_s = time.process_time() - begin
    scenarios = {"simulations_s": sum(took), "scenarios": len(took)}
    print(json.dumps({"cpu_s": cpu_s, **scenarios, "S": result.blocking_slowdown, "peak_mb": peak_mb()}))


if __name__ == "__main__":
    main()
