"""XLA's profiles (`.xplane.pb`), as JAX and TensorFlow write them: a file a host, a plane a device."""
