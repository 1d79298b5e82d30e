"""A library that is loaded before those of a test's processes alone, and that a test steers by a number."""

import os
import shutil
import struct
import subprocess
from pathlib import Path

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static volatile long long *number;

static long long number_now(void) {
    if (!number) {
        static long long none;
        const char *path = getenv("TEST_NUMBER");
        int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
        int handle = path ? real(path, O_RDONLY | O_CLOEXEC) : -1;
        void *mapped = handle < 0 ? MAP_FAILED : mmap(0, 8, PROT_READ, MAP_SHARED, handle, 0);
        if (handle >= 0) close(handle);
        number = mapped == MAP_FAILED ? &none : mapped;
    }
    return *number;
}
"""


class Preloaded:
    """Of all processes that begin with `environment`; raises OSError where no compiler is there."""

    def __init__(self, folder: Path, source: str) -> None:
        """`source` defines C's functions anew; `number_now()` in it is what the test set last, 0 at first."""
        compiler = shutil.which("cc")
        if compiler is None:
            raise FileNotFoundError("cc")
        folder.mkdir()
        (folder / "source.c").write_text(_SOURCE + source)
        library, self._file = folder / "library.so", folder / "number"
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(folder / "source.c"), "-ldl"]
        subprocess.run(command, check=True, capture_output=True)
        self._file.write_bytes(bytes(8))
        self.environment = {"LD_PRELOAD": str(library), "TEST_NUMBER": str(self._file)}

    def set(self, number: int) -> None:
        """Set the number; in one write, which no process sees half of."""
        with self._file.open("r+b") as file:
            os.pwrite(file.fileno(), struct.pack("<q", number), 0)
