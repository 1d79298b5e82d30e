"""A store that cannot be written, for the processes of a test alone: a library that is loaded before theirs refuses."""

from pathlib import Path

from support.preloaded import Preloaded

_SOURCE = r"""
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static int refuses(const char *path) {
    const char *store = getenv("TEST_STORE");
    long long error = number_now();
    if (!error || !store || !path || strncmp(path, store, strlen(store))) return 0;
    errno = error;
    return 1;
}

static int refuses_handle(int handle) {
    char link[64], path[PATH_MAX];
    if (!number_now()) return 0;
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


class BrokenStore(Preloaded):
    """A store, which refuses whatever would change it with the error number that is set; with 0 it takes it again."""

    def __init__(self, folder: Path, store: Path) -> None:
        super().__init__(folder, _SOURCE)
        self.environment["TEST_STORE"] = str(store)
