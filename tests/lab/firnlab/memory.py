"""Memory of a virtual machine whose host gives it page by page, when it is touched.

The first touch of such a page costs many times what filling it does, and what is freed goes back to the host. A server that has been up for a week meets
none of it: the page cache has taken all memory, and new pages are old ones that the kernel takes from there.

As a program, `memory.py DIRECTORY`: what the caches hold of the files there is given up, and of nothing else.
"""

import os
import sys

# Beyond what is free, so that the kernel begins to take pages back.
MORE_BYTES = 256 << 20
# No program's file has as much; of holes, it takes no place on the disk.
FILE_BYTES = 1 << 40


class TouchedMemory:
    """Fills what is free with page cache, of a file in `directory` that is all hole."""

    def __init__(self, directory):
        self.path = os.path.join(directory, "memory")
        self.file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.ftruncate(self.file, FILE_BYTES)
        self.at = 0

    def touch(self):
        """Touches what is free now; returns how many bytes that were."""
        buffer = bytearray(1 << 20)
        bytes_free = free_bytes() + MORE_BYTES
        for _ in range(bytes_free // len(buffer)):
            self.at = (self.at + os.preadv(self.file, [buffer], self.at)) % FILE_BYTES
        return bytes_free

    def close(self):
        os.close(self.file)
        os.unlink(self.path)


def free_bytes():
    with open("/proc/meminfo") as lines:
        for line in lines:
            if line.startswith("MemFree:"):
                return int(line.split()[1]) << 10
    raise OSError("/proc/meminfo does not say what is free")


def evict(directory):
    os.sync()
    for place, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(place, name)
            if not os.path.islink(path):
                file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(file)
    try:
        with open("/proc/sys/vm/drop_caches", "w") as caches:
            caches.write("2")  # names and inodes; 1 would be the pages of all files, of which the host takes back the memory
    except OSError:
        pass


if __name__ == "__main__":
    evict(sys.argv[1])
