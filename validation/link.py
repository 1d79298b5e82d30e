"""Is a slow link between two hosts named as such, and no rank? Two hosts in network namespaces, one link of their own.

    python validation/link.py [--delay-ms 8] [--loss 1] [--takes 2] [--steps 400] [--keep DIR]

Two ranks (gloo, DistributedDataParallel) on each of two hosts train under `kair capture run`, with a coordinator on the
first. All that the hosts say to each other, Kair's datagrams too, passes through a relay in user space (kernels without
netem are common), which from the middle on holds packets back, and loses some, in one direction. Two windows are asked
for then, in which the kernel tells how transfers went. Told are the alerts of the watch and triage's answer. It is
wrong where either accuses a rank, and where triage does not name the link (`links`, from which host to which). It needs
root, `ip` and /dev/net/tun.
"""

from __future__ import annotations

import argparse
import fcntl
import heapq
import json
import os
import random
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE)]

from captured_takes import KAIR  # noqa: E402  (of the folder beside this one)

from kair_capture.files import write_atomically  # noqa: E402
from kair_capture.places import JobPlaces  # noqa: E402

HOSTS: Final = ("kair-near", "kair-far")
RANKS: Final = 2
"""Of each host."""
JOB: Final = "link"
_SET_INTERFACE, _TUN = 0x400454CA, 0x1001
_LARGEST: Final = 65536


def address(host: int) -> str:
    """Return the host's address on the link."""
    return f"10.214.9.{host + 1}"


