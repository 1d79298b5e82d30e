"""Ranks of a real job: processes that run one script and meet by gloo on the loopback.

    python ranks.py RANKS SCRIPT ARGUMENT…

PyTorch takes three seconds of CPU to load: the ranks are forked from one process that has it.
"""

import gc
import importlib.util
import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path


def run_ranks(script: Path, ranks: int, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
    """Runs the script's `main` as so many ranks, and fails with what they said where one of them does."""
    from support.patience import PATIENCE_S  # the script, which runs this file, has no such package

    with closing(socket.socket()) as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    shared |= {"OMP_NUM_THREADS": "1", **(environment or {})}
    done = subprocess.run(
        [sys.executable, __file__, str(ranks), str(script), *arguments],
        env=shared,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]


def main() -> int:
    """Whether a rank has failed."""
    ranks, sys.argv = int(sys.argv[1]), sys.argv[2:]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    spec = importlib.util.spec_from_file_location("job", sys.argv[0])
    assert spec is not None
    assert spec.loader is not None
    sys.modules["job"] = job = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(job)
    gc.freeze()
    processes = []
    for rank in range(ranks):
        if process := os.fork():
            processes.append(process)
            continue
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        status = 1
        try:
            job.main()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    statuses = [os.waitpid(process, 0)[1] for process in processes]
    return int(any(statuses))


if __name__ == "__main__":
    sys.exit(main())
