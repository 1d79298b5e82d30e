"""Cases kept as data beside the tests: what is given, by name or in full, and what is said of that.

`KAIR_UPDATE_SNAPSHOTS=1 pytest ...` writes anew what is said; look at the difference before keeping it.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.places import ROOT

CASES = ROOT / "tests" / "cases"


@dataclass(frozen=True)
class KeptCase:
    """One of the cases of a file."""

    file: Path
    number: int
    given: dict[str, Any]
    said: Any

    def __str__(self) -> str:
        return "-".join(str(one) for one in self.given.values() if isinstance(one, str | int))

    def assert_said(self, said: Any) -> None:  # noqa: ANN401
        """Compare with what is kept, as JSON has it."""
        if os.environ.get("KAIR_UPDATE_SNAPSHOTS"):
            cases = json.loads(self.file.read_text(encoding="utf-8"))
            cases[self.number]["said"] = said
            _write(self.file, cases)
            return
        assert json.loads(json.dumps(said)) == self.said, f"{self.file.name} differs; KAIR_UPDATE_SNAPSHOTS=1 writes it"


def kept_cases(name: str) -> list[KeptCase]:
    """Read `tests/cases/<name>.json`."""
    file = CASES / f"{name}.json"
    cases = json.loads(file.read_text(encoding="utf-8"))
    return [KeptCase(file, number, case["given"], case["said"]) for number, case in enumerate(cases)]


def assert_kept(name: str, said: Mapping[str, Any]) -> None:
    """Compare what is said of each case, by its name, with `tests/cases/<name>.json`."""
    file = CASES / f"{name}.json"
    if os.environ.get("KAIR_UPDATE_SNAPSHOTS"):
        _write(file, said)
    kept = json.loads(file.read_text(encoding="utf-8"))
    assert json.loads(json.dumps(said)) == kept, f"{file.name} differs; KAIR_UPDATE_SNAPSHOTS=1 writes it"


def _write(file: Path, cases: Any) -> None:  # noqa: ANN401
    file.write_text(json.dumps(cases, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
