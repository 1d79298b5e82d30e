"""Records `twice_the_work`: two processes of JAX on one GPU, which exchange nothing; one computes twice a step.

`python record_on_gpu.py FOLDER` writes FOLDER/hostN.xplane.pb.gz. Needs JAX with a GPU. NCCL refuses two processes on
one device, so there is no collective.
"""

import gzip
import os
import subprocess
import sys
import tempfile
from pathlib import Path

STEPS, WIDTH, BATCH, PROCESSES = 8, 1024, 512, 2


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        commands = [[sys.executable, __file__, "worker", scratch, str(number)] for number in range(PROCESSES)]
        for worker in [subprocess.Popen(command) for command in commands]:
            worker.wait()
        Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
        for number in range(PROCESSES):
            (found,) = Path(scratch, str(number)).rglob("*.xplane.pb")
            text = gzip.compress(found.read_bytes(), 9, mtime=0)
            Path(sys.argv[1], f"host{number}.xplane.pb.gz").write_bytes(text)


def worker(scratch: str, number: int) -> None:
    os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = "0.2"
    import jax
    import jax.numpy as jnp

    jax.distributed.initialize("localhost:12391", PROCESSES, number, local_device_ids=[0])

    def loss(weights, batch):  # noqa: ANN001, ANN202
        for weight in weights:
            batch = jax.nn.gelu(batch @ weight)
        return (batch**2).mean()

    @jax.jit
    def train_step(weights, batch):  # noqa: ANN001, ANN202
        value, gradients = jax.value_and_grad(loss)(weights, batch)
        return [weight - 0.01 * gradient for weight, gradient in zip(weights, gradients, strict=True)], value

    with jax.default_device(jax.local_devices()[0]):
        keys = jax.random.split(jax.random.key(number), 4)
        weights = [jax.random.normal(key, (WIDTH, WIDTH)) * 0.03 for key in keys]
        for _ in range(3):
            weights, value = train_step(weights, jnp.ones((BATCH, WIDTH)))
        value.block_until_ready()
        jax.profiler.start_trace(str(Path(scratch, str(number))))
        for step in range(STEPS):
            with jax.profiler.StepTraceAnnotation("train", step_num=step):
                for _ in range(number + 1):
                    weights, value = train_step(weights, jnp.ones((BATCH, WIDTH)))
                value.block_until_ready()
        jax.profiler.stop_trace()


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        worker(sys.argv[2], int(sys.argv[3]))
    else:
        main()
