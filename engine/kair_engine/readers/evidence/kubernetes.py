"""What kubectl prints as JSON of events, pods and nodes (`kubectl get events -A -o json`).

An event of a pod is of the entity `pod:NAMESPACE/NAME`, with the node as its host: another pod's is not the job's.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from kair_engine.errors import InputError
from kair_engine.readers.evidence.moments import iso_ns, modified_ns
from kair_engine.readers.evidence.opening import read_bounded
from kair_engine.trace.evidence_table import EvidenceFile, EvidenceRows, described
from kair_engine.trace.measures import HOST, EvidenceSource

KIND: Final = "kubernetes"

_MOST_BYTES: Final = 512 << 20
_NEWS: Final = frozenset(
    (
        "Killing",
        "Preempted",
        "Preempting",
        "Evicted",
        "TaintManagerEviction",
        "NodeNotReady",
        "NodeReady",
        "NodeNotSchedulable",
        "NodeHasInsufficientMemory",
        "NodeHasDiskPressure",
        "NodeHasInsufficientPID",
        "Rebooted",
        "Starting",
    )
)
"""Reasons of events that are no warnings, and yet are news; all warnings are."""
_API: Final = re.compile(rb'"apiVersion"\s*:\s*"(?:v1|events\.k8s\.io/v1)"')
_KIND: Final = re.compile(rb'"kind"\s*:\s*"(?:List|Event|EventList|Pod|PodList|Node|NodeList)"')


def fits(name: str, head: bytes) -> bool:  # noqa: ARG001  (what they hold tells enough)
    """Whether it is an object of Kubernetes' API."""
    return (
        head.lstrip()[:1] == b"{"
        and _API.search(head) is not None
        and (_KIND.search(head) is not None or b'"items"' in head[:4096])
    )


def read(path: Path) -> EvidenceFile:
    """Events of pods and nodes, ends of containers, and conditions and taints of nodes.

    Raises InputError where it is damaged, or holds nothing of these.
    """
    try:
        content = json.loads(read_bounded(path, _MOST_BYTES))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is cut off or damaged", "ask again: kubectl get events -A -o json") from error
    taker = _Taker(path)
    for one in _items(content):
        taker.take(one)
    if not taker.known:
        raise InputError(f"{path} holds no event, pod or node of Kubernetes")
    return taker.evidence()


def _items(content: object) -> Iterator[Mapping[str, Any]]:
    if not isinstance(content, dict):
        return
    items = content.get("items")
    if not isinstance(items, list):
        yield content
        return
    # Items of a typed list may leave their kind out.
    kind = _text(content.get("kind")).removesuffix("List")
    for one in items:
        if isinstance(one, dict):
            yield one if "kind" in one else {**one, "kind": kind}


