"""Sends orders to a running job: signed plans in a file, which only holders of the run's key can write.

The key is made once, readable by its owner only. A forged, outdated or damaged file changes nothing: signatures reveal
forgeries, versions outdated plans.
"""

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import stat
from pathlib import Path

from kair_mitigate.plans import Plan
from kair_mitigate.restarts import write_whole

PLAN, KEY = "plan.json", "key"
_KEY_BYTES, _MOST_BYTES = 32, 1 << 21


class RunKeyError(Exception):
    """Raised if the run's key cannot be used; its text says why."""


def make_key(folder: Path) -> None:
    """Create the run's key if it is missing. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        handle = os.open(folder / KEY, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(_KEY_BYTES))


def read_key(folder: Path) -> bytes:
    """Return the run's key. Raises RunKeyError if it is missing, damaged, another user's, or readable by others."""
    path = folder / KEY
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(handle, encoding="ascii") as file:
            status = os.fstat(file.fileno())
            text = file.read(4 * _KEY_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise RunKeyError(f"cannot read {path}: {error}") from error
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise RunKeyError(f"{path} is not its owner's alone: chmod 600 it")
    with contextlib.suppress(ValueError):
        if len(key := bytes.fromhex(text.strip())) == _KEY_BYTES:
            return key
    raise RunKeyError(f"{path} holds no key")


def write_plan(folder: Path, plan: Plan, key: bytes) -> None:
    """Replace the previous plan atomically. Raises OSError."""
    write_whole(folder / PLAN, sealed(plan, key))


def read_plan(folder: Path, key: bytes) -> Plan:
    """Return the newest plan. Raises OSError if it is missing, ValueError if it is damaged or forged."""
    with (folder / PLAN).open("rb") as file:
        return unsealed(file.read(_MOST_BYTES + 1), key)


def sealed(plan: Plan, key: bytes) -> bytes:
    """Return the plan as text with its signature."""
    body = json.dumps(plan.as_json(), separators=(",", ":"))
    return json.dumps({"plan": body, "signature": _signature(body, key)}).encode("ascii")


def unsealed(data: bytes, key: bytes) -> Plan:
    """Return the plan of `sealed`. Raises ValueError for anything else."""
    if len(data) > _MOST_BYTES:
        raise ValueError("no plan: it is too long")
    try:
        document = json.loads(data)
        body, signature = document["plan"], document["signature"]
        is_ours = hmac.compare_digest(signature.encode(), _signature(body, key).encode())
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise ValueError("no plan: it is no signed document") from None
    if not is_ours:
        raise ValueError("no plan: its signature is not of this run's key")
    return Plan.from_json(json.loads(body))


def _signature(body: str, key: bytes) -> str:
    return hmac.new(key, body.encode(), hashlib.sha256).hexdigest()