def relay(control: Path) -> None:
    """Pass packets from host to host until it is ended; `control` says what happens to those of the first one."""
    handles = [_interface(host) for host in HOSTS]
    (control.parent / "relays").touch()
    waiting: list[tuple[float, int, int, bytes]] = []
    number, chance, last = 0, random.Random(1), [0.0, 0.0]
    while True:
        left = max(waiting[0][0] - time.monotonic(), 0) if waiting else 1.0
        for handle in select.select(handles, [], [], left)[0]:
            packet, to = os.read(handle, _LARGEST), 1 - handles.index(handle)
            delay_ms, loss = json.loads(control.read_text(encoding="ascii")) if to == 1 else (0.0, 0.0)
            if chance.random() * 100 >= loss:
                # In their order, as on a real line.
                last[to] = max(time.monotonic() + delay_ms / 1e3, last[to])
                number += 1
                heapq.heappush(waiting, (last[to], number, to, packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, to, packet = heapq.heappop(waiting)
            with suppress(OSError):
                os.write(handles[to], packet)


def _interface(host: str) -> int:
    """A handle on the host's only interface, which it makes, from outside of its namespace."""
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    other = os.open(f"/run/netns/{host}", os.O_RDONLY)
    _set_namespace(other)
    handle = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(handle, _SET_INTERFACE, struct.pack("16sH", b"link0", _TUN))
    for command in (
        f"ip addr add {address(HOSTS.index(host))}/24 dev link0",
        "ip link set link0 up",
        "ip link set lo up",
    ):
        subprocess.run(command.split(), check=True)
    _set_namespace(own)
    os.close(own)
    os.close(other)
    return handle


def _set_namespace(handle: int) -> None:
    import ctypes

    if ctypes.CDLL(None, use_errno=True).setns(handle, 0):
        raise OSError(ctypes.get_errno(), "setns")


def take(folder: Path, steps: int, delay_ms: float, loss: float) -> dict[str, Any]:
    """Return what is told of one job. Raises OSError where a namespace cannot be made, TimeoutError."""
    folder.mkdir(parents=True, exist_ok=True)
    control, places = folder / "control", JobPlaces(folder / "store", JOB)
    control.write_text("[0, 0]", encoding="ascii")
    with ExitStack() as stack:
        for host in HOSTS:
            subprocess.run(["ip", "netns", "add", host], check=True)
            stack.callback(subprocess.run, ["ip", "netns", "del", host], check=False)
        log = stack.enter_context((folder / "log").open("wb"))

        def started(host: int | None, *words: str, **own: str) -> subprocess.Popen[bytes]:
            inside = [] if host is None else ["ip", "netns", "exec", HOSTS[host]]
            name = "relay" if host is None else HOSTS[host]
            environment = {
                **os.environ,
                "KAIR_STORE": str(places.store),
                "KAIR_HOST": name,
                "KAIR_RUN_DIR": str(folder / f"run-{name}"),
                "KAIR_SPOOL_DIR": str(folder / f"spool-{name}"),
                "KAIR_AGENT_IDLE": "3",
                "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": "link0",
                **own,
            }
            process = subprocess.Popen(
                [*inside, *words], env=environment, stdout=log, stderr=log, start_new_session=True
            )
            stack.callback(_end, process)
            return process

        started(None, sys.executable, __file__, "--relay", str(control))
        _until((folder / "relays").exists)
        listening = ("--listen", "0.0.0.0:0", "--advertise", address(0), "--leave-after", "5")
        coordinator = started(0, *KAIR, "coordinator", "--job", JOB, *listening)
        _until(places.address.exists)
        port = json.loads(places.address.read_text(encoding="utf-8"))["port"]
        torchrun = [str(Path(sys.executable).with_name("torchrun")), "--nnodes", "2", "--nproc-per-node", str(RANKS)]
        script = [str(HERE.parent / "benchmarks/capture/ddp_job.py"), "--steps", str(steps), "--device-ms", "15"]
        job = []
        for host in range(2):
            meeting = ["--node-rank", str(host), "--master-addr", address(0), "--master-port", "29573"]
            command = (*torchrun, *meeting, *script, "--products", "1")
            own = {"KAIR_COORDINATOR": f"{address(0)}:{port}"}
            job.append(started(host, *KAIR, "capture", "run", "--job", JOB, "--", *command, **own))
        _until(lambda: _status(places).get("step", -1) >= steps // 2, job)
        write_atomically(control, json.dumps([delay_ms, loss]).encode())
        for part in (0.6, 0.8):
            _until(lambda part=part: _status(places).get("step", -1) >= steps * part, job)
            # The watch samples by itself where it is sure that steps became longer: here somebody wants to know.
            asked = ("capture", "now", "--job", JOB, "--steps", "8", "--store", str(places.store))
            started(0, *KAIR, *asked).wait(60)
        for one in job:
            one.wait(900)
        coordinator.wait(120)
        answer = subprocess.run(
            [*KAIR, "triage", JOB, "--store", str(places.store), "--json"],
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
    triage = json.loads(answer.stdout)["data"]
    alerts = [one for one in _status(places)["alerts"] if not one["over"]]
    return {
        "alerts": [(one["kind"], one["step"], one["ranks"]) for one in alerts],
        "accused": sorted({rank for finding in triage["findings"] for rank in finding["ranks"]}),
        "links": sorted(
            {
                one["about"]
                for finding in triage["findings"]
                for one in finding["evidence"]
                if one["kind"] in ("network", "slow_network") and one["about"]
            }
        ),
        "verdict": triage["verdict"],
        "summary": triage["summary"],
    }


def _status(places: JobPlaces) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        found: dict[str, Any] = json.loads(places.status.read_bytes())
        return found
    return {}


def _until(holds: Any, job: list[subprocess.Popen[bytes]] | None = None, most_s: float = 600) -> None:  # noqa: ANN401 - a function without arguments
    until = time.monotonic() + most_s
    while not holds():
        if time.monotonic() > until or any(one.poll() for one in job or ()):
            raise TimeoutError
        time.sleep(0.1)


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(10)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main() -> int:
    """Print what was told of each take; 1 where a rank was accused or the network was not named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delay-ms", type=float, default=8.0)
    parser.add_argument("--loss", type=float, default=1.0, help="percent")
    parser.add_argument("--takes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--relay", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.relay is not None:
        relay(given.relay)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was made is taken away then, too
    wrong = 0
    with ExitStack() as stack:
        folder = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kair-link-")))
        for number in range(given.takes):
            found = take(folder / str(number), given.steps, given.delay_ms, given.loss)
            accused = bool(found["accused"]) or any(kind == "slow_rank" for kind, *_ in found["alerts"])
            wrong += accused or not found["links"]
            print(json.dumps({"take": number, "delay_ms": given.delay_ms, "loss": given.loss, **found}), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