class _Taker:
    """Collects events."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows = EvidenceRows()
        self._hosts: set[str] = set()
        self._is_of_writing = False
        self.known = 0
        self.passed_over = 0

    def take(self, one: Mapping[str, Any]) -> None:
        """Takes an object."""
        kind = one.get("kind")
        take = {"Event": self._event, "Pod": self._pod, "Node": self._node}.get(kind) if isinstance(kind, str) else None
        if take is None:
            self.passed_over += 1
            return
        self.known += 1
        take(one)

    def evidence(self) -> EvidenceFile:
        """All events."""
        notes = ("times of taints that state none are when the file was written",) if self._is_of_writing else ()
        source = EvidenceSource(
            self._path.name,
            KIND,
            clock="host",
            bound_s=None if self._is_of_writing else 1.0,
            passed_over=self.passed_over,
            hosts=tuple(sorted(self._hosts)),
            notes=notes,
        )
        return described(self._rows, source)

    def _add(self, time: object, entity: str, name: str, text: str, host: str | None) -> None:
        told = iso_ns(time) if isinstance(time, str) else None
        if told is None:
            self.passed_over += 1
            return
        self._rows.add(told[0], entity, name, host=host, text=text, raw=self._path.name)

    def _event(self, one: Mapping[str, Any]) -> None:
        about = _dict(one.get("involvedObject")) or _dict(one.get("regarding"))
        reason, message = _text(one.get("reason")), _text(one.get("message")) or _text(one.get("note"))
        if one.get("type") != "Warning" and reason not in _NEWS:
            return
        series = _dict(one.get("series"))
        counts = (series.get("count"), one.get("count"), one.get("deprecatedCount"))
        count = next((number for number in counts if type(number) is int and 1 < number < 1 << 31), 1)
        text = f"{reason}: {message}{f' ({count} times)' if count > 1 else ''}"
        name, host = _text(about.get("name")), _host_of_event(one)
        first = one.get("firstTimestamp") or one.get("deprecatedFirstTimestamp")
        last = series.get("lastObservedTime") or one.get("lastTimestamp") or one.get("deprecatedLastTimestamp")
        times = list(dict.fromkeys(time for time in (first, last) if time)) or [one.get("eventTime")]
        for time in times:
            if about.get("kind") == "Node":
                self._add(time, HOST, "node_state", text, name or host)
            else:
                entity = f"{_text(about.get('kind')).lower() or 'object'}:{_text(about.get('namespace'))}/{name}"
                self._add(time, entity, "pod_event", text, host)

    def _pod(self, one: Mapping[str, Any]) -> None:
        metadata, spec, status = (_dict(one.get(key)) for key in ("metadata", "spec", "status"))
        entity = f"pod:{_text(metadata.get('namespace'))}/{_text(metadata.get('name'))}"
        host = _text(spec.get("nodeName")) or None
        if host:
            self._hosts.add(host)
        for container in (*_dicts(status.get("containerStatuses")), *_dicts(status.get("initContainerStatuses"))):
            restarts = container.get("restartCount")
            often = f", {restarts} restarts" if type(restarts) is int and 0 < restarts < 1 << 31 else ""
            for state in ("lastState", "state"):
                ended = _dict(_dict(container.get(state)).get("terminated"))
                code = ended.get("exitCode")
                if not ended or (code == 0 and ended.get("reason") == "Completed"):
                    continue
                exit_code = f", exit {code}" if type(code) is int and abs(code) < 1 << 31 else ""
                reason = _text(ended.get("reason")) or "ended"
                text = f"{_text(container.get('name'))}: {reason}{exit_code}{often}"
                self._add(ended.get("finishedAt"), entity, "pod_event", text, host)
        for condition in _dicts(status.get("conditions")):
            if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
                text = f"{_text(condition.get('reason'))}: {_text(condition.get('message'))}"
                self._add(condition.get("lastTransitionTime"), entity, "pod_event", text, host)

    def _node(self, one: Mapping[str, Any]) -> None:
        host = _text(_dict(one.get("metadata")).get("name"))
        if not host:
            self.passed_over += 1
            return
        self._hosts.add(host)
        for condition in _dicts(_dict(one.get("status")).get("conditions")):
            kind, status = _text(condition.get("type")), condition.get("status")
            # Ready is well where it is true; all others, those of problem detectors too, where they are not.
            if (status != "True") if kind == "Ready" else (status == "True"):
                why = f"{_text(condition.get('reason'))}: {_text(condition.get('message'))}"
                text = f"{'not ready' if kind == 'Ready' else kind}, {why}"
                self._add(condition.get("lastTransitionTime"), HOST, "node_state", text, host)
        for taint in _dicts(_dict(one.get("spec")).get("taints")):
            text = f"taint {_text(taint.get('key'))}={_text(taint.get('value'))}:{_text(taint.get('effect'))}"
            if taint.get("timeAdded"):
                self._add(taint["timeAdded"], HOST, "node_state", text, host)
            else:
                self._is_of_writing = True
                self._rows.add(modified_ns(self._path), HOST, "node_state", host=host, text=text, raw=self._path.name)


def _host_of_event(one: Mapping[str, Any]) -> str | None:
    """The node whose kubelet tells it; None of events of the scheduler and controllers."""
    source = _dict(one.get("source")) or _dict(one.get("deprecatedSource"))
    if host := _text(source.get("host")):
        return host
    of_kubelet = one.get("reportingComponent") == "kubelet" or one.get("reportingController") == "kubelet"
    return (_text(one.get("reportingInstance")) or None) if of_kubelet else None


def _dict(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _dicts(value: object) -> Iterator[Mapping[str, Any]]:
    return (one for one in value if isinstance(one, dict)) if isinstance(value, list) else iter(())


def _text(value: object) -> str:
    return value[:1000] if isinstance(value, str) else ""
