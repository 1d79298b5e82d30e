"""Presses random keys on the full screen, resizes it and replaces its job; ends with status 1 at the first traceback.

    python benchmarks/random_keys.py --keys 10000 --seed 1 [JOB]

Without JOB a sample is imported into a store of its own, and imported again now and then while it is looked at.
"""

import argparse
import asyncio
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

from textual import events
from textual.geometry import Size
from textual.pilot import Pilot

from kair_engine.store.jobs import Store
from kair_tui.cli.choices.job import JobWanted
from kair_tui.render.terminal import Look
from kair_tui.tui.frame.app import KairApp

SAMPLES = Path(__file__).parents[1] / "sample_traces"
SIZES = ((160, 50), (80, 24), (60, 20), (59, 19), (200, 60), (120, 30))
SIGNS = {
    "question_mark": "?",
    "colon": ":",
    "slash": "/",
    "plus": "+",
    "minus": "-",
    "space": " ",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "dollar_sign": "$",
}
NAMED = "escape escape escape enter enter tab up down left right pageup pagedown home end ctrl+p ctrl+r ctrl+d ctrl+u"
KEYS = (*SIGNS, *NAMED.split(), *"1234567sSgoyemNfGnpvwarzcFAuRhjkl0>")
"""Not q: the program would end. What it saves goes to a folder that is deleted."""


def main() -> int:
    """Plays one walk."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", nargs="?")
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    wanted = parser.parse_args()
    job = Path(wanted.job).absolute() if wanted.job else None
    folder = Path(tempfile.mkdtemp(prefix="kair-keys-"))
    os.environ |= {"KAIR_STORE": str(folder / "store"), "XDG_DATA_HOME": str(folder / "data")}
    os.environ.setdefault("KAIR_CACHE", str(folder / "cache"))
    os.chdir(folder)
    try:
        return asyncio.run(walk(folder, job, wanted.keys, random.Random(wanted.seed)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def walk(folder: Path, job: Path | None, keys: int, rnd: random.Random) -> int:
    """The status: 1 where a defect ended the program, or was told on a screen."""
    if job is None:
        bring(folder, "slow_operator")
    app = KairApp(JobWanted(str(job or "walk")), Look())
    done: list[str] = []
    try:
        async with app.run_test(size=(80, 24)) as pilot:
            for _ in range(keys):
                done.append(await act(app, pilot, rnd, None if job else folder))
                if app.failure is not None:
                    break
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
    failed = app.failure is not None or bool(app.defects)
    print(f"{len(done)} keys; {'ended by ' + repr(app.failure) if app.failure else 'no traceback'}")
    print("".join(f"told as a defect: {defect!r}\n" for defect in app.defects), end="")
    if failed:
        print("the last of them:", *done[-30:])
    return int(failed)


async def act(app: KairApp, pilot: Pilot[int], rnd: random.Random, folder: Path | None) -> str:
    """A key; now and then another size, or other traces under the name of the job."""
    chance = rnd.random()
    if chance < 0.003 and folder is not None:
        sample = rnd.choice(("slow_operator", "healthy"))
        await asyncio.to_thread(bring, folder, sample)
        return f"<{sample}>"
    if chance < 0.03:
        size = Size(*rnd.choice(SIZES))
        app.post_message(events.Resize(size, size))
        return f"<{size.width}x{size.height}>"
    key = rnd.choice(KEYS)
    app.post_message(events.Key(key, key if len(key) == 1 else SIGNS.get(key)))
    if chance < 0.25:
        await pilot.pause()
    return key


def bring(folder: Path, sample: str) -> None:
    """Puts a sample into the store, in the place of what was there."""
    store, cache = Store(folder / "store"), Path(os.environ["KAIR_CACHE"])
    store.import_traces([SAMPLES / sample], "walk", cache=cache, replace=True)


if __name__ == "__main__":
    sys.exit(main())
