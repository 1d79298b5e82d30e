"""Window files, as capture leaves them, give the verdict of the recording that they are made of."""

import gzip
import json
from pathlib import Path

from support.answers import recorded, shared_cache, triaged
from support.places import SAMPLES

from kair_capture.job.files import add_to_json
from kair_engine.recording.opening import open_trace
from kair_engine.triage.analysis import triage

SAMPLE = SAMPLES / "slow_operator"


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
