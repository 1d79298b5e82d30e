"""What Kair takes on disk, part by part: every distribution in an environment that was made for it alone.

    python3 -m venv /tmp/kair && /tmp/kair/bin/pip install .
    python benchmarks/installed_size.py /tmp/kair

An extra is measured where it was installed: `pip install '.[mcp]'`.
"""

import argparse
from importlib.metadata import Distribution, distributions
from pathlib import Path

from measuring import Row, report

_OF_EVERY_ENVIRONMENT = ("pip", "setuptools")


def size_of(distribution: Distribution) -> int:
    """What the files take that were installed with it, bytes: compiled modules too, of which pip keeps a record."""
    paths = [Path(str(file.locate())) for file in distribution.files or ()]
    return sum(path.stat().st_blocks * 512 for path in paths if path.is_file())


def rows_of(environment: Path) -> list[Row]:
    """The largest first, then all together. Raises SystemExit where there is no such environment."""
    places = [str(place) for place in environment.glob("lib/python*/site-packages")]
    if not places:
        raise SystemExit(f"{environment} is no virtual environment")
    sizes = {one.metadata["Name"]: size_of(one) for one in distributions(path=places)}
    sizes = {name: size for name, size in sizes.items() if name not in _OF_EVERY_ENVIRONMENT}
    ordered = sorted(sizes.items(), key=lambda one: -one[1])
    return [{"part": name, "MB": size / 1e6} for name, size in [*ordered, ("all", sum(sizes.values()))]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environment", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    report("installed size", rows_of(options.environment), as_json=options.json)


if __name__ == "__main__":
    main()
