"""Whether a process may have mapped anything of note, by its shared mappings of files alone: few, where maps names hundreds.

PROCMAP_QUERY of include/uapi/linux/fs.h, since Linux 6.11. Where the kernel does not know it, or a name can't be read,
the answer is that it may, and the whole file is to be read.
"""

import errno
import os
import struct

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

SIGNS = ("/dev/nvidia", "/dev/shm/", "/dev/hugepages/", "/anon_hugepage", "/SYSV")
_QUERY = 0xC0686611  # _IOWR('f', 17, struct procmap_query)
_WANTED = 0x08 | 0x10 | 0x20  # shared · the next one too · of files
_MOST = 16
_KNOWN = [fcntl is not None]


def perhaps(path: str) -> bool:
    """Not for one with private huge pages: those are no shared mapping."""
    if not _KNOWN[0]:
        return True
    fd = os.open(path + "/maps", os.O_RDONLY | os.O_CLOEXEC)
    try:
        end = 0
        for _ in range(_MOST):
            said = bytearray(struct.pack("=QQQ80x", 104, _WANTED, end))
            try:
                fcntl.ioctl(fd, _QUERY, said, True)
            except OSError as error:
                _KNOWN[0] = error.errno != errno.ENOTTY
                return error.errno != errno.ENOENT  # that is: none any more
            start, end = struct.unpack_from("=QQ", said, 24)
            try:
                name = os.readlink("%s/map_files/%x-%x" % (path, start, end))
            except OSError:
                return True
            if name.startswith(SIGNS):
                return True
        return True
    finally:
        os.close(fd)
