"""Reports the identities of this host's ranks: what their processes state, completed from the host and its devices.

An identity goes into the job's folder of the store when its process first states something, and again when it adds
more.
"""

import re
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from kair_capture.agent import host_facts
from kair_capture.agent.ring_reader import Trainer
from kair_capture.files import write_atomically
from kair_capture.job.identity import IDENTITY, identity_file
from kair_capture.nvml import Device, Nvml
from kair_capture.ring import is_running, process_namespace, unix_of_ticks
from kair_engine.trace.identity import DeviceIdentity, RankIdentity, merged, pci_address, uuid_of
from kair_engine.trace.identity_file import LARGEST, identity_in, identity_json
from kair_engine.trace.measures import shown

_FILE: Final = re.compile(rf"rank-(\d{{1,7}})\.(\d{{1,10}})\.{IDENTITY}")
_LEAST_WAIT_S: Final = 2.0
_MOST_WAIT_S: Final = 60.0
_HOSTS_PROCESSES: Final = 0xEFFFFFFC
"""The kernel's number of the host's own PID namespace (PROC_PID_INIT_INO)."""

Deliver = Callable[[Path, str], None]
"""Copies a file into the store, below the job's folder. Raises OSError."""


_DRIVER_S: Final = 5.0
"""Time for the driver to answer; it may still answer later, for ranks that come then."""


class RankIdentities:
    """Identities of the ranks of a host. A thread does the work, because a store may be slow or away."""

    def __init__(
        self,
        run_dir: Path,
        host: str,
        deliver: Deliver,
        devices: Callable[[], Nvml | None] = Nvml.open,
        *,
        root: Path = Path("/"),
        ahead_ns: Callable[[], int] = lambda: 0,
    ) -> None:
        """`host` is its name in the job, `root` the folder of its facts.

        `ahead_ns` is the correction for a host clock that was set back.
        """
        self._ahead_ns = ahead_ns
        self._run_dir, self._host, self._deliver = run_dir, host, deliver
        self._open, self._root = devices, root
        self._devices: Nvml | None = None
        self._opening: threading.Thread | None = None
        self._told: dict[Trainer, tuple[int, int]] = {}
        """Process → time and size of its file when it was delivered."""
        self._known: dict[Trainer, tuple[ProcessOf, RankIdentity]] = {}
        """Delivered identities: a process that ended adds nothing."""
        self._waiting = 0
        self._work: threading.Thread | None = None
        self._wait_s, self._not_before = _LEAST_WAIT_S, float("-inf")

    @property
    def is_idle(self) -> bool:
        """Return whether everything seen at the last look is delivered."""
        return not self._waiting and not self._is_working

    @property
    def _is_working(self) -> bool:
        return self._work is not None and self._work.is_alive()

    def look(self, living: Collection[Trainer]) -> None:
        """Deliver new files in the background, and remove the files of processes that are not `living`."""
        if self._is_working:
            return
        due = []
        for trainer, state in self._files().items():
            if self._told.get(trainer) != state:
                due.append(trainer)
            elif trainer not in living:
                self._remove(trainer)
        self._waiting = len(due)
        if due and time.monotonic() >= self._not_before:
            work = threading.Thread(target=self._tell, args=(due,), name="identities", daemon=True)
            with suppress(RuntimeError):  # no thread available: at a later look
                work.start()
                self._work = work

    def stop(self, wait_s: float) -> None:
        """Wait for current work."""
        if self._work is not None:
            self._work.join(wait_s)

    def _files(self) -> dict[Trainer, tuple[int, int]]:
        found = {}
        for path in self._run_dir.iterdir():
            if match := _FILE.fullmatch(path.name):
                with suppress(OSError):
                    status = path.stat()
                    found[Trainer(int(match[1]), int(match[2]))] = (status.st_mtime_ns, status.st_size)
        return found

    def _remove(self, trainer: Trainer) -> None:
        with suppress(OSError):
            identity_file(self._run_dir, trainer.rank, trainer.pid).unlink(missing_ok=True)
        self._told.pop(trainer, None)
        self._known.pop(trainer, None)

    def _tell(self, trainers: Sequence[Trainer]) -> None:
        try:
            for trainer in trainers:
                self._tell_one(trainer)
        except Exception:  # store away or full: retry later
            self._not_before = time.monotonic() + self._wait_s
            self._wait_s = min(self._wait_s * 2, _MOST_WAIT_S)
        else:
            self._wait_s = _LEAST_WAIT_S
            self._waiting = 0

    def _tell_one(self, trainer: Trainer) -> None:
        """Deliver one identity. Raises OSError if the store is away."""
        path = identity_file(self._run_dir, trainer.rank, trainer.pid)
        try:
            status = path.stat()
            with path.open("rb") as file:
                content = file.read(LARGEST + 1)
        except OSError:
            return  # it disappeared
        said, process = identity_in(content), process_in(content)
        # A file that contradicts its name, or is empty, is skipped; it may be complete next time.
        if said is not None and process is not None and (said.rank, said.pid) == (trainer.rank, trainer.pid):
            identity = self._completed(said, process)
            before = self._known.get(trainer)
            if before is not None and before[0] == process:
                identity = merged(identity, before[1])
            self._known[trainer] = process, identity
            # The pid alone is not unique: containers reuse it in each attempt.
            self._put(identity, f"identity-rank-{trainer.rank}.{trainer.pid}.{process.start_ticks}.json")
        self._told[trainer] = (status.st_mtime_ns, status.st_size)

    def _put(self, identity: RankIdentity, name: str) -> None:
        file = self._run_dir / f".{name}"
        try:
            write_atomically(file, identity_json(identity))
            self._deliver(file, f"evidence/host={self._host}/{name}")
        finally:
            file.unlink(missing_ok=True)

    def _completed(self, said: RankIdentity, process: "ProcessOf") -> RankIdentity:
        if self._opening is None:
            self._opening = threading.Thread(target=self._open_devices, name="identities-driver", daemon=True)
            self._opening.start()
            # A driver with a lost device may never answer: then deliver the rank without it.
            self._opening.join(_DRIVER_S)
        whole = replace(said, host=self._host, process_s=unix_of_ticks(process.start_ticks, self._ahead_ns()) or None)
        return completed(whole, process, self._devices, self._root)

    def _open_devices(self) -> None:
        self._devices = self._open()


