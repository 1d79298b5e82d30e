"""Window files, as capture leaves them, give the verdict of the recording that they are made of."""

import gzip
import json
from pathlib import Path

import pytest
from support.answers import recorded, shared_cache, triaged
from support.captured import window_of
from support.places import SAMPLES

from kair_capture.agent.spool import Spool
from kair_capture.agent.windows import HostOfWindow, convert, window_files
from kair_capture.coordinator.committing import Committer
from kair_capture.files import add_to_json
from kair_capture.places import JobPlaces
from kair_engine.recording.job_file import open_job_folder
from kair_engine.recording.opening import open_trace
from kair_engine.trace.model import ProcessorLimits, SentToHost
from kair_engine.triage.analysis import triage

SAMPLE = SAMPLES / "slow_operator"
SENT = (
    [[5, "10.0.0.1", "10.0.0.2", 100, 8, 0], [7, "10.0.0.1", "10.0.0.2", 200, 10, 1]],
    [[9, "10.0.0.1", "10.0.0.2", 400, 7, 0, 250, 90, 8000]],
)


@pytest.mark.slow
def test_a_folder_of_windows_gives_the_verdict_of_the_recording(tmp_path: Path) -> None:
    for source in SAMPLE.glob("*.json.gz"):
        text = gzip.decompress(source.read_bytes())
        rank = json.loads(text)["distributedInfo"]["rank"]
        steps = [[step, 10**9 * step, 10**18 + 10**9 * step, 10**8] for step in recorded(SAMPLE).steps]
        window = tmp_path / f"rank-{rank}-{steps[0][0]}-{steps[-1][0]}.json"
        window.write_bytes(text)
        add_to_json(window, "kair", {"rank": rank, "steps": steps, "collectives": [{"collective_seq_id": 1}]})
    trace = open_trace(tmp_path, cache=shared_cache())
    assert trace.steps == recorded(SAMPLE).steps
    assert trace.job.ranks == recorded(SAMPLE).job.ranks
    result, expected = triage(trace), triaged(SAMPLE)
    assert result.verdict == expected.verdict == "straggler"
    assert result == expected


def test_what_was_measured_of_sampled_steps_is_in_the_store(tmp_path: Path) -> None:
    """Rank 1's process asked nobody; and a fragment from before that was known is read as it was."""
    places = JobPlaces(tmp_path / "store", "job7")
    for number, first in enumerate((5, 9)):
        work = tmp_path / f"work{number}"
        spool = Spool(tmp_path / f"spool{number}", 1 << 30, places.delivered, "node-1")
        work.mkdir()
        window_of(work, range(2), first=first)
        if first == 5:
            told = [[step, 1000 * step, 0, None, 70, 3, 900] for step in range(5, 9)]
            limits = {"nice": 10, "cpus": [0, 1], "quota": None}
            add_to_json(
                work / "rank-0-5-8.json",
                "kair",
                {"processor": told, "limits": limits, "given": [[5, 4096], [6, None], 7], "sent": SENT[0]},
            )
        else:
            add_to_json(work / "rank-0-9-12.json", "kair", {"sent": SENT[1]})
        (made,), _ = convert(window_files(work), work, HostOfWindow("node-1", 2, None, 0))
        spool.put(made.path, made.first, made.last, b"key")
        spool.deliver_waiting()
    committer = Committer(places, b"key")
    committer.round()
    for compact in (False, True):
        assert not compact or committer.compact(2)
        job = open_job_folder(places.folder).job
        assert job.limits == {0: ProcessorLimits(10, (0, 1))}
        assert job.sent == {
            0: (
                SentToHost("10.0.0.1", "10.0.0.2", 2, 150, 10, 0.5),
                SentToHost("10.0.0.1", "10.0.0.2", 1, 400, 7, 0, 250_000, 90_000, 8_000_000),
            )
        }
        times = job.step_times
        rows = {row[:2]: row[5:12] for row in times.rows()}
        untold = (-1,) * 7
        assert rows == {
            (rank, step): (1000 * step, 0, -1, 70, 3, 4096 if step == 5 else -1, 900)
            if (rank, step) in {(0, one) for one in range(5, 9)}
            else untold
            for rank in range(2)
            for step in range(5, 13)
        }
        assert times.throttled == ()
