"""Runs the published what-if analyzer once and prints, as JSON, what that took. whatif_speed.py runs it.

Needs nothing but the analyzer's own packages, so that it runs in its environment. Imports are made before the clock
starts; nothing is dumped but the answer.
"""

import argparse
import dataclasses
import json
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from measuring import peak_mb


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact", type=Path, help="a checkout of the analyzer")
    parser.add_argument("trace", type=Path)
    parser.add_argument("metadata", type=Path)
    options = parser.parse_args()
    # Its modules import one another both ways.
    sys.path[:0] = [str(options.artifact), str(options.artifact / "analyzer")]
    analyzer, yaml = import_module("analyzer.wia"), import_module("yaml")
    simulate, took = analyzer.simulate, []

    def timed(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        begin = time.process_time()
        result = simulate(*arguments, **named)
        took.append(time.process_time() - begin)
        return result

    analyzer.simulate = timed
    begin = time.process_time()
    job = analyzer.JobMeta(**yaml.safe_load(options.metadata.read_text()))
    result = analyzer.WhatIfAnalyzer(str(options.trace), root=None, steps=None).analyze(job)
    json.dumps(dataclasses.asdict(result))
    cpu_s = time.process_time() - begin
    scenarios = {"simulations_s": sum(took), "scenarios": len(took)}
    print(json.dumps({"cpu_s": cpu_s, **scenarios, "S": result.blocking_slowdown, "peak_mb": peak_mb()}))


if __name__ == "__main__":
    main()
