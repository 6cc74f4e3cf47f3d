"""losses.py: a known tree in volumes whose stores lose segments, read back by this kernel from edges that have nothing but the store.

Two edges have a store that acknowledges one of fifty puts of segments and drops it: `confirming` is the edge as it ships, `believing` the same with its
confirmation taken out. The same is written through both, at the same time; then both machines and tables are lost and recovered from the bucket. The edge
`mirrored` has a second store, and a segment is deleted from its first by hand.
"""

import errno
import hashlib
import json
import mmap
import os
import random
import subprocess
import threading
import time

from control import Control

# Some 220 segments of 1 MiB, so four puts are dropped.
LARGE, LARGE_BYTES = 27, 8 << 20
SMALL, SMALL_BYTES = 120, 20_000
# What a dropped put may take until it is put again (docs/audits.md).
NOTICED_WITHIN_S = 300
# What may be waited for whatever the machine does.
TIMEOUT_S = 120
EDGES = dict(edge.split("=") for edge in os.environ["EDGES"].split())

control = Control()
failed = 0


def check(sentence, holds, why=""):
    global failed
    print(f"ok {sentence}" if holds else f"FAILED {sentence}: {str(why)[:1500]}", flush=True)
    failed += not holds


def admin(*words):
    return control.ask("admin " + " ".join(words)).split(": ", 1)[1]


def asks(*words):
    return json.loads(admin(*words))


