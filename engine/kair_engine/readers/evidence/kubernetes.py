"""Reads kubectl's JSON of events, pods and nodes (`kubectl get events -A -o json`).

An event of a pod has the entity `pod:NAMESPACE/NAME` and the node as its host, because other pods are not the job's.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from kair_engine.errors import InputError
from kair_engine.readers.evidence.moments import iso_ns, modified_ns
from kair_engine.readers.evidence.opening import FileRows, json_of, read_bounded
from kair_engine.readers.json_values import mapping, mappings, text
from kair_engine.trace.evidence_table import EvidenceFile
from kair_engine.trace.measures import HOST

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
"""Reasons of events that matter without being warnings; every warning matters."""
_API: Final = re.compile(rb'"apiVersion"\s*:\s*"(?:v1|events\.k8s\.io/v1)"')
_KIND: Final = re.compile(rb'"kind"\s*:\s*"(?:List|Event|EventList|Pod|PodList|Node|NodeList)"')


def fits(name: str, head: bytes) -> bool:  # noqa: ARG001  (the content is enough)
    """Return whether it is an object of the Kubernetes API."""
    return (
        head.lstrip()[:1] == b"{"
        and _API.search(head) is not None
        and (_KIND.search(head) is not None or b'"items"' in head[:4096])
    )


def read(path: Path) -> EvidenceFile:
    """Return events of pods and nodes, exits of containers, and conditions and taints of nodes.

    Raises InputError if the file is damaged, or has none of these.
    """
    content = json_of(path, read_bounded(path, _MOST_BYTES), "ask again: kubectl get events -A -o json")
    rows = _Rows(path, KIND)
    for one in _items(content):
        rows.take(one)
    if not rows.known:
        raise InputError(f"{path} holds no event, pod or node of Kubernetes")
    rows.note("taints without a time are dated by when the file was written", holds=rows.is_of_writing)
    return rows.evidence(bound_s=None if rows.is_of_writing else 1.0)


def _items(content: object) -> Iterator[Mapping[str, Any]]:
    if not isinstance(content, dict):
        return
    items = content.get("items")
    if not isinstance(items, list):
        yield content
    # Items of a typed list may omit their kind.
    kind = text(content.get("kind")).removesuffix("List")
    yield from ({"kind": kind, **one} for one in mappings(items))


class _Rows(FileRows):
    """Collects rows from objects of the Kubernetes API."""

    is_of_writing = False
    """Whether some time is that of the file's writing."""
    known = 0
    """Number of events, pods and nodes."""

    def take(self, one: Mapping[str, Any]) -> None:
        """Add the rows of one object."""
        kind = one.get("kind")
        take = {"Event": self._event, "Pod": self._pod, "Node": self._node}.get(kind) if isinstance(kind, str) else None
        if take is None:
            self.passed_over += 1
            return
        self.known += 1
        take(one)

    def _add(self, time: object, entity: str, name: str, words: str, host: str | None) -> None:
        moment = iso_ns(time) if isinstance(time, str) else None
        if moment is None:
            self.passed_over += 1
            return
        self.add(moment[0], entity, name, host=host, text=words, raw=self.at())

    def _event(self, one: Mapping[str, Any]) -> None:
        about = mapping(one.get("involvedObject")) or mapping(one.get("regarding"))
        reason, message = text(one.get("reason")), text(one.get("message")) or text(one.get("note"))
        if one.get("type") != "Warning" and reason not in _NEWS:
            return
        series = mapping(one.get("series"))
        counts = (series.get("count"), one.get("count"), one.get("deprecatedCount"))
        count = next((number for number in counts if type(number) is int and 1 < number < 1 << 31), 1)
        words = f"{reason}: {message}{f' ({count} times)' if count > 1 else ''}"
        name, host = text(about.get("name")), _host_of_event(one)
        first = one.get("firstTimestamp") or one.get("deprecatedFirstTimestamp")
        last = series.get("lastObservedTime") or one.get("lastTimestamp") or one.get("deprecatedLastTimestamp")
        times = list(dict.fromkeys(time for time in (first, last) if time)) or [one.get("eventTime")]
        for time in times:
            if about.get("kind") == "Node":
                self._add(time, HOST, "node_state", words, name or host)
            else:
                entity = f"{text(about.get('kind')).lower() or 'object'}:{text(about.get('namespace'))}/{name}"
                self._add(time, entity, "pod_event", words, host)

    def _pod(self, one: Mapping[str, Any]) -> None:
        metadata, spec, status = (mapping(one.get(key)) for key in ("metadata", "spec", "status"))
        entity = f"pod:{text(metadata.get('namespace'))}/{text(metadata.get('name'))}"
        host = text(spec.get("nodeName")) or None
        if host:
            self.hosts.add(host)
        for container in (*mappings(status.get("containerStatuses")), *mappings(status.get("initContainerStatuses"))):
            restarts = container.get("restartCount")
            often = f", {restarts} restarts" if type(restarts) is int and 0 < restarts < 1 << 31 else ""
            for state in ("lastState", "state"):
                ended = mapping(mapping(container.get(state)).get("terminated"))
                code = ended.get("exitCode")
                if not ended or (code == 0 and ended.get("reason") == "Completed"):
                    continue
                exit_code = f", exit {code}" if type(code) is int and abs(code) < 1 << 31 else ""
                reason = text(ended.get("reason")) or "ended"
                words = f"{text(container.get('name'))}: {reason}{exit_code}{often}"
                self._add(ended.get("finishedAt"), entity, "pod_event", words, host)
        for condition in mappings(status.get("conditions")):
            if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
                words = f"{text(condition.get('reason'))}: {text(condition.get('message'))}"
                self._add(condition.get("lastTransitionTime"), entity, "pod_event", words, host)

    def _node(self, one: Mapping[str, Any]) -> None:
        host = text(mapping(one.get("metadata")).get("name"))
        if not host:
            self.passed_over += 1
            return
        self.hosts.add(host)
        for condition in mappings(mapping(one.get("status")).get("conditions")):
            kind, status = text(condition.get("type")), condition.get("status")
            # Ready is healthy if true; all other conditions, also of problem detectors, if not true.
            if (status != "True") if kind == "Ready" else (status == "True"):
                why = f"{text(condition.get('reason'))}: {text(condition.get('message'))}"
                words = f"{'not ready' if kind == 'Ready' else kind}, {why}"
                self._add(condition.get("lastTransitionTime"), HOST, "node_state", words, host)
        for taint in mappings(mapping(one.get("spec")).get("taints")):
            words = f"taint {text(taint.get('key'))}={text(taint.get('value'))}:{text(taint.get('effect'))}"
            if taint.get("timeAdded"):
                self._add(taint["timeAdded"], HOST, "node_state", words, host)
            else:
                self.is_of_writing = True
                self.add(modified_ns(self.path), HOST, "node_state", host=host, text=words, raw=self.at())


def _host_of_event(one: Mapping[str, Any]) -> str | None:
    """Return the node whose kubelet reported the event; None for events of the scheduler and controllers."""
    source = mapping(one.get("source")) or mapping(one.get("deprecatedSource"))
    if host := text(source.get("host")):
        return host
    of_kubelet = one.get("reportingComponent") == "kubelet" or one.get("reportingController") == "kubelet"
    return (text(one.get("reportingInstance")) or None) if of_kubelet else None
