"""A clock that is set, for the processes of a test alone: a library that is loaded before theirs adds to its time."""

import os
import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long *seconds;

static long long ahead(void) {
    if (!seconds) {
        static long long none;
        const char *path = getenv("TEST_CLOCK");
        int handle = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        void *mapped = handle < 0 ? MAP_FAILED : mmap(0, 8, PROT_READ, MAP_SHARED, handle, 0);
        if (handle >= 0) close(handle);
        seconds = mapped == MAP_FAILED ? &none : mapped;
    }
    return *seconds;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, at);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += ahead();
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


class SetClock:
    """The clock of all processes that begin with `environment`; raises OSError where no compiler is there."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            raise FileNotFoundError("cc")
        folder.mkdir()
        (folder / "clock.c").write_text(SOURCE)
        library, self._file = folder / "clock.so", folder / "seconds"
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(folder / "clock.c"), "-ldl"]
        subprocess.run(command, check=True, capture_output=True)
        self._file.write_bytes(bytes(8))
        self.environment = {"LD_PRELOAD": str(library), "TEST_CLOCK": str(self._file)}

    def set(self, seconds: int) -> None:
        """Be so far ahead of the real time from now on; in one write, which no process sees half of."""
        with self._file.open("r+b") as file:
            os.pwrite(file.fileno(), struct.pack("<q", seconds), 0)
