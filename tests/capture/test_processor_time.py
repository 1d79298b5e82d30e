"""What a rank asks the kernel of its threads: how long they computed, and were ready without a core."""

import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from time import thread_time_ns

import pytest

from kair_capture.job.connections import DESCRIPTORS, Connections, Sent, together
from kair_capture.job.limits import Halts, Quota, limits
from kair_capture.job.processor_time import EVERY, WORD_BITS, CommunicationThreads, HelperThreads, ProcessorTime


def test_what_a_thread_computes_is_told_as_the_mean_of_four_steps() -> None:
    times = ProcessorTime()
    told = [times.after_step() for _ in range(4)]
    assert told == [0] * 4
    until = thread_time_ns() + 40_000_000
    while thread_time_ns() < until:
        pass
    for _ in range(3):
        cpu = times.after_step() & (1 << WORD_BITS) - 1
        assert 10_000 <= cpu < 30_000
    other = threading.Thread(target=lambda: told.append(times.after_step()))
    other.start()
    other.join()
    assert told[-1] == 0
    times.close()


def test_a_sampled_step_tells_what_its_thread_computed_in_it_alone() -> None:
    times = ProcessorTime()
    times.after_step()
    assert times.alone is None
    times.begin()
    until = thread_time_ns() + 20_000_000
    while thread_time_ns() < until:
        pass
    times.after_step(alone=True)
    assert times.alone is not None and 20_000_000 <= times.alone.cpu_ns < 40_000_000
    times.after_step()
    assert times.alone is None
    # After two steps what was measured is none of them alone.
    times.after_step(alone=True)
    assert times.alone is None
    times.close()


def test_of_a_thread_that_waits_busily_only_what_it_lacked_is_told() -> None:
    """As beside a GPU: what it computed is no work of its own, and steps that nobody samples are not looked at."""
    times = ProcessorTime(waits_busily=True)
    assert [times.after_step() for _ in range(2 * EVERY)] == [0] * (2 * EVERY)
    times.begin()
    assert times.after_step(alone=True) == 0
    assert times.alone is not None and times.alone.cpu_ns is None and times.alone.delay_ns is not None
    times.after_step()
    assert times.alone is None
    times.close()


@pytest.mark.parametrize(
    ("groups", "limit"),
    [
        ("4:cpu,cpuacct:/pod/job\n1:name=systemd:/x", ("cpu/pod/cpu.cfs_quota_us", "50000")),
        ("0::/pod/job", ("pod/cpu.max", "50000 100000")),
        ("0::/somewhere/else", ("cpu.max", "50000 100000")),
    ],
    ids=["first version", "second version", "a container's own root"],
)
def test_stops_by_the_next_quota_around_a_process_are_counted(
    tmp_path: Path, groups: str, limit: tuple[str, str]
) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text(groups)
    limited = tmp_path / "groups" / limit[0]
    (limited.parent / "job").mkdir(parents=True)
    limited.write_text(limit[1])
    (limited.parent / "job" / limited.name).write_text("max 100000" if limited.name == "cpu.max" else "-1")
    for folder in (limited.parent, limited.parent / "job"):
        (folder / "cpu.cfs_period_us").write_text("100000")
    (tmp_path / "groups" / "cgroup.controllers").write_text("cpu")
    stat = limited.with_name("cpu.stat")
    stat.write_text("nr_periods 70\nnr_throttled 40\nthrottled_usec 7")
    quota = Quota(tmp_path, tmp_path / "groups")
    assert quota.stops() is None
    assert quota.cores() == 0.5
    quota.look()
    stat.write_text("nr_periods 90\nnr_throttled 52\nthrottled_usec 9")
    assert (quota.stops(), quota.stops()) == (12, 0)
    unlimited = "max 100000" if limited.name == "cpu.max" else "-1"
    limited.write_text(unlimited)
    quota.look()
    assert quota.stops() is None
    assert quota.cores() is None
    limited.write_text(limit[1])  # within a window
    assert quota.stops() is None
    stat.write_text("nr_periods 95\nnr_throttled 57\nthrottled_usec 9")
    assert quota.stops() == 5


def test_a_thread_tells_what_it_may_have_of_its_host(tmp_path: Path) -> None:
    def of_thread() -> dict[str, object]:
        os.setpriority(os.PRIO_PROCESS, 0, nicer)
        os.sched_setaffinity(0, {core})
        return limits(Quota(tmp_path, tmp_path))

    nice, core = os.getpriority(os.PRIO_PROCESS, 0), min(os.sched_getaffinity(0))
    nicer = min(nice + 3, 19)  # there is no more, which tests may have
    with ThreadPoolExecutor(1) as another:
        assert another.submit(of_thread).result() == {"nice": nicer, "cpus": [core], "quota": None}
    assert limits(Quota(tmp_path, tmp_path))["nice"] == nice


