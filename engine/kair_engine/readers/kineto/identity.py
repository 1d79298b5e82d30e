"""Reads a rank's identity from a Kineto trace: its process, its device, the versions that the profiler found.

The trace lists all devices that the process may see; the rank's kernels show which one is its own.
"""

from collections.abc import Mapping
from typing import Any, Final

from kair_engine.arrays import Bools
from kair_engine.readers.json_values import listing, mapping, mappings
from kair_engine.readers.kineto.classify import DEVICE_CATEGORIES, Category
from kair_engine.readers.kineto.tables import EventTables
from kair_engine.readers.rank_identity import cuda_version, hip_version, one_line, positive, process_id, without_unknown
from kair_engine.trace.identity import DeviceIdentity, RankIdentity

_MOST_DEVICES: Final = 1024
_ON_DEVICE: Final = frozenset((*DEVICE_CATEGORIES, Category.DEVICE_ANNOTATION))


def busiest_device(tables: EventTables, rows: Mapping[int, int], own: Bools | None = None) -> int | str | None:
    """Return the device that ran most of a rank's kernels and copies; None if no device ran any.

    `rows` has the number of records by track; `own` is a mask of the rank's tracks (None: all).
    """
    ran: dict[int | str, int] = {}
    for at, track in enumerate(tables.tracks.items_):
        if track.category in DEVICE_CATEGORIES and rows.get(at) and (own is None or own[at]):
            ran[track.device] = ran.get(track.device, 0) + rows[at]
    return max(ran, key=lambda device: ran[device], default=None)


def host_process(tables: EventTables, track: int) -> int | str | None:
    """Return the process of the thread that ran the steps; None if only a device marks them."""
    if not 0 <= track < len(tables.tracks.items_):
        return None
    found = tables.tracks.items_[track]
    return None if found.category in _ON_DEVICE else found.device


def identity_of(
    header: Mapping[str, Any], rank: int, process: int | str | None, device: int | str | None
) -> RankIdentity:
    """Return the rank's identity from the fields around the events, and from `process` and `device` as its events name
    them.
    """
    distributed = mapping(header.get("distributedInfo"))
    # Other tools that write Chrome's format number processes and devices arbitrarily.
    numbers_are_systems = "schemaVersion" in header
    of_device, settings = _device(header, device) if numbers_are_systems else (DeviceIdentity(), {})
    return RankIdentity(
        rank,
        pid=process_id(process) if numbers_are_systems else None,
        device=of_device,
        versions=without_unknown(
            cuda=cuda_version(header.get("cuda_runtime_version")),
            cuda_driver=cuda_version(header.get("cuda_driver_version")),
            cupti=positive(header.get("cupti_version")),
            hip=hip_version(header.get("hip_runtime_version")),
            hip_driver=hip_version(header.get("hip_driver_version")),
            nccl=one_line(distributed.get("nccl_version")),
        ),
        settings=settings,
    )


def _device(header: Mapping[str, Any], device: int | str | None) -> tuple[DeviceIdentity, dict[str, str]]:
    known = mappings(listing(header.get("deviceProperties"))[:_MOST_DEVICES])
    if not isinstance(device, int) or not 0 <= device < _MOST_DEVICES:
        return DeviceIdentity(), {}
    own = next((one for one in known if one.get("id") == device), None)
    if own is None:
        # Numbers in a merged file are no ordinals.
        return DeviceIdentity(ordinal=None if known else device), {}
    settings = without_unknown(
        device_memory_bytes=positive(own.get("totalGlobalMem")), multiprocessors=positive(own.get("numSms"))
    )
    # A list that was cut, or lacks a name, does not show how many there are.
    models = {one_line(one.get("name")) for one in known}
    is_whole = {repr(one.get("id")) for one in known} == {repr(number) for number in range(len(known))}
    visible = len(known) if is_whole and len(models) == 1 and None not in models else None
    return DeviceIdentity(ordinal=device, model=one_line(own.get("name")), visible=visible), settings
