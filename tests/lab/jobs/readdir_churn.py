"""readdir_churn.py A B: changes a directory by A while listing it by B, for SECONDS; every listing is judged."""

import collections
import multiprocessing
import os
import random
import sys
import time

STABLE = 2000
SECONDS = 40


def churn(directory, stop, seed):
    """Creates, renames and removes; no name is used twice, so a name seen twice is an entry listed twice."""
    order = random.Random(seed)
    alive = []
    number = 0
    while not stop.is_set():
        number += 1
        action = order.random()
        if action < 0.5 or not alive:
            name = f"{directory}/churn-{seed}-{number:06}"
            os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
            alive.append(name)
        else:
            name = alive.pop(order.randrange(len(alive)))
            if action < 0.6:
                os.rename(name, f"{directory}/moved-{seed}-{number:06}")
                alive.append(f"{directory}/moved-{seed}-{number:06}")
            else:
                os.unlink(name)
        # Stays around a few hundred, so that pages of the directory are split and merged again and again.
        while len(alive) > 400:
            os.unlink(alive.pop(0))
    print(f"  {number} changes by one process", flush=True)


def main(a, b):
    os.mkdir(f"{a}/d")
    stable = [f"stable-{i:05}" for i in range(STABLE)]
    for name in stable:
        os.close(os.open(f"{a}/d/{name}", os.O_CREAT | os.O_WRONLY))
    stop = multiprocessing.Event()
    workers = [multiprocessing.Process(target=churn, args=(f"{a}/d", stop, seed)) for seed in (1, 2)]
    for worker in workers:
        worker.start()
    wanted = set(stable)
    listings = lost = doubled = 0
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        names = os.listdir(f"{b}/d")
        listings += 1
        missing = wanted.difference(names)
        twice = [name for name, count in collections.Counter(names).items() if count > 1]
        lost += len(missing)
        doubled += len(twice)
        if (missing or twice) and lost + doubled < 50:
            print(f"  listing {listings}: lost {sorted(missing)[:5]}, doubled {sorted(twice)[:5]}", flush=True)
    stop.set()
    for worker in workers:
        worker.join()
    print(f"  {listings} listings of {STABLE} stable entries")
    for count, what in ((lost, "lost"), (doubled, "doubled")):
        print(("ok" if count == 0 else "FAILED") + f" no entry is {what} in a changing directory ({count})")
    busy = all(worker.exitcode == 0 for worker in workers) and listings >= 5
    print(("ok" if busy else "FAILED") + " listings and changes went on beside each other")
    left = sorted(name for name in os.listdir(f"{b}/d") if not name.startswith("stable-"))
    truth = sorted(name for name in os.listdir(f"{a}/d") if not name.startswith("stable-"))
    print(("ok" if left == truth else "FAILED") + " when quiet, both mounts list the same")
    sys.exit(lost + doubled != 0 or not busy or left != truth)


main(*sys.argv[1:])
