"""Reads XLA's profiles (`.xplane.pb`) as JAX and TensorFlow write them: a file per host, a plane per device."""
