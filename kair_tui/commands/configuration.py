"""What a site sets once for all: `kair.toml`, in the user's configuration folder or where $KAIR_CONFIG says.

[drain]
command = "scontrol update NodeName={host} State=DRAIN Reason={reason}"
"""

import os
from pathlib import Path
from typing import Any, Final

from kair_engine.errors import UsageError

_MOST_BYTES: Final = 1 << 20


def configuration_file() -> Path:
    """Return its path, existing or not: $KAIR_CONFIG, else `kair.toml` in the user's configuration folder."""
    if named := os.environ.get("KAIR_CONFIG"):
        return Path(named)
    from platformdirs import user_config_path

    return user_config_path("kair", appauthor=False) / "kair.toml"


def drain_words() -> list[str] | None:
    """Return the words of the site's command that drains a host; None where none is set.

    Raises UsageError for a file that cannot be read, or a command that cannot be.
    """
    from kair_mitigate.draining import drain_template

    file = configuration_file()
    table = _read(file).get("drain", {})
    if not isinstance(table, dict) or set(table) - {"command"}:
        # What is misspelt must not have another scheduler's command run in its place.
        raise UsageError(f"{file}: [drain] has command, and nothing else", 'command = "kubectl cordon {host}"')
    text = table.get("command")
    if text is None:
        return None
    if not isinstance(text, str):
        raise UsageError(f"{file}: drain.command is no text")
    try:
        return drain_template(text)
    except ValueError as error:
        raise UsageError(f"{file}: drain.command: {error}", 'command = "kubectl cordon {host}"') from error


def _read(file: Path) -> dict[str, Any]:
    """Empty where there is no file, unless it was named."""
    import tomllib

    try:
        with file.open("rb") as opened:
            content = opened.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        if os.environ.get("KAIR_CONFIG"):
            raise UsageError(f"$KAIR_CONFIG: there is no file {file}") from None
        return {}
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from error
    if len(content) > _MOST_BYTES:
        raise UsageError(f"{file} is larger than {_MOST_BYTES >> 20} MiB")
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file} is no TOML: {error}") from error
