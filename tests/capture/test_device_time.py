"""What a step takes on a device that is behind its host, told by events; without a device they are made up."""

import numpy as np

from kair_capture.agent.step_rows import ROW
from kair_capture.coordinator.step_table import StepTable
from kair_capture.job.device_time import DeviceTime


class Device:
    """Work is queued; the device comes to an event once what was queued before is done."""

    def __init__(self) -> None:
        self.queued_ms = self.done_ms = 0.0
        self.made = 0

    def event(self) -> "Event":
        self.made += 1
        return Event(self)


class Event:
    def __init__(self, device: Device) -> None:
        self.device, self.at_ms = device, -1.0

    def record(self) -> None:
        self.at_ms = self.device.queued_ms

    def query(self) -> bool:
        return self.at_ms <= self.device.done_ms

    def elapsed_time(self, end: "Event", /) -> float:
        return end.at_ms - self.at_ms


def begun(device: Device) -> DeviceTime:
    times = DeviceTime(device.event)
    assert times.step_is_over() == []
    return times


def step(times: DeviceTime, device: Device, *, computes_ms: float, waits_ms: float) -> list[float]:
    """Forward and backward, a wait for other ranks' gradients, and 2 ms of the optimizer."""
    device.queued_ms += computes_ms / 2
    times.gradient_is_there()
    device.queued_ms += computes_ms / 2
    times.gradient_is_there()  # the last one
    device.queued_ms += waits_ms
    times.backward_is_over()
    device.queued_ms += 2
    return times.step_is_over()


def test_a_step_is_told_without_what_it_waits_once_the_device_is_through() -> None:
    device = Device()
    times = begun(device)
    assert step(times, device, computes_ms=30, waits_ms=50) == []
    assert step(times, device, computes_ms=40, waits_ms=0) == []
    device.done_ms = 82
    assert step(times, device, computes_ms=10, waits_ms=0) == [32]
    device.done_ms = device.queued_ms
    assert times.step_is_over() == [42, 12, 0]


def test_what_late_data_leave_idle_is_the_ranks_own() -> None:
    device = Device()
    times = begun(device)
    device.queued_ms += 25  # nothing is launched meanwhile
    device.done_ms = 1e6
    assert step(times, device, computes_ms=10, waits_ms=7) == [25 + 10 + 2]


def test_waits_of_accumulated_batches_are_added_up_and_events_used_again() -> None:
    device = Device()
    times = begun(device)
    for _ in range(100):
        for computes_ms in (5, 7):
            device.queued_ms += computes_ms
            times.gradient_is_there()
            device.queued_ms += 3
            times.backward_is_over()
        device.done_ms = device.queued_ms
        assert times.step_is_over() == [12]
    assert device.made <= 7


def test_backward_without_a_gradient_that_was_seen_is_the_ranks_own() -> None:
    device = Device()
    times = begun(device)
    device.queued_ms += 5
    times.backward_is_over()
    device.done_ms = device.queued_ms
    assert times.step_is_over() == [5]


def test_nothing_is_recorded_into_a_graph() -> None:
    device, captured = Device(), [False]
    times = DeviceTime(device.event, lambda: captured[0])
    times.step_is_over()
    captured[0] = True
    made = device.made
    assert step(times, device, computes_ms=5, waits_ms=5) == []
    assert device.made == made
    captured[0] = False
    device.done_ms = 1e6
    assert step(times, device, computes_ms=5, waits_ms=5) == []  # it has no begin
    assert step(times, device, computes_ms=5, waits_ms=5) == [7]


def test_a_device_that_never_comes_along_takes_no_memory() -> None:
    device = Device()
    device.done_ms = -1
    times = begun(device)
    for _ in range(2000):
        assert step(times, device, computes_ms=1, waits_ms=1) == []
    assert device.made < 3 * 520


def test_ranks_stand_beside_each_other_by_their_devices_where_all_tell_it() -> None:
    """Hosts are ahead: what they take says nothing. Devices come along every fourth step."""
    rows = np.zeros(4 * 40, ROW)
    rows["rank"], rows["step"] = np.tile(np.arange(4), 40), np.repeat(np.arange(40), 4)
    rows["begin_us"], rows["step_us"], rows["self_us"] = 1 + 25_000 * rows["step"], 25_000, 2000
    rows["device_us"] = np.where(rows["step"] % 4 == 3, 20_000 + 3000 * (rows["rank"] == 2), 0)
    table = StepTable()
    table.add(rows)
    recent = table.recent(20, 39)
    assert np.nanmedian(recent.self_us, axis=1).tolist() == [20_000, 20_000, 23_000, 20_000]
    rows["device_us"][rows["rank"] == 3] = 0  # one of them has none: as before
    alone = StepTable()
    alone.add(rows)
    assert np.unique(alone.recent(20, 39).self_us).tolist() == [2000]
