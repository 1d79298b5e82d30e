"""A data-parallel TensorFlow job, one of its processes, as `kair capture run` starts it: it knows nothing of capture.

    python captured_tensorflow.py RANK RANKS FIRST_PORT STEPS SLOW_RANK OUT [LOOP]

One rank sleeps before each step. What the process saw is left as JSON in OUT. LOOP is `distributed` (the default),
`keras` (`Model.fit`) or `eager` (nothing is compiled), the latter two of one process.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf

RANK, RANKS, PORT, STEPS, SLOW = map(int, sys.argv[1:6])
OUT, LOOP = Path(sys.argv[6]), sys.argv[7] if sys.argv[7:] else "distributed"
WIDTH, LAYERS, BATCH = 192, 3, 64


def batches() -> tf.data.Dataset:
    random = np.random.default_rng(RANK)
    values = random.normal(size=(BATCH * STEPS, WIDTH)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices(values).batch(BATCH)


def distributed() -> list[str]:
    workers = [f"127.0.0.1:{PORT + rank}" for rank in range(RANKS)]
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": RANK}})
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    random = np.random.default_rng(5)
    with strategy.scope():
        weights = [tf.Variable(random.normal(size=(WIDTH, WIDTH)).astype(np.float32) / WIDTH) for _ in range(LAYERS)]

    def step_of_replica(batch: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            value = batch
            for weight in weights:
                value = tf.tanh(value @ weight)
            loss = tf.reduce_mean(value**2)
        gradients = tape.gradient(loss, weights)
        reduced = tf.distribute.get_replica_context().all_reduce("sum", gradients)
        for weight, gradient in zip(weights, reduced, strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss

    @tf.function
    def train_step(batch: tf.Tensor) -> tf.Tensor:
        return strategy.run(step_of_replica, args=(batch,))

    return loop(train_step)


def eager() -> list[str]:
    model = tf.keras.Sequential([tf.keras.layers.Dense(WIDTH, activation="tanh") for _ in range(LAYERS)])
    optimizer = tf.keras.optimizers.SGD(0.1)

    def train_step(batch: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(batch) ** 2)
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )
        return loss

    return loop(train_step)


def keras() -> list[str]:
    tf.keras.utils.set_random_seed(5)
    model = tf.keras.Sequential([tf.keras.layers.Dense(WIDTH, activation="tanh") for _ in range(LAYERS)])
    model.compile("sgd", "mse")
    data = batches().map(lambda batch: (batch, batch))
    return [float(one).hex() for one in model.fit(data, epochs=1, verbose=0).history["loss"]]


def loop(train_step: Callable[[tf.Tensor], tf.Tensor]) -> list[str]:
    losses = []
    for step, batch in enumerate(batches()):
        if RANK == SLOW and step >= 3:
            time.sleep(0.06)
        losses.append(float(train_step(batch)).hex())
    return losses


losses = {"distributed": distributed, "keras": keras, "eager": eager}[LOOP]()
(OUT / f"rank-{RANK}.json").write_text(json.dumps({"losses": losses}))
