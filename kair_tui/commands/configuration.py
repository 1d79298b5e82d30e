"""Reads `kair.toml`, in which a site sets its commands once: in the user's configuration folder or at $KAIR_CONFIG.

[drain]
command = "scontrol update NodeName={host} State=DRAIN Reason={reason}"
"""

import os
from pathlib import Path
from typing import Any, Final

from kair_engine.errors import UsageError

_MOST_BYTES: Final = 1 << 20


def configuration_file() -> Path:
    """Return the file's path, existing or not: $KAIR_CONFIG, else `kair.toml` in the user's configuration folder."""
    if named := os.environ.get("KAIR_CONFIG"):
        return Path(named)
    from platformdirs import user_config_path

    return user_config_path("kair", appauthor=False) / "kair.toml"


def drain_words() -> list[str] | None:
    """Return the words of the site's command that drains a host; None if none is set.

    Raises UsageError if the file or the command cannot be parsed.
    """
    from kair_mitigate.draining import drain_template

    file = configuration_file()
    table = _read(file).get("drain", {})
    if not isinstance(table, dict) or set(table) - {"command"}:
        # After a misspelt key the command of some scheduler would run instead of the site's own.
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
    """Return the parsed file; empty if it does not exist. Raises UsageError if $KAIR_CONFIG names a missing file."""
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
