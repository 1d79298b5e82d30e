"""Locates capture's shared files: in a job's folder of the store, and on each host."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from kair_capture.files import object_in

DEFAULT_PORT: Final = 7433


class JobPlaces:
    """The files of one job in the store, all below its folder."""

    def __init__(self, store: Path, job: str) -> None:
        self.store: Final = store
        self.job: Final = job
        self.folder: Final = store / job
        """The job's, which has its `job.json` after the first commit."""
        self.delivered: Final = self.folder / "fragments"
        """Delivered fragments that the coordinator has not committed yet: `host=<h>/*.parquet`."""
        self.steps: Final = self.folder / "steps"
        """Every rank's step times."""
        self.scopes: Final = self.folder / "scopes"
        """Sums of the script's own scopes, for every step of every rank."""
        self.hangs: Final = self.folder / "hangs"
        """Ranks' answers when the job hung, a folder per hang."""
        self.confirm: Final = self.folder / "confirm"
        """Results of `kair confirm`, a JSON file per run."""
        self.evidence: Final = self.folder / "evidence"
        """Evidence on hosts, devices, links and processes: `**/*.parquet`, and `**/identity*.json` of ranks."""
        self.capture: Final = self.folder / "capture"
        """The coordinator's own files."""
        self.key: Final = self.capture / "key"
        """The key of the job's datagrams, unless another file is given."""
        self.address: Final = self.capture / "coordinator.json"
        """The coordinator's address, for agents without a given one."""
        self.status: Final = self.capture / "status.json"
        """The job's state, rewritten every second or so."""
        self.windows: Final = self.capture / "windows.json"
        """Costs of stragglers in each sampled window."""
        self.alerts: Final = self.capture / "alerts.ndjson"
        """Alerts, a JSON object per line."""

    def hang(self, number: int) -> Path:
        """Return the folder of one hang."""
        return self.hangs / str(number)


def store_root(environment: "os._Environ[str] | dict[str, str]" = os.environ) -> Path:
    """Return $KAIR_STORE, else the store in the user's data folder, as the `kair` command does.

    For a URL, return the folder that mirrors it.
    """
    if named := environment.get("KAIR_STORE"):
        return _mirror(Path(named), environment) if ":" in named else Path(named)
    from platformdirs import user_data_path

    return user_data_path("kair", appauthor=False) / "store"


def _mirror(place: Path, environment: "os._Environ[str] | dict[str, str]") -> Path:
    from platformdirs import user_cache_path

    from kair_engine.store.remote import mirror_of, url_in

    url = url_in(place)
    cache = environment.get("KAIR_CACHE")
    return place if url is None else mirror_of(url, Path(cache) if cache else user_cache_path("kair", appauthor=False))


def address_of(text: str) -> tuple[str, int]:
    """Return `host`, `host:port` or `[ipv6]:port` as a pair. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")) or text.endswith("]"):
        host, port = text, str(DEFAULT_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) >= 1 << 16:
        raise ValueError(f"an address is host:port, got {text[:80]!r}")
    return host, int(port)


def address_in(file: Path) -> tuple[str, int] | None:
    """Return the coordinator's address in the store; None without one."""
    from kair_engine.trace.files import read_kept

    with suppress(OSError, ValueError, KeyError, TypeError, OverflowError):
        found = object_in(read_kept(file))
        return address_of(f"[{found['host']}]:{int(found['port'])}")
    return None
