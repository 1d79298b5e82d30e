"""Damages what parts of capture say to each other: datagrams, rings, journals; each is heard, read or refused.

`python validation/fuzz/parts.py [--each N] [--seed S] [PART…]` exits with 1 where one failed otherwise. Signed
datagrams are as hostile as those of a stranger: an agent of another version, or of a broken machine, has the key too.
"""

import argparse
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / room) for room in ("validation", "benchmarks", "tests")]

from fuzz import damage  # noqa: E402 (the path above leads there)
from support.captured import OneRank, rows_for  # noqa: E402

from kair_capture.agent.ring_reader import NotARingError, Trainer, TrainerRings  # noqa: E402
from kair_capture.agent.run_folders import identities  # noqa: E402
from kair_capture.agent.spool import Spool  # noqa: E402
from kair_capture.agent.step_rows import COLUMNS, Journal, ScopeSum, ScopeSums  # noqa: E402
from kair_capture.coordinator.coordinator import Coordinator, CoordinatorSettings  # noqa: E402
from kair_capture.coordinator.status import lines_of  # noqa: E402
from kair_capture.places import JobPlaces  # noqa: E402
from kair_capture.wire import (  # noqa: E402
    MOST_BODY,
    MOST_ROWS,
    Beat,
    Capture,
    Communication,
    Datagram,
    Host,
    Kind,
    Rows,
    read_key,
    sealed,
)

