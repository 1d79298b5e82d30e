"""Where a loader's data may come from slowly: a file system in user space, or a server that answers over TCP.

    python validation/evidence/slow_sources.py files FOLDER MOUNT DELAY
    python validation/evidence/slow_sources.py service PORT_FILE DELAY

The file DELAY says how long each read of a file takes, in seconds, or `RANK SECONDS`: for how long that rank's requests
to the server wait. It is read again for each of them. The file system shows the files of FOLDER, not those of folders
below it, and speaks the kernel's protocol itself; it ends when it is unmounted.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socketserver
import struct
import sys
import time
from pathlib import Path

_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _STATFS, _RELEASE, _FLUSH, _INIT = 1, 2, 3, 14, 15, 17, 18, 25, 26
_OPENDIR, _RELEASEDIR, _INTERRUPT, _BATCH_FORGET = 27, 29, 36, 42
"""Requests of the kernel (linux/fuse.h)."""
_HEADER = struct.Struct("<IIQQIIII")
"""Length, request, its number, inode, user, group, process, padding."""
_DIRECT_IO = 1
"""Each read of the file is a request: the kernel keeps nothing of it."""
_OPENED = struct.pack("<QII", 0, _DIRECT_IO, 0)
_ALIKE = {
    _OPEN: _OPENED,
    _OPENDIR: _OPENED,
    _STATFS: struct.pack("<QQQQQIIII24x", 0, 0, 0, 0, 0, 4096, 255, 4096, 0),
    _RELEASE: b"",
    _FLUSH: b"",
    _RELEASEDIR: b"",
}
"""Answers that are the same whatever is asked."""
_MOST_READ = 1 << 17
_UNMOUNT_LATER = 2
BYTES_OF_REQUEST = 4
BYTES_OF_ANSWER = 1 << 14


def mount(at: Path) -> int:
    """Mounts a file system in user space, and returns the descriptor that the kernel asks it by. Raises OSError."""
    descriptor = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={descriptor},rootmode=40000,user_id=0,group_id=0,allow_other"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"slowfs", os.fsencode(at), b"fuse.slowfs", 0, options.encode()):
        raise OSError(ctypes.get_errno(), f"cannot mount at {at}: {os.strerror(ctypes.get_errno())}")
    return descriptor


def unmount(at: Path) -> None:
    """The other end of it; who still reads from it gets an error."""
    ctypes.CDLL(None, use_errno=True).umount2(os.fsencode(at), _UNMOUNT_LATER)


class SlowFiles:
    """Shows the files of one folder."""

    def __init__(self, folder: Path, delay: Path) -> None:
        self._delay = delay
        self._paths = sorted(path for path in folder.iterdir() if path.is_file())
        self._open = [os.open(path, os.O_RDONLY) for path in self._paths]

    def serve(self, descriptor: int) -> None:
        """Until it is unmounted."""
        while True:
            try:
                request = os.read(descriptor, _MOST_READ + 4096)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
                if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                    continue
                raise
            _, kind, number, inode, *_ = _HEADER.unpack_from(request)
            if kind in (_FORGET, _BATCH_FORGET, _INTERRUPT):
                continue
            try:
                answer, failed = self._answer(kind, inode, request[_HEADER.size :]), 0
            except OSError as error:
                answer, failed = b"", error.errno or errno.EIO
            head = struct.pack("<IiQ", 16 + len(answer), -failed, number)
            try:
                os.write(descriptor, head + answer)
            except OSError as error:
                if error.errno != errno.ENOENT:  # whoever asked was stopped meanwhile
                    raise

    def _answer(self, kind: int, inode: int, rest: bytes) -> bytes:
        if kind == _INIT:
            # Version 7.31; no flags.
            return struct.pack("<IIIIHHIIHHI28x", 7, 31, _MOST_READ, 0, 12, 9, _MOST_READ, 1, 0, 0, 0)
        if kind == _LOOKUP:
            name = rest.rstrip(b"\0").decode(errors="replace")
            found = next((at for at, path in enumerate(self._paths) if path.name == name), None)
            if found is None:
                raise OSError(errno.ENOENT, name)
            return struct.pack("<QQQQII", found + 2, 0, 3600, 3600, 0, 0) + self._attributes(found + 2)
        if kind == _GETATTR:
            return struct.pack("<QII", 3600, 0, 0) + self._attributes(inode)
        if kind == _READ:
            _, offset, size = struct.unpack_from("<QQI", rest)
            time.sleep(float(self._delay.read_text(encoding="ascii")))
            return os.pread(self._open[inode - 2], size, offset)
        if kind in _ALIKE:
            return _ALIKE[kind]
        raise OSError(errno.ENOSYS, "not needed here")

    def _attributes(self, inode: int) -> bytes:
        is_folder = inode == 1
        size = 0 if is_folder else os.fstat(self._open[inode - 2]).st_size
        mode = 0o40555 if is_folder else 0o100444
        blocks = -(-size // 512)
        return struct.pack("<QQQQQQIIIIIIIIII", inode, size, blocks, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


class SlowAnswer(socketserver.BaseRequestHandler):
    """Of one connection."""

    delay = Path()

    def handle(self) -> None:
        """A request is a rank's number; the answer is as long as always."""
        while len(request := self.request.recv(BYTES_OF_REQUEST)) == BYTES_OF_REQUEST:
            words = self.delay.read_text(encoding="ascii").split()
            if len(words) == 2 and int(words[0]) == int.from_bytes(request, "little"):
                time.sleep(float(words[1]))
            self.request.sendall(bytes(BYTES_OF_ANSWER))


def main() -> int:
    """Serves; 0 once the file system is unmounted."""
    kind, *words = sys.argv[1:]
    if kind == "files":
        folder, at, delay = map(Path, words)
        files = SlowFiles(folder, delay)
        files.serve(mount(at))
        return 0
    port_file, SlowAnswer.delay = map(Path, words)
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), SlowAnswer) as server:
        unfinished = port_file.with_suffix(".new")
        unfinished.write_text(str(server.server_address[1]), encoding="ascii")
        unfinished.rename(port_file)
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
