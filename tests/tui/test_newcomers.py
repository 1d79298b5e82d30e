"""What a newcomer wants of the full screen on a terminal of 80 x 24, each in at most six keys."""

import random
from functools import partial
from pathlib import Path

import pytest
from support.cli_samples import kair, store_variables
from support.hangs import behind
from support.places import SAMPLES
from support.screen_text import opened, played, screen_text, until

from kair.app.places import store_root
from kair_tui.tui.frame.app import KairApp

MOST_KEYS = 6
SLOW = str(SAMPLES / "slow_operator")

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_places")]


def is_seen(app: KairApp, text: str) -> bool:
    """Whether it is on the screen; a sentence is wrapped where that ends."""
    return text in " ".join(screen_text(app).split())


def done(job: str, keys: str, *seen: str) -> None:
    """Press the keys one by one; after each the next text of `seen` has to come, or the last one again."""

    @played
    async def play() -> None:
        pressed = keys.split()
        assert len(pressed) <= MOST_KEYS
        async with opened(job) as (app, pilot):
            for at in range(max(len(pressed), len(seen))):
                if at < len(pressed):
                    await pilot.press(pressed[at])
                await until(pilot, partial(is_seen, app, seen[min(at, len(seen) - 1)]))

    play()


def test_what_is_different_from_yesterday(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_variables(monkeypatch, tmp_path)
    for name, sample in (("monday", "healthy"), ("tuesday", "slow_operator")):
        assert kair("import", str(SAMPLES / sample), "--job", name, "--store", str(store_root(None))).status == 0
    done("tuesday", "8 k equals_sign", "2 jobs in", "monday", "kair_sample::mlp on rank 2")


def test_since_when() -> None:
    done(SLOW, "tab tab", "persistent, steps 4-15")


def test_what_a_plan_would_save() -> None:
    done(str(SAMPLES / "slow_host"), "5", "continuous would save about")


def test_where_a_hanging_rank_stands(tmp_path: Path) -> None:
    hang = behind(random.Random(3)).run()
    folder = hang.write(tmp_path / "dumps", "2.5")
    done(
        str(folder),
        "tab tab pagedown",
        "at workspace/train.py:",
        "lines 1-",
        "rank 1 waits in no call; its last one is",
    )


def test_a_query() -> None:
    done(SLOW, "Q enter", "i types a query", "SELECT * FROM")


def test_the_periods_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    seconds = [1.3 if 150 <= step < 250 else 1.0 + 0.01 * (step % 7) / 7 for step in range(400)]
    log.write_text("".join(f"completed step: {at}, seconds: {s:.4f}\n" for at, s in enumerate(seconds, 1)))
    done(str(log), "", "from step 151 to 250")


def test_hand_it_over() -> None:
    done(SLOW, "T y", "What it costs", "copied to the clipboard")
