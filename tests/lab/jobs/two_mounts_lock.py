"""two_mounts_lock.py PATH PATH: byte-range locks of two processes that see one file by two mounts exclude each other, and end with whoever holds them."""

import fcntl
import os
import signal
import sys

first, second = (os.open(path, os.O_RDWR | os.O_CREAT) for path in sys.argv[1:])
os.ftruncate(first, 1000)


def taken(start, length, how):
    """Whether another process is refused the lock through the second mount."""
    child = os.fork()
    if child == 0:
        try:
            fcntl.lockf(second, how | fcntl.LOCK_NB, length, start)
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def holder(how):
    """A process that holds a lock through the first mount until it is killed."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        fcntl.lockf(first, how, 100, 100)
        os.write(writer, b"x")
        while True:
            signal.pause()
    os.read(reader, 1)
    return child


for how, shared_is_taken in ((fcntl.LOCK_EX, True), (fcntl.LOCK_SH, False)):
    process = holder(how)
    assert taken(150, 10, fcntl.LOCK_EX), "a lock that overlaps"
    assert taken(150, 10, fcntl.LOCK_SH) == shared_is_taken, "a shared lock that overlaps"
    assert not taken(300, 10, fcntl.LOCK_EX), "another range"
    os.kill(process, 9)
    os.waitpid(process, 0)
    assert not taken(150, 10, fcntl.LOCK_EX), "its holder is dead"
print("locks exclude each other")