def test_of_the_threads_that_communicate_the_one_counts_that_lacked_a_core_longest(tmp_path: Path) -> None:
    for number, name in enumerate(("python", "gloo_tcp_loop", "pt_gloo_runloop")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "comm").write_text(f"{name}\n")
        (tmp_path / str(number) / "schedstat").write_text(f"10 {number * 100} 3\n")
    threads = CommunicationThreads(tmp_path)
    assert threads.delay_ns() is None
    threads.look()
    for number, delay in enumerate((9000, 170, 250)):
        (tmp_path / str(number) / "schedstat").write_text(f"10 {delay} 3\n")
    assert (threads.delay_ns(), threads.delay_ns()) == (70, 0)
    threads.close()
    assert threads.delay_ns() is None


def test_what_threads_beside_the_training_one_compute_is_told() -> None:
    def compute() -> int:
        begin = thread_time_ns()
        while thread_time_ns() - begin < 30_000_000:
            pass
        return thread_time_ns() - begin

    helpers = HelperThreads(CommunicationThreads(Path("none")))
    with ThreadPoolExecutor(1) as another:
        helpers.begin()
        compute()
        assert helpers.cpu_ns() < 10_000_000  # of its own it is none
        computed = another.submit(compute).result()
        assert computed * 0.9 < helpers.cpu_ns() < computed + 10_000_000
        helpers.begin()
        assert helpers.cpu_ns() < 10_000_000


def test_a_system_that_tells_nothing_of_threads_and_groups_ends_no_sampling(tmp_path: Path) -> None:
    threads, quota = CommunicationThreads(tmp_path / "none"), Quota(tmp_path / "none", tmp_path / "none")
    threads.look()
    quota.look()
    assert (threads.delay_ns(), quota.stops()) == (None, None)


COUNTING = """
from kair_capture.job.limits import Halts
halts, seen = Halts(), 0
halts.look()
print("looks", flush=True)
while input() == "seen?":
    seen += halts.count() or 0  # None before its thread waits
    print(seen, flush=True)
halts.close()
print(halts.count(), flush=True)
"""


def test_each_stop_of_a_process_by_a_signal_is_counted() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", COUNTING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        assert process.stdin is not None and process.stdout is not None

        def asked(line: str) -> str:
            process.stdin.write(f"{line}\n")  # type: ignore[union-attr]  # known above
            return process.stdout.readline().strip()  # type: ignore[union-attr]

        assert process.stdout.readline() == "looks\n"
        assert asked("seen?") == "0"
        for stop in range(1, 4):
            os.kill(process.pid, signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)
            os.kill(process.pid, signal.SIGCONT)
            os.waitpid(process.pid, os.WCONTINUED)
            # Its waiting thread goes on when it comes to its turn.
            while (seen := int(asked("seen?"))) < stop:
                pass
            assert seen == stop
        assert asked("end") == "None"


def test_what_a_thread_is_given_a_core_for_before_it_waits_is_no_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a process that is short of cores it begins late, and nobody knows when."""
    monkeypatch.setattr(sys, "getswitchinterval", lambda: 0.0)
    halts = Halts()
    halts.look()
    assert [halts.count(), halts.count()] == [None, 0]
    halts.close()


def test_without_a_thread_that_waits_no_stops_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none_left)
    halts = Halts()
    halts.look()
    assert halts.count() is None
    halts.close()


def test_of_several_connections_to_a_host_those_of_most_bytes_tell_how_fast() -> None:
    several = [Sent(100, 90, 1, 20, 8, 4000), Sent(300, 10, 0, 700, 600, 0), Sent(150, 50, 2, 30, 9, 8000)]
    assert together(several) == Sent(550, 10, 3, 700, 600, 8000)
    assert together([*several, Sent(60, 60, 0, 40, 0, 0)]) == Sent(610, 50, 3, 40, 9, 8000)


@pytest.mark.skipif(not DESCRIPTORS.is_dir(), reason="only Linux tells what a process has open")
def test_connections_to_other_addresses_tell_what_they_sent_and_how_fast() -> None:
    """Two addresses of this machine stand for two hosts."""
    with ExitStack() as stack:
        open_one = stack.enter_context
        listening, sender, within = (open_one(socket.socket()) for _ in range(3))
        open_one(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        for one in socket.socketpair():
            open_one(one)
        listening.bind(("127.0.0.2", 0))
        listening.listen()
        for one, own in ((sender, "127.0.0.1"), (within, "127.0.0.2")):
            one.bind((own, 0))
            one.connect(listening.getsockname())
        receivers = [open_one(listening.accept()[0]) for _ in range(2)]

        def send(size: int) -> None:
            for one, other in zip((sender, within), receivers, strict=True):
                one.sendall(b"x" * size)
                left = size
                while left:
                    left -= len(other.recv(left))

        connections = Connections()
        send(100_000)
        connections.look()
        assert connections.sent() == []
        send(250_000)
        ((own, peer, size, rate, again, round_trip_us, queued_us, busy_us),) = connections.sent()
        assert (own, peer, size) == ("127.0.0.1", "127.0.0.2", 250_000)
        assert rate > 0 and round_trip_us > queued_us >= 0
        assert again >= 0 and busy_us >= 0
        sender.close()
        send_again = open_one(socket.socket())  # has its descriptor now
        assert connections.sent() == []
        assert send_again.fileno() >= 0
