"""Prints, as JSON, whom Holistic Trace Analysis takes for stragglers; runs in HTA's environment, without Kair's.

Usage: python ask_hta.py RANK=TRACE...; its settings are its makers' own: two candidates over all profiled steps.
"""

import json
import logging
import sys
from importlib import import_module


def main() -> None:
    """Ask HTA and print its candidates."""
    logging.disable()
    files = {int(rank): path for rank, path in (word.split("=", 1) for word in sys.argv[1:])}
    analysis = import_module("hta.trace_analysis").TraceAnalysis(trace_files=files, trace_dir="/")
    print("answer:", json.dumps([int(rank) for rank in analysis.get_potential_stragglers()]))


if __name__ == "__main__":
    main()
