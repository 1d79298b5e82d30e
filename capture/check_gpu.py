"""Checks capture on a machine with an NVIDIA GPU, which the tests of this repository do without.

    python capture/check_gpu.py            # PyTorch's profiler in sampled steps, then CUPTI by itself

Every check prints one line; the exit status is 1 where one failed, 2 where there is no GPU.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

STEPS = 12
KERNELS = 20


def main() -> int:
    """Each way in a process of its own, as CUPTI has one owner in each."""
    if len(sys.argv) == 3:
        {"torch": by_torch, "cupti": by_cupti}[sys.argv[1]](Path(sys.argv[2]))
        return 0
    if not has_gpu():
        print("there is no GPU that PyTorch can use here")
        return 2
    failed = 0
    for way, check in (("torch", check_torch), ("cupti", check_cupti)):
        with tempfile.TemporaryDirectory() as folder:
            own = os.environ | {"KAIR_RUN_DIR": f"{folder}/run", "KAIR_SAMPLE_EVERY": "5", "KINETO_LOG_LEVEL": "6"}
            own["KAIR_MAX_OVERHEAD"] = "100%"
            done = subprocess.run([sys.executable, __file__, way, folder], env=own, check=False)
            failed += told(f"{way}: the job ends well", done.returncode == 0)
            if done.returncode == 0:
                failed += check(Path(folder))
    return int(failed > 0)


def has_gpu() -> bool:
    """Asked in a process of its own: who asks opens the driver."""
    ask = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", ask], check=False).returncode == 0


def told(what: str, holds: bool) -> int:
    """Prints one check; 1 where it failed."""
    print(f"{'ok    ' if holds else 'FAILED'} {what}")
    return int(not holds)


def by_torch(_: Path) -> None:
    """A training loop on the GPU that says nothing about capture but that it starts."""
    import torch

    import kair_capture as kair

    kair.start(job="check")
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(4))).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _step in range(STEPS):
        loss = model(torch.randn(256, 1024, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
    kair.stop()


def check_torch(folder: Path) -> int:
    """Kernels of the sampled step, inside it."""
    windows = folder / "run" / "windows"
    found = {path.name for path in windows.glob("*.json")}
    failed = told("torch: steps 5 and 10 are sampled", found == {window_name(5), window_name(10)})
    for step in (5, 10):
        document = json.loads((windows / window_name(step)).read_text())
        failed += check_window("torch", document, least=10)
        steps = document["kair"]["steps"]
        failed += told(f"torch: the file names its step, {step}", [number for number, *_ in steps] == [step])
    return failed


def by_cupti(folder: Path) -> None:
    """Kernels counted by hand, with CUPTI as the only profiler; PyTorch only launches them."""
    import torch

    from kair_capture.cupti import CuptiProfile, load_cupti

    values = torch.ones(1 << 22, device="cuda")
    torch.cuda.synchronize()
    profile = CuptiProfile(load_cupti())
    profile.begin_step(5)
    begin = time.time_ns()
    with profile.scope("forward"):
        for _ in range(KERNELS):
            values.mul_(1.0)
    values.cpu()
    torch.cuda.synchronize()
    end = time.time_ns()
    profile.end_step()
    profile.stop()
    (folder / "run" / "windows").mkdir(parents=True)
    details = {"rank": 0, "steps": [[5, 0, begin, end - begin]]}
    profile.save(folder / "run" / "windows" / "rank-0-5-5.json", details)


def check_cupti(folder: Path) -> int:
    """The kernels that were launched, their stage, their copy, and their times within the step."""
    document = json.loads((folder / "run" / "windows" / "rank-0-5-5.json").read_text())
    events = document["traceEvents"]
    kernels = [event for event in events if event["cat"] == "kernel"]
    staged = [event for event in kernels if event["args"].get("stage") == "forward"]
    failed = check_window("cupti", document, least=KERNELS)
    failed += told(f"cupti: {KERNELS} kernels are of the stage they were launched in", len(staged) == KERNELS)
    failed += told("cupti: the copy is there", any(event["cat"] == "gpu_memcpy" for event in events))
    failed += told("cupti: nothing was dropped", document["kair"]["cupti"]["dropped"] == 0)
    return failed


def check_window(way: str, document: dict[str, Any], least: int) -> int:
    """Kernels, each with its launch before it, all within the step's time to 0.1 ms."""
    events, base = document["traceEvents"], document["baseTimeNanoseconds"]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    launches = {
        event["args"]["correlation"]: event["ts"]
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})
    }
    _, _, unix, length = document["kair"]["steps"][0]
    begin, end = (unix - base) / 1000 - 100, (unix + length - base) / 1000 + 100
    launched = [launches.get(event["args"]["correlation"]) for event in kernels]
    failed = told(f"{way}: {len(kernels)} kernels, at least {least}", len(kernels) >= least)
    failed += told(f"{way}: every kernel has its launch", None not in launched)
    paired = zip(kernels, launched, strict=True)
    failed += told(f"{way}: no kernel begins before its launch", all((at or 0) <= one["ts"] for one, at in paired))
    failed += told(
        f"{way}: kernels lie within the step",
        all(begin <= one["ts"] and one["ts"] + one["dur"] <= end for one in kernels),
    )
    return failed


def window_name(step: int) -> str:
    """The file of a window of one step."""
    return f"rank-0-{step}-{step}.json"


if __name__ == "__main__":
    sys.exit(main())
