"""Steps of a recording: where they are, and what each consists of."""
