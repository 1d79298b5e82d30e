"""What a command costs from the shell's point of view: CPU and wall time and peak memory of whole processes.

    python benchmarks/start_up.py --traces ../shared/traces/megatron-tp8

Runs each command several times and keeps the run that took least CPU. Cold runs parse the traces into an empty
cache, warm ones find them there; the files themselves are in the system's page cache in both.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from measuring import Row, Took, best_of, report, run_child

SAMPLE = Path(__file__).parents[1] / "sample_traces" / "slow_operator"


def measure(name: str, command: Sequence[str], runs: int, cache: Path | None) -> Row:
    """The best of `runs`; each has an empty cache of its own where `cache` is None."""

    def once() -> Took:
        with tempfile.TemporaryDirectory() as empty:
            return run_child(command, environment={"KAIR_CACHE": str(cache or empty)})

    took = best_of(runs, once)
    return {
        "command": name,
        "runs": runs,
        "CPU ms": took.cpu_s * 1e3,
        "wall ms": took.wall_s * 1e3,
        "peak MB": took.peak_mb,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    beside = Path(sys.executable).with_name("kair")
    parser.add_argument("--kair", type=Path, default=beside, help="the program (default: beside this interpreter)")
    parser.add_argument("--sample", type=Path, default=SAMPLE, help="a small recording")
    parser.add_argument("--traces", type=Path, help="a folder of larger traces, for the last two rows")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    kair, rows = str(options.kair), []
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        rows.append(measure("kair --help", [kair, "--help"], options.runs, cache))
        python = str(options.kair.with_name("python"))
        rows.append(measure("import kair", [python, "-c", "import kair; kair.open"], options.runs, cache))
        for title, command, path in (
            ("localize SAMPLE", "localize", options.sample),
            ("triage SAMPLE", "triage", options.sample),
            ("triage TRACES", "triage", options.traces),
        ):
            if path is None:
                continue
            rows.append(measure(f"{title}, cold", [kair, command, str(path)], options.runs, None))
            run_child([kair, command, str(path)], environment={"KAIR_CACHE": folder})
            rows.append(measure(f"{title}, warm", [kair, command, str(path)], options.runs, cache))
    report("start-up", rows, as_json=options.json)


if __name__ == "__main__":
    main()
