"""What each import costs a command: milliseconds by library, from `python -X importtime`.

    python benchmarks/imports.py [--kair PATH]

Each command runs warm, several times; the run that took least in all is kept. What is imported by a library counts as
its own unless it is a library that has a row. Times are of the wall clock, as Python measures them.
"""

import argparse
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from measuring import report

SAMPLE = Path(__file__).parents[1] / "sample_traces" / "slow_operator"
_LINE = re.compile(r"import time:\s+(\d+) \|\s+\d+ \|\s+([\w.]+)")
_LIBRARIES = ("kair", "kair_engine", "kair_tui", "msgspec", "networkx", "numpy", "polars", "pyarrow", "rich", "scipy")
_LIBRARIES += ("textual", "typer")


def imported(command: list[str]) -> Counter[str]:
    """Return the milliseconds of imports by library; `standard library and others` for those without a row."""
    run = subprocess.run(
        [sys.executable, "-X", "importtime", *command], capture_output=True, text=True, check=False, env=os.environ
    )
    if run.returncode not in (0, 10):
        raise SystemExit(f"{' '.join(command)} failed ({run.returncode}):\n{run.stderr[-2000:]}")
    found: Counter[str] = Counter()
    for own_us, name in _LINE.findall(run.stderr):
        library = name.partition(".")[0]
        found[library if library in _LIBRARIES else "standard library and others"] += int(own_us) / 1e3
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    beside = Path(sys.executable).with_name("kair")
    parser.add_argument("--kair", type=Path, default=beside, help="the program (default: beside this interpreter)")
    parser.add_argument("--sample", type=Path, default=SAMPLE)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    kair, sample = str(options.kair), str(options.sample)
    commands = {
        "kair --help": [kair, "--help"],
        "import kair": ["-c", "import kair; kair.open"],
        **{f"kair {word}": [kair, word, sample] for word in ("localize", "triage", "blame", "whatif")},
    }
    least = {
        name: min((imported(command) for _ in range(options.runs)), key=lambda found: found.total())
        for name, command in commands.items()
    }
    libraries = sorted(set().union(*least.values()), key=lambda one: -max(found[one] for found in least.values()))
    rows = [{"library": one, **{f"{name}, ms": round(of[one]) for name, of in least.items()}} for one in libraries]
    rows.append({"library": "in all", **{f"{name}, ms": round(of.total()) for name, of in least.items()}})
    report("imports", rows, as_json=options.json)


if __name__ == "__main__":
    main()
