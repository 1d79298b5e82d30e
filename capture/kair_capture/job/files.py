"""The files beside the rings: whole or not there, and their owner's alone."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_atomically(path: Path, content: bytes) -> None:
    """A file of its owner alone that is whole or not there. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def add_to_json(path: Path, key: str, value: Mapping[str, Any]) -> None:
    """Adds a member to the outermost object of a JSON file by its end alone. Raises ValueError where that is none."""
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        start = max(0, size - 4096)
        file.seek(start)
        end = file.read().rstrip()
        if not end.endswith(b"}"):
            raise ValueError(f"{path.name} does not end as a JSON object does")
        file.seek(start + len(end) - 1)
        file.write(b',"%s":%s}' % (key.encode(), json.dumps(value).encode()))
        file.truncate()
