"""until_written.py DIRECTORY|DEVICE taken|refused: writes there four times a second, and makes it durable, until that is answered as wanted.

On a file system a refusal must be EDQUOT. A device's client turns every error of its server into EIO, but what it refuses can be read still.
Prints how long it took.
"""

import errno
import mmap
import os
import stat
import sys
import time

LIMIT_S = 240
BLOCK_BYTES = 4096


def write_file(directory):
    descriptor = os.open(os.path.join(directory, "probe"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, b"one more\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_device(path):
    """The first block, with what it has, past the page cache."""
    block = mmap.mmap(-1, BLOCK_BYTES)
    descriptor = os.open(path, os.O_RDWR | os.O_DIRECT)
    try:
        if os.preadv(descriptor, [block], 0) != BLOCK_BYTES:
            sys.exit(f"{path} is not read whole")
        os.pwritev(descriptor, [block], 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def main():
    place, wanted = sys.argv[1:]
    device = stat.S_ISBLK(os.stat(place).st_mode)
    write, refusals = (write_device, (errno.EIO, errno.ENOSPC)) if device else (write_file, (errno.EDQUOT,))
    began = time.monotonic()
    while True:
        try:
            write(place)
            answer = "taken"
        except OSError as error:
            if error.errno not in refusals:
                raise
            answer = "refused"
        took = time.monotonic() - began
        if answer == wanted:
            print(f"{took:.1f} s")
            return
        if took > LIMIT_S:
            sys.exit(f"still {answer} after {took:.0f} s")
        time.sleep(0.25)


main()
