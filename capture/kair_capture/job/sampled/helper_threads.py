"""How long the threads that help the training thread computed: those of parallel operations (OpenMP's), say."""

from time import process_time_ns, thread_time_ns

from kair_capture.job.sampled.communication_threads import CommunicationThreads


class HelperThreads:
    """All of this process but the one that asks, and those that communicate: one look however many they are."""

    def __init__(self, communicating: CommunicationThreads) -> None:
        self._communicating = communicating
        self._begin = 0

    def begin(self) -> None:
        """What they computed so far is no step's."""
        self._begin = self._so_far()

    def cpu_ns(self) -> int:
        """What they computed since `begin`."""
        return max(self._so_far() - self._begin, 0)

    def _so_far(self) -> int:
        return process_time_ns() - thread_time_ns() - self._communicating.cpu_ns()