class ProcessOf(msgspec.Struct, frozen=True):
    """The process that wrote a file."""

    pid: int
    start_ticks: int = 0
    pid_namespace: int = 0

    @property
    def is_here(self) -> bool:
        """Return whether it lives and has the same number here, which in another container may mean another process."""
        return self.pid_namespace == process_namespace() and is_running(self.pid, self.start_ticks)


def process_in(content: bytes) -> ProcessOf | None:
    """Return the process of a file; None if it does not state it."""
    try:
        return msgspec.json.decode(content, type=ProcessOf)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return None


def completed(said: RankIdentity, process: ProcessOf, devices: Nvml | None, root: Path) -> RankIdentity:
    """Return a process's identity, completed from its host (whose root is `root`) and the host's devices."""
    is_here = process.is_here
    process_root = root / f"proc/{process.pid}/root" if is_here else root
    group = host_facts.control_group(root, process.pid) if is_here else None
    pid = process.pid if is_here and process.pid_namespace == _HOSTS_PROCESSES else None
    found = None if devices is None else device_of(said.device, said.environment, devices.devices(), pid)
    device = merged_device(said.device, found)
    node = host_facts.numa_of_device(root, device.pci)
    versions = host_facts.host_versions(root, process_root)
    if devices is not None and (driver := devices.driver_version()):
        versions["driver"] = driver
    of_host = RankIdentity(
        rank=said.rank,
        boot=host_facts.boot_id(root),
        numa_node=host_facts.numa_of_cpus(root, said.cpus) if node is None else node,
        nics=host_facts.nics(root, said.environment, device.pci),
        cgroup=group,
        container=host_facts.container(root, process_root, group),
        versions=_shown(versions),
        settings=_shown(host_facts.host_settings(root, said.cpus) | ({} if found is None else found.settings())),
    )
    return merged(replace(said, device=device), of_host)


def _shown(texts: Mapping[str, str]) -> dict[str, str]:
    return {shown(name): shown(of) for name, of in texts.items()}


def device_of(
    said: DeviceIdentity, environment: Mapping[str, str], devices: Sequence[Device], pid: int | None
) -> Device | None:
    """Return the host's device of a rank: by UUID, else by PCI address, else the one that its process uses.

    `pid` is the host's number of the process, None if not known. The process's own device numbers prove nothing,
    because their order may differ from the driver's, unless its visible devices are named by UUID.
    """
    for uuid in filter(None, (said.uuid, _visible(environment, said.ordinal))):
        if (found := _only([one for one in devices if _is_called(one, uuid)])) is not None:
            return found
    if said.pci is not None:
        at = pci_address(said.pci)
        if (found := _only([one for one in devices if one.pci is not None and pci_address(one.pci) == at])) is not None:
            return found
    # A stated device that is missing here differs from whatever the process uses as well.
    if pid is None or said.uuid is not None or said.pci is not None:
        return None
    return _only([one for one in devices if pid in one.processes()])


def _only(found: Sequence[Device]) -> Device | None:
    return found[0] if len(found) == 1 else None


def _visible(environment: Mapping[str, str], ordinal: int | None) -> str | None:
    """Return the UUID, or its prefix, that names a process's n-th device."""
    named = [one.strip() for one in environment.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    is_there = ordinal is not None and ordinal < len(named) and named[ordinal].startswith(("GPU-", "MIG-"))
    return named[ordinal] if is_there and ordinal is not None else None


def _is_called(device: Device, uuid: str) -> bool:
    """Return whether a device has this UUID: PyTorch omits the prefix `GPU-`, and CUDA accepts prefixes of it."""
    own, wanted = _digits(device.uuid or ""), _digits(uuid)
    return bool(wanted) and own.startswith(wanted)


def _digits(uuid: str) -> str:
    return uuid.removeprefix("GPU-").removeprefix("MIG-").lower()


def merged_device(said: DeviceIdentity, found: Device | None) -> DeviceIdentity:
    """Return a process's statements about its device, completed from the driver."""
    if found is None:
        return said
    return DeviceIdentity(
        uuid=said.uuid or uuid_of(found.uuid or ""),
        pci=said.pci or pci_address(found.pci or ""),
        index=found.index,
        ordinal=said.ordinal,
        model=said.model or (shown(found.model) if found.model else None),
    )
