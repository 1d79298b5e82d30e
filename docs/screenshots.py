"""Writes the pictures of docs/tui.md: the program's own SVG export of real sessions about the sample recordings.

    python docs/screenshots.py [NAME ...]

The same recordings and the same Kair give the same files: jobs are named by their path in the checkout, sizes are
fixed, and nothing on these screens is a time of day or a path of this machine.
"""

import asyncio
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

OUT = Path(__file__).parent / "screens"
TURNS = 3000


@dataclass(frozen=True)
class Picture:
    """A session that ends with a picture. Each key is pressed once what came before is answered."""

    name: str
    job: str
    keys: tuple[str, ...] = ()
    size: tuple[int, int] = (110, 32)
    light: bool = False


PICTURES = (
    Picture("overview", "slow_operator"),
    Picture("pipeline", "pipeline_slow_operator", ("v",), light=True),
    Picture("rank", "slow_operator", ("enter",)),
    Picture("blame", "two_hosts_slow_input", ("3", "tab", "down")),
    Picture("rank_by_rank", "pipeline_slow_operator", ("3", "v")),
    Picture("frequency", "intermittent_stall", ("F",)),
    Picture("operators", "slow_operator", ("6", "down", "down", "down")),
    Picture("collectives", "two_hosts_healthy", ("7",)),
    Picture("timeline", "slow_operator", ("4",)),
    Picture("whatif", "pipeline_slow_operator", ("5", "space"), (130, 36)),
    Picture("matrix", "two_hosts_slow_input", ("D",)),
    Picture("export", "slow_operator", ("enter", "e"), (110, 20)),
)


async def taken(picture: Picture) -> str:
    """The picture as SVG."""
    from textual.pilot import Pilot

    from kair_tui.cli.wanted import JobWanted
    from kair_tui.render.terminal import Look
    from kair_tui.tui.frame.app import KairApp
    from kair_tui.tui.frame.view import ViewScreen

    app = KairApp(JobWanted(f"sample_traces/{picture.job}"), Look(light=picture.light))

    async def answered(pilot: Pilot[int]) -> None:
        for _ in range(TURNS):
            await pilot.pause(0.02)
            screen = app.screen
            open_questions = isinstance(screen, ViewScreen) and (screen.waiting or not screen.shown)
            if app.session is not None and not open_questions:
                await pilot.pause()
                return
        raise SystemExit(f"{picture.name}: not answered")

    async with app.run_test(size=picture.size) as pilot:
        await answered(pilot)
        for key in picture.keys:
            await pilot.press(key)
            await answered(pilot)
        return app.export_screenshot(title=f"kair-tui sample_traces/{picture.job}", simplify=True)


def main() -> None:
    """Takes the pictures that are named, or all."""
    os.chdir(Path(__file__).parents[1])
    OUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update({"KAIR_CACHE": folder, "KAIR_STORE": f"{folder}/store", "XDG_DATA_HOME": folder})
        os.environ.update({"TEXTUAL_ANIMATIONS": "none", "TEXTUAL_COLOR_SYSTEM": "truecolor"})
        for picture in PICTURES:
            if not sys.argv[1:] or picture.name in sys.argv[1:]:
                file = OUT / f"{picture.name}.svg"
                file.write_text(asyncio.run(taken(picture)), encoding="utf-8")
                print(f"{file.relative_to(Path.cwd())}  {file.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