def until(what, seconds=TIMEOUT_S):
    """What `what` gives once that is something true; None if it never is."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        found = what()
        if found:
            return found
        time.sleep(0.5)
    return None


def place(edge):
    return f"/mnt/{edge}"


def mount(edge):
    os.makedirs(place(edge), exist_ok=True)
    options = os.environ["MOUNT_OPTIONS"] + ",nosharecache"
    subprocess.run(["mount", "-t", "nfs", "-o", options, f"{EDGES[edge]}:/export", place(edge)], check=True)


def unmount(edge):
    subprocess.run(["umount", place(edge)], check=True)


def write(path, content):
    with open(path, "wb") as file:
        file.write(content)
        os.fsync(file.fileno())


def tree(large, small):
    """Names and contents, nothing of which can be compressed."""
    noise = random.Random(21)
    for number in range(large):
        yield f"films/{number}", noise.randbytes(LARGE_BYTES)
    for number in range(small):
        yield f"letters/{number % 7}/{number}", noise.randbytes(SMALL_BYTES)


def write_tree(edges, files):
    """Through all of them, file by file; returns the hash of each file."""
    hashes = {}
    for name, content in files:
        for edge in edges:
            os.makedirs(os.path.dirname(f"{place(edge)}/{name}"), exist_ok=True)
            write(f"{place(edge)}/{name}", content)
        hashes[name] = hashlib.sha256(content).digest()
    return hashes


def is_committed(edge):
    return asks("status", edge)["uncommitted"]["level"] == 2


def read_tree(edge, hashes):
    """(files that are as they were written, those that end with EIO, those with anything else)."""
    right, eio, other = 0, 0, []
    for name, wanted in hashes.items():
        try:
            with open(f"{place(edge)}/{name}", "rb") as file:
                found = hashlib.file_digest(file, "sha256") if hasattr(hashlib, "file_digest") else hashlib.sha256(file.read())
            if found.digest() == wanted:
                right += 1
            else:
                other.append(f"{name}: other bytes")
        except OSError as error:
            if error.errno == errno.EIO:
                eio += 1
            else:
                other.append(f"{name}: {error}")
    return right, eio, other


class Reader:
    """Reads somewhere in a tree, past this kernel's cache, until it is ended."""

    def __init__(self, edge, names):
        self.edge, self.names, self.reads, self.errors, self.ended = edge, names, 0, [], threading.Event()
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        buffer, chance = mmap.mmap(-1, 1 << 20), random.Random(5)
        while not self.ended.wait(0.1):
            name = chance.choice(self.names)
            try:
                file = os.open(f"{place(self.edge)}/{name}", os.O_RDONLY | os.O_DIRECT)
                try:
                    os.preadv(file, [buffer], chance.randrange(LARGE_BYTES // len(buffer)) * len(buffer))
                finally:
                    os.close(file)
                self.reads += 1
            except OSError as error:
                self.errors.append(f"{name}: {error}")

    def end(self):
        self.ended.set()
        self.thread.join()


def a_segment_is_deleted_by_hand(hashes):
    """Of the edge with a second store, once its own disk has no part in this: all is confirmed and copied, and its cache is emptied."""
    edge = "mirrored"

    def is_settled():
        seen = asks("status", edge)
        return is_committed(edge) and seen["commits"]["unconfirmed_segments"] == 0 and seen["second"]["state"] == "current"

    check("mirrored: everything is confirmed, and the second store has it", until(is_settled), admin("status", edge))
    unmount(edge)
    admin("empty", edge)
    # Its comparison at the start is over: what is lost now is met by a client first.
    until(lambda: (seen := asks("status", edge)["second"])["state"] == "current" and seen["compared_at_ms"])
    lost = admin("lose", edge)
    check("mirrored: a segment is deleted from the bucket by hand", admin("has", edge, lost) == "no", lost)
    mount(edge)
    right, eio, other = read_tree(edge, hashes)
    check(f"mirrored: a client with a cold edge reads all {len(hashes)} files as they were written, {eio} with EIO", right == len(hashes), other)
    answered = asks("status", edge)["second"]["reads_answered"]
    check("mirrored: what is gone was read from the second store", answered > 0, answered)
    began = time.monotonic()

    def is_repaired():
        second = asks("status", edge)["second"]
        return second["segments_read"] == 0 and second["lost_segments"] == 0 and int(admin("repaired", edge)) > 0

    check("mirrored: the edge repairs it without being asked", until(is_repaired), admin("status", edge))
    took = time.monotonic() - began
    seen = asks("verify", edge)
    check("mirrored: firn-edge verify: whole, by the first store alone", seen["status"] == 0 and seen["said"].startswith("whole: "), seen)
    check("mirrored: nothing was put under the name that was deleted", admin("has", edge, lost) == "no", lost)
    unmount(edge)
    print(f"   mirrored: 1 segment deleted by hand, {eio} EIO, {answered} objects read from the second store, repaired {took:.0f} s after the client's read", flush=True)


def commit_with_a_head_that_is_there(edge):
    """Commits until the newest put is none that was dropped: losses are of data, not of the newest root, without which nothing opens."""
    for number in range(5):
        write(f"{place(edge)}/note{number}", b"%d" % number)
        until(lambda: is_committed(edge))
        if not asks("store", edge)["newest_dropped"]:
            return True
    return False


def report(edge, store, eio, files):
    noticed = f"noticed and put again {store['soonest_s']} to {store['latest_s']} s after the put" if store["put_again"] else "none noticed"
    print(
        f"   {edge}: {store['puts']} puts of segments, {store['dropped']} segments acknowledged and dropped, {store['put_again']} put again, {noticed}; "
        f"read cold: {eio} of {files} files end with EIO",
        flush=True,
    )


def main():
    for edge in EDGES:
        mount(edge)
    began = time.monotonic()
    hashes_of_mirrored = write_tree(["mirrored"], tree(2, 20))
    hashes = write_tree(["confirming", "believing"], tree(LARGE, SMALL))
    for edge in ("confirming", "believing"):
        check(f"{edge}: everything is at level 2", commit_with_a_head_that_is_there(edge), admin("status", edge))
        store = asks("store", edge)
        check(f"{edge}: several puts were acknowledged and dropped", store["dropped"] >= 3, store)
    print(f"   {len(hashes)} files written twice and committed in {time.monotonic() - began:.0f} s", flush=True)
    reader = Reader("confirming", [name for name in hashes if name.startswith("films/")])

    a_segment_is_deleted_by_hand(hashes_of_mirrored)

    def all_are_there():
        store = asks("store", "confirming")
        return store["put_again"] == store["dropped"] and store["absent"] == 0

    check("confirming: each dropped segment is noticed and put again", until(all_are_there, NOTICED_WITHIN_S), admin("store", "confirming"))
    store, commits = asks("store", "confirming"), asks("status", "confirming")["commits"]
    check("confirming: each within five minutes of its put, and none before a minute", 55 < store["soonest_s"] and store["latest_s"] < NOTICED_WITHIN_S, store)
    check("confirming: status counts them, and nothing as lost", commits["segments_put_again"] >= store["dropped"] and commits["lost_segments"] == 0, commits)
    reader.end()
    check(f"confirming: {reader.reads} reads of a client meanwhile, past its cache, met no error", reader.reads > 20 and not reader.errors, reader.errors[:5])

    believed, commits = asks("store", "believing"), asks("status", "believing")["commits"]
    silent = believed["put_again"] == 0 and believed["absent"] == believed["dropped"] and commits["segments_put_again"] == 0 and commits["lost_segments"] == 0
    check("believing: without confirmation nothing is noticed in the same time, and nothing put again", silent, (believed, commits))

    outcome = {}
    for edge in ("confirming", "believing"):
        unmount(edge)
        admin("recover", edge)
        mount(edge)
        outcome[edge] = read_tree(edge, hashes)
    right, eio, other = outcome["confirming"]
    check("confirming: recovered from the bucket alone, a client reads everything as it was written, without an error", right == len(hashes), (eio, other))
    seen = asks("verify", "confirming")
    check("confirming: firn-edge verify: whole", seen["status"] == 0 and seen["said"].startswith("whole: "), seen)
    report("confirming", store, eio, len(hashes))
    right, eio, other = outcome["believing"]
    check("believing: what was dropped is lost, and a client's read ends with EIO", eio > 0 and not other, (right, eio, other))
    seen = asks("verify", "believing")
    # A segment may have had nodes of the tree, whose files have no path then.
    named = [line for line in seen["said"].splitlines() if line.startswith("damaged: ") and "does not exist in the store" in line]
    check("believing: firn-edge verify names what is lost", seen["status"] == 6 and named, seen)
    report("believing", believed, eio, len(hashes))
    for edge in ("confirming", "believing"):
        unmount(edge)


main()
raise SystemExit(failed != 0)
