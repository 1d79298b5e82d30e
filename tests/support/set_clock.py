"""A clock that is set, for the processes of a test alone: a library that is loaded before theirs adds to its time."""

from pathlib import Path

from support.preloaded import Preloaded

_SOURCE = """
#include <errno.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, at);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += number_now();
    return failed;
}

int gettimeofday(struct timeval *at, void *zone) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    at->tv_sec = precise.tv_sec;
    at->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (at) *at = precise.tv_sec;
    return precise.tv_sec;
}

/* The kernel's stamps are of its own clock: there are none. */
int setsockopt(int socket, int level, int option, const void *value, socklen_t length) {
    static int (*real)(int, int, int, const void *, socklen_t);
    if (!real) real = dlsym(RTLD_NEXT, "setsockopt");
    if (level == SOL_SOCKET && option == SO_TIMESTAMPNS) {
        errno = ENOPROTOOPT;
        return -1;
    }
    return real(socket, level, option, value, length);
}
"""


class SetClock(Preloaded):
    """A clock, which is ahead of the real time by the seconds that are set."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, _SOURCE)
