"""A store that cannot be written, for the processes of a test alone: a library that is loaded before theirs refuses."""

import os
import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static volatile int *number;

static int error_now(void) {
    if (!number) {
        static int none;
        const char *path = getenv("TEST_ERROR");
        int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
        int handle = path ? real(path, O_RDONLY | O_CLOEXEC) : -1;
        void *mapped = handle < 0 ? MAP_FAILED : mmap(0, 4, PROT_READ, MAP_SHARED, handle, 0);
        if (handle >= 0) close(handle);
        number = mapped == MAP_FAILED ? &none : mapped;
    }
    return *number;
}

static int refuses(const char *path) {
    const char *store = getenv("TEST_STORE");
    int error = error_now();
    if (!error || !store || !path || strncmp(path, store, strlen(store))) return 0;
    errno = error;
    return 1;
}

static int refuses_handle(int handle) {
    char link[64], path[PATH_MAX];
    if (!error_now()) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return refuses(path);
}

#define WRITES (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)
#define OPEN(name)                                                                    \
    int name(const char *path, int flags, ...) {                                      \
        va_list more;                                                                 \
        va_start(more, flags);                                                        \
        mode_t mode = va_arg(more, mode_t);                                           \
        va_end(more);                                                                 \
        if ((flags & WRITES) && refuses(path)) return -1;                             \
        return ((int (*)(const char *, int, mode_t))dlsym(RTLD_NEXT, #name))(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)
#define OF_PATH(name)                                                                 \
    int name(const char *path) {                                                      \
        return refuses(path) ? -1 : ((int (*)(const char *))dlsym(RTLD_NEXT, #name))(path); \
    }
OF_PATH(unlink)
OF_PATH(rmdir)
int mkdir(const char *path, mode_t mode) {
    return refuses(path) ? -1 : ((int (*)(const char *, mode_t))dlsym(RTLD_NEXT, "mkdir"))(path, mode);
}
int rename(const char *from, const char *to) {
    if (refuses(from) || refuses(to)) return -1;
    return ((int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename"))(from, to);
}
ssize_t write(int handle, const void *from, size_t size) {
    if (refuses_handle(handle)) return -1;
    return ((ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write"))(handle, from, size);
}
#define PWRITE(name)                                                                  \
    ssize_t name(int handle, const void *from, size_t size, off_t at) {               \
        if (refuses_handle(handle)) return -1;                                        \
        return ((ssize_t (*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, #name))(handle, from, size, at); \
    }
PWRITE(pwrite)
PWRITE(pwrite64)
"""


class BrokenStore:
    """A store, as all processes see it that begin with `environment`; raises OSError where no compiler is there."""

    def __init__(self, folder: Path, store: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            raise FileNotFoundError("cc")
        folder.mkdir()
        (folder / "store.c").write_text(SOURCE)
        library, self._file = folder / "store.so", folder / "error"
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(folder / "store.c"), "-ldl"]
        subprocess.run(command, check=True, capture_output=True)
        self._file.write_bytes(bytes(4))
        self.environment = {"LD_PRELOAD": str(library), "TEST_ERROR": str(self._file), "TEST_STORE": str(store)}

    def refuse(self, error: int) -> None:
        """Refuse with an error number whatever would change the store from now on; 0: take it again."""
        with self._file.open("r+b") as file:
            os.pwrite(file.fileno(), struct.pack("<i", error), 0)
