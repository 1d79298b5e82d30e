"""Steps of a training job whose operators are profiled: when, at what cost, and where they are kept."""
