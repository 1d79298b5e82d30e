"""Reads reports of node agents, as JSON: gpud's `/v1/events`, and health events of NVSentinel.

Health events are CloudEvents, as its database exports them, or plain, one per line or all in a list. Reports of good
health are no events.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from kair_engine.errors import InputError
from kair_engine.readers.evidence.kernel_events import event_of
from kair_engine.readers.evidence.moments import is_possible, iso_ns
from kair_engine.readers.evidence.opening import NO_HOST, FileRows, read_bounded
from kair_engine.readers.json_values import listing, mapping, mappings, text, whole
from kair_engine.readers.paths import host_of
from kair_engine.trace import xids
from kair_engine.trace.evidence_table import EvidenceFile
from kair_engine.trace.identity import pci_address, uuid_of
from kair_engine.trace.measures import HOST, gpu, gpu_index, nic, pci

KIND: Final = "node agent"

_MOST_BYTES: Final = 256 << 20
_GPUD: Final = re.compile(rb'"component"\s*:.{0,400}"(?:startTime|events)"\s*:', re.DOTALL)
_NVSENTINEL: Final = re.compile(rb'"(?:healthevent|entitiesimpacted)"\s*:', re.IGNORECASE)
_CODE: Final = re.compile(r"(?:S?XID[ _-]?)?(\d{1,6})", re.IGNORECASE)
_SAID_CODE: Final = re.compile(r"S?XID (\d{1,6})\b", re.IGNORECASE)
_SAID_PCI: Final = re.compile(r"PCI:([0-9a-fA-F:.]{5,16})")
_SAID_PORT: Final = re.compile(r"(\w{1,32}) port (\d{1,3})\b")
_SXID: Final = re.compile(r"SXID|(?<![a-z])sxid")
"""Does not match `SysLogsXIDError`."""
_OBSERVED: Final = {"accelerator-nvidia-error-xid": "xid", "accelerator-nvidia-error-sxid": "sxid"}
_NAMES: Final = (
    ("xid", "xid"),
    ("gpufallenoff", "xid"),
    ("ib_port", "link_down"),
    ("infiniband", "link_down"),
    ("oom", "oom_kill"),
    ("soft_lockup", "soft_lockup"),
    ("pciewatch", "pcie_error"),
    ("reboot", "node_state"),
)
"""Part of an agent's name for an event → the event."""


def fits(name: str, head: bytes) -> bool:  # noqa: ARG001  (the content is enough)
    """Return whether it is JSON of one of these agents."""
    return head.lstrip()[:1] in (b"[", b"{") and (
        _GPUD.search(head) is not None or _NVSENTINEL.search(head) is not None
    )


def read(path: Path) -> EvidenceFile:
    """Return what went wrong on nodes. Raises InputError if the file is damaged, or not an agent's."""
    rows = _Rows(path)
    for one in _documents(path):
        rows.take(one)
    if not rows.known:
        raise InputError(f"{path} holds no event of gpud or NVSentinel")
    rows.note(NO_HOST, holds=rows.lacks_host)
    return rows.evidence(bound_s=1.0, observes=tuple(sorted(rows.observes)))