LONGEST_S = 10.0
_AT_ONCE = 40
"""Datagrams of one case."""
_NUMBERS = (0, 1, 2, 7, 99, 1000, 131_071, 131_072, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
_LONG = (0, 1, 10**15, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)


def datagrams(folder: Path, chance: random.Random) -> None:
    """A coordinator hears sound and hostile ones, looks at the job, and tells how it is doing."""
    places = JobPlaces(folder / "store", "job")
    coordinator = Coordinator(CoordinatorSettings(places, ("127.0.0.1", 0)))
    key = read_key(places.key, "job")
    try:
        for number in range(chance.choice((1, _AT_ONCE))):
            kind, body = _message(chance)
            epoch = coordinator.endpoint._epoch if chance.random() < 0.95 else chance.choice(_LONG)
            data = sealed(key, Datagram(kind, epoch, chance.choice((1, 2, 3)), number + 1, body[:MOST_BODY]))
            if chance.random() < 0.1:
                data = damage.content(data, chance)
            coordinator.endpoint._answer(data, "127.0.0.1", chance.choice((time.time_ns(), 0, 1 << 62)))
            coordinator._watch(time.monotonic())
        coordinator._write_status(time.monotonic())
        if coordinator.status is not None:
            "".join(lines_of(coordinator.status)).encode()
    finally:
        coordinator.stop()
        coordinator.run()
    again = Coordinator(CoordinatorSettings(places, ("127.0.0.1", 0)))
    again.stop()
    again.run()


def _message(chance: random.Random) -> tuple[Kind, bytes]:
    """A kind, and a body that is mostly its own."""
    some = [chance.choice(_NUMBERS) for _ in range(chance.choice((0, 1, 4, 60)))]
    bodies: Mapping[Kind, Callable[[], bytes]] = {
        Kind.ROWS: lambda: _rows(chance),
        Kind.HOST: lambda: Host(chance.choice(("node-1", "node-2", *damage.TEXTS)), chance.choice(_NUMBERS),
                                tuple(some)).packed(),
        Kind.CAPTURE: lambda: Capture(chance.choice((1, 4, 50)), tuple(some)).packed(),
        Kind.COMMUNICATION: lambda: Communication(chance.choice(_NUMBERS), chance.choice(_NUMBERS), tuple(some),
                                                  tuple(some), tuple((one, one) for one in some)).packed(),
        Kind.BEAT: lambda: _beat(chance),
    }  # fmt: skip
    kind = chance.choice((Kind.ROWS, Kind.ROWS, *bodies))
    body = bodies[kind]()
    if chance.random() < 0.3:
        body = damage.content(body, chance)
    return (kind if chance.random() < 0.97 else chance.choice(list(Kind))), body


def _rows(chance: random.Random) -> bytes:
    first = chance.choice((0, 0, 10, 1 << 20))
    rows = np.concatenate([rows_for(rank, range(first, first + 7)) for rank in range(3)])[:MOST_ROWS]
    for _ in range(chance.choice((0, 0, 1, 5))):
        name = chance.choice(COLUMNS)
        at = chance.randrange(len(rows))
        value = chance.choice(_LONG if name == "begin_us" else _NUMBERS)
        rows[name][at] = value & np.iinfo(rows.dtype[name]).max
    return Rows(chance.choice(_LONG), rows.tobytes()).packed()


def _beat(chance: random.Random) -> bytes:
    fields = {}
    for name in Beat.__struct_fields__:
        is_float = name == "drift"
        fields[name] = chance.choice((0.0, -1.0, 1e300, float("nan"), float("inf"))) if is_float else 0
        if not is_float and chance.random() < 0.3:
            fields[name] = chance.choice((0, 1, 255))
    return Beat(**fields).packed()


def rings(folder: Path, chance: random.Random) -> None:
    """An agent drains rings that a dying machine left."""
    rank = OneRank(folder)
    for step in range(6):
        rank.step(step, 1000 + 20 * step)
    for path in sorted(folder.iterdir()):
        if chance.random() < 0.7:
            _harm_in_place(path, chance)
    found = TrainerRings(folder, Trainer(3, os.getpid()))
    with suppress(NotARingError, OSError):
        for ring in rank.rings:
            found.add(ring.path.name)
    for to_the_end in (False, True):
        drained = found.peek(to_the_end=to_the_end)
        if drained is not None:
            rows = drained.new_rows(None)
            if rows is not None:
                drained.scopes_of(rows)
            found.take(drained)
    found.close(remove=True)


def journals(folder: Path, chance: random.Random) -> None:
    """An agent takes up what an agent before left: rows, sums of scopes, fragments, what ranks say of themselves."""
    path = folder / "rows.journal"
    journal = Journal(path)
    journal.append(rows_for(0, range(20)))
    journal.acknowledge(5)
    journal.close()
    _harm_in_place(path, chance)
    again = Journal(path)
    again.first(3)
    again.append(rows_for(0, range(20, 25)))
    again.acknowledge(len(again))
    again.close()
    sums = ScopeSums(folder)
    sums.add([ScopeSum(0, step, 10**15, "attention", 500, 1) for step in range(8)])
    for left in folder.glob("*scope*"):
        _harm_in_place(left, chance)
    spool = Spool(folder / "spool", 1 << 30, folder / "store", "node-1", None)
    ScopeSums(folder).deliver(spool, folder, b"k" * 32, at_once=True)
    spool.deliver_waiting()
    text = b'{"rank": 0, "pid": 1, "world_size": 2, "host": "node-1"}'
    (folder / "rank-0-1.json").write_bytes(damage.content(text, chance))
    list(identities(folder))


def _harm_in_place(path: Path, chance: random.Random) -> None:
    """Of the same length mostly: files that are mapped do not shrink."""
    data = bytearray(path.read_bytes())
    if chance.random() < 0.15 and path.suffix != ".ring":
        path.write_bytes(damage.content(bytes(data), chance))
        return
    for _ in range(chance.choice((1, 3, 30))):
        if data:
            at = chance.choice((chance.randrange(len(data)), chance.randrange(min(len(data), 200))))
            data[at] = chance.choice((0, 1, 0xFF, chance.randrange(256)))
    with path.open("r+b") as file:
        file.write(data)


PARTS: Mapping[str, Callable[[Path, random.Random], None]] = {
    "datagrams": datagrams,
    "rings": rings,
    "journals": journals,
}


def tried(name: str, seed: int, number: int) -> str:
    """What went wrong, nothing mostly."""
    began = time.process_time()
    with TemporaryDirectory(prefix="parts-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        try:
            PARTS[name](Path(folder), random.Random(f"{seed} {name} {number}"))
        except Exception:
            return traceback.format_exc()
    took = time.process_time() - began
    return f"took {took:.1f} s" if took > LONGEST_S else ""


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("parts", nargs="*")
    arguments.add_argument("--each", type=int, default=500)
    arguments.add_argument("--seed", type=int, default=1)
    wanted = arguments.parse_args()
    failures = 0
    for name in wanted.parts or PARTS:
        for number in range(wanted.each):
            if wrong := tried(name, wanted.seed, number):
                failures += 1
                print(f"{name} {number}: {wrong}", file=sys.stderr)
        print(f"{name}: {wanted.each} cases")
    print(f"{failures} failures")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
