"""lock_survives.py A B: one file by two mounts; a process holds a lock by A, another waits by B, the server dies.

The kernel of the client takes part as in life: its statd hears SM_NOTIFY, lockd reclaims the held lock within the
grace period, and the waiting request is sent again.
"""

import errno
import fcntl
import multiprocessing
import os
import sys
import time

from control import Control

# Grace periods are at most 90 s in practice; a client asks again for a lock it waits for every 30 s.
PATIENCE_S = 150
failures = 0


def verdict(good, sentence):
    global failures
    print(("ok " if good else "FAILED ") + sentence, flush=True)
    failures += not good


def try_lock(path, start, length):
    """True if it could be locked (and is released again), False if somebody else holds it."""
    with open(path, "r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, length, start)
            fcntl.lockf(file, fcntl.LOCK_UN, length, start)
            return True
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise


def wait_for_lock(path, granted):
    with open(path, "r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 100, 0)
        granted.set()
        time.sleep(1)


def probe(path, start, length):
    """try_lock in another process: fcntl locks of one process never conflict with each other."""
    with multiprocessing.Pool(1) as pool:
        return pool.apply(try_lock, (path, start, length))


def main(a, b):
    control = Control()
    holder = open(a, "w+b")
    holder.write(b"x" * 300)
    holder.flush()
    os.fsync(holder.fileno())
    fcntl.lockf(holder, fcntl.LOCK_EX, 100, 0)
    fcntl.lockf(holder, fcntl.LOCK_SH, 100, 200)
    verdict(not probe(b, 0, 100), "a lock taken by one mount is seen by the other")
    verdict(probe(b, 100, 100), "bytes beside it are free")

    granted = multiprocessing.Event()
    waiter = multiprocessing.Process(target=wait_for_lock, args=(b, granted))
    waiter.start()
    verdict(not granted.wait(3), "a blocking request waits")

    print("restart:", control.ask("kill"), flush=True)
    started = time.monotonic()
    # Until the client has reclaimed, only the grace period protects the lock: nobody else may get it now.
    verdict(not probe(b, 0, 100), "in the grace period nobody takes the held lock")
    # This one is new and in nobody's way: it has to wait for the end of the grace period, and no longer.
    free = False
    while not free and time.monotonic() - started < PATIENCE_S:
        free = probe(b, 100, 100)
        free or time.sleep(0.5)
    verdict(free, f"free bytes can be locked again after {time.monotonic() - started:.1f} s")
    verdict(not probe(b, 0, 100), "after the grace period the lock is still held")
    verdict(not probe(b, 200, 100), "so is the shared one")
    verdict(not granted.wait(3), "the waiting request still waits")

    os.write(holder.fileno(), b"y")
    os.fsync(holder.fileno())
    fcntl.lockf(holder, fcntl.LOCK_UN, 100, 0)
    released = time.monotonic()
    verdict(granted.wait(PATIENCE_S), f"released, it goes to the waiter, after {time.monotonic() - released:.1f} s")
    waiter.join(10)
    verdict(probe(b, 0, 100), "and is free when the waiter ends")
    waiter.is_alive() and waiter.kill()
    sys.exit(failures != 0)


main(*sys.argv[1:])
