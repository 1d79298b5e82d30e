"""Job folders of a store, changed by hand."""

import json
from pathlib import Path
from typing import Any

from kair_engine.recording.kept_files import with_checksum


def edit_job_file(folder: Path, **changes: object) -> None:
    """Changes what `job.json` says as a person would who knows its checksum; `version` stands outside of it."""
    path = folder / "job.json"
    document = json.loads(path.read_text())
    head = {name: changes.pop(name, document[name]) for name in ("schema", "version")}
    path.write_bytes(with_checksum(json.dumps({**document["body"], **changes}).encode(), **head))


def told(folder: Path) -> dict[str, Any]:
    """What `job.json` says."""
    body: dict[str, Any] = json.loads((folder / "job.json").read_text())["body"]
    return body
