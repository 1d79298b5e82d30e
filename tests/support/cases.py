"""Cases as files: `tests/cases/KIND/READER/NAME/` holds an input and `expected.json`, what is read of it.

With KAIR_UPDATE_CASES=1 the tests write `expected.json` anew; `git diff` then shows what changed, to be looked at.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

CASES: Final = Path(__file__).parents[1] / "cases"
EXPECTED: Final = "expected.json"
_WRITTEN: Final = "2026-11-28T00:00:00+00:00"
"""When an input was written, where its case does not say."""


def cases_of(kind: str) -> list[Path]:
    """Return the folders of all cases of a kind."""
    return sorted(path.parent for path in (CASES / kind).rglob(EXPECTED))


def name_of(case: Path) -> str:
    """Return `READER/NAME`."""
    return "/".join(case.parts[-2:])


def input_of(case: Path) -> Path:
    """Return the input of a case, which may lie in a folder of its own."""
    (found,) = (path for path in case.rglob("*") if path.is_file() and path != case / EXPECTED)
    return found


def copied(case: Path, folder: Path) -> Path:
    """Return a copy of a case's input below `folder`, written when the case says."""
    source = input_of(case)
    path = folder / source.relative_to(case)
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, path)
    written = datetime.fromisoformat(json.loads((case / EXPECTED).read_text()).get("written", _WRITTEN)).timestamp()
    os.utime(path, (written, written))
    return path


def require_expected(case: Path, found: Mapping[str, Any]) -> None:
    """Compares what was found with what the case expects; `written` and `why` are the case's own."""
    path = case / EXPECTED
    expected = json.loads(path.read_text())
    own = {name: expected[name] for name in ("why", "written") if name in expected}
    if os.environ.get("KAIR_UPDATE_CASES"):
        path.write_text(_text(own | found))
    else:
        assert json.loads(_text(own | found)) == expected


def _text(value: Mapping[str, Any]) -> str:
    """JSON with a row on each line."""
    parts = (f"{json.dumps(name)}: {_rows(of)}" for name, of in value.items())
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _rows(value: Any) -> str:  # noqa: ANN401
    if isinstance(value, Sequence) and value and isinstance(value[0], list | tuple | dict):
        return "[\n" + ",\n".join(json.dumps(one, ensure_ascii=False) for one in value) + "\n]"
    return json.dumps(value, ensure_ascii=False)
