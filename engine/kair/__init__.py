"""The application between the engine and whoever asks: a session opens a job, answers questions and keeps answers."""