def _documents(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of a file: the only one, those of its list, or one per line.

    Raises InputError if there are none.
    """
    content = read_bounded(path, _MOST_BYTES)
    with suppress(ValueError, RecursionError):
        decoded = msgspec.json.decode(content)
        yield from mappings(decoded if isinstance(decoded, list) else [decoded])
        return
    found = False
    for line in content.splitlines():
        with suppress(ValueError, RecursionError):
            for one in mappings([msgspec.json.decode(line)]):
                found = True
                yield one
    if not found:
        raise InputError(f"{path} is cut off or damaged", "ask again: curl -k https://localhost:15132/v1/events")


class _Rows(FileRows):
    """Collects rows from agents' reports."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, KIND)
        self.own_host = host_of(path)
        self.hosts |= {self.own_host} if self.own_host else set()
        self.known = 0
        """Number of objects from such an agent."""
        self.observes: set[str] = set()
        self.lacks_host = False

    def take(self, one: Mapping[str, Any]) -> None:
        """Add the rows of one object."""
        small = _small(one)
        inner = _small(mapping(small.get("data")))
        event = mapping(small.get("healthevent")) or mapping(inner.get("healthevent"))
        if isinstance(one.get("component"), str) and "events" in one:
            self._of_gpud(one)
        elif event or "checkname" in small:
            self._of_nvsentinel(event or one, small.get("createdat") or small.get("time"))
        else:
            self.passed_over += 1

    def _of_gpud(self, one: Mapping[str, Any]) -> None:
        self.known += 1
        self.lacks_host = self.lacks_host or self.own_host is None
        component = text(one.get("component"))
        span = [time for name in ("startTime", "endTime") if (time := _time_ns(one.get(name))) is not None]
        if component in _OBSERVED and len(span) == 2:
            self.observes.add(_OBSERVED[component])
            self.cover(*span)
        for event in mappings(one.get("events")):
            message, name = text(event.get("message")), text(event.get("name"))
            said = event_of(message)
            kind = said.name if said is not None else _kind_of(f"{component} {name}")
            if kind is None and event.get("type") in ("Fatal", "Critical"):
                kind = "node_state"
            device = text(mapping(event.get("extra_info")).get("device_uuid"))
            code = _SAID_CODE.search(message)
            port = _SAID_PORT.search(message) if kind == "link_down" else None
            address = _SAID_PCI.search(f"{device} {message}")
            entity = nic(port[1], port[2]) if port else _entity({"PCI": address[1] if address else "", "UUID": device})
            number = said.value if said is not None else float(code[1]) if code else None
            words = said.text if said is not None else f"{component}: {message or name}"
            self._event(event.get("time"), kind, entity, number=number, words=words, host=self.own_host)

    def _of_nvsentinel(self, one: Mapping[str, Any], otherwise: object) -> None:
        self.known += 1
        event = _small(one)
        host = text(event.get("nodename")) or self.own_host
        self.hosts |= {host} if host else set()
        if event.get("ishealthy") is True:
            return
        check, message = text(event.get("checkname")), text(event.get("message"))
        kind = _kind_of(check) or ("node_state" if event.get("isfatal") is True else None)
        of = map(_small, mappings(event.get("entitiesimpacted")))
        names = {text(each.get("entitytype")).upper(): text(each.get("entityvalue")) for each in of}
        if kind == "sxid":
            names = {"PCI": names.get("PCI", "")}
        codes = [code for said in listing(event.get("errorcode")) if (code := _CODE.fullmatch(text(said)))]
        number = float(codes[0][1]) if codes else 79.0 if "fallenoff" in check.lower() else None
        time = event.get("generatedtimestamp") or otherwise
        self._event(time, kind, _entity(names), number=number, words=f"{check}: {message}", host=host)

    def _event(
        self, time: object, kind: str | None, entity: str, *, number: float | None, words: str, host: str | None
    ) -> None:
        """Add an event if its kind is known."""
        time_ns = _time_ns(time)
        is_coded = kind in ("xid", "sxid")
        if kind is None or time_ns is None or (is_coded and number is None):
            self.passed_over += 1
            return
        said = f"{xids.of_code(int(number or 0)).words}: {words}" if kind == "xid" else words
        self.add(time_ns, entity, kind, number if is_coded else None, host=host, text=said, raw=self.at())


def _small(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same fields with lower-case names, because versions differ in case."""
    return {name.lower(): value for name, value in fields.items()}


def _kind_of(name: str) -> str | None:
    if _SXID.search(name):
        return "sxid"
    small = name.lower()
    return next((kind for part, kind in _NAMES if part in small), None)


def _entity(names: Mapping[str, str]) -> str:
    """Return the entity of an event: a device by UUID, else address, else the driver's number; else the host."""
    for kind in ("GPU_UUID", "UUID"):
        if uuid_of(names.get(kind, "")):
            return gpu(names[kind])
    if pci_address(names.get("PCI", "")):
        return pci(names["PCI"])
    index = names.get("GPU", "")
    return gpu_index(int(index)) if re.fullmatch(r"[0-9]{1,4}", index) else HOST


def _time_ns(value: object) -> int | None:
    """Return Unix ns of `2026-11-27T14:02:51Z`, of Protobuf's seconds and nanos, or of a database's `$date`."""
    if isinstance(value, str):
        time = iso_ns(value)
        return None if time is None else time[0]
    of = mapping(value)
    if "$date" in of:
        return _time_ns(of["$date"]) if isinstance(of["$date"], str) else None
    seconds = of.get("seconds")
    number = int(seconds) if isinstance(seconds, str) and re.fullmatch(r"[0-9]{1,11}", seconds) else whole(seconds)
    ns = number * 10**9 + whole(of.get("nanos"))
    return ns if number and is_possible(ns) else None
