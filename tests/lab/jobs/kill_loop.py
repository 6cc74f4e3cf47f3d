"""kill_loop.py A B: writers by mount A, kills by the control line, verification by mount B.

Writers note each operation that the client acknowledged (fsync, rename, unlink, … returned), here and in a log on the
host. After each kill the server is restarted, writers finish what they have in flight and pause, and mount B, which
caches neither names nor attributes and reads around the page cache, must show exactly what was noted: no record less,
no removed name more. What a client still holds in memory it sends again, as NFS wants; what it let go after COMMIT is
on nobody but the server. Beside the kills there are clean stops in the middle of the load, after which the same must hold.
"""

import errno
import hashlib
import mmap
import multiprocessing
import os
import random
import sys
import time

from control import Control

KILLS = int(os.environ.get("KILLS", "100"))
SEED = int(os.environ.get("SEED", "1"))
# Clean stops for each kill.
STOPS = float(os.environ.get("STOPS", "0.25"))
# A server without a lasting duplicate request cache answers a repeated RENAME or REMOVE with an error, though it was
# done. Ours keeps one, so a client never sees that; a peer may.
FORGETS_REPLIES = os.environ.get("FORGETS_REPLIES") == "1"
# After a broken connection the client waits before it tries again: 3 s at first. The rest is recovery and load.
RECOVERY_S = 120

SLOTS, SLOT_BYTES = 128, 4096

# Between two steps of a writer. Five writers that never rest would spend the guest's one processor on notes and leave
# none for what is to be shown; some are always in a call when the server dies.
PAUSE_S = 0.003


def content(key, length):
    """Bytes that belong to one operation only, so that any mix-up shows."""
    return hashlib.shake_128(key.encode()).digest(length)


class Writer(multiprocessing.Process):
    """Calls step() again and again, except while paused; notes go to the verifier in order."""

    def __init__(self, name, directory):
        super().__init__(daemon=True)
        self.label, self.directory = name, directory
        self.order = random.Random(f"{SEED}-{name}")
        self.go, self.parked, self.ended = (multiprocessing.Event() for _ in range(3))
        self.notes, self.send_notes = multiprocessing.Pipe(False)
        self.go.set()

    def run(self):
        number = 0
        try:
            while not self.ended.is_set():
                if not self.go.is_set():
                    self.parked.set()
                    self.go.wait()
                    self.parked.clear()
                number += 1
                self.step(number)
                time.sleep(PAUSE_S)
        except Exception as error:  # reported by the verifier, which sees that nobody is left
            self.note("error", f"{type(error).__name__}: {error}")
            raise

    def note(self, *what):
        self.send_notes.send(what)

    def path(self, name):
        return f"{self.directory}/{self.label}-{name}"

    def repeated(self, call, tolerated):
        """A call whose reply may be lost with the server and whose repetition then fails."""
        try:
            call()
        except OSError as error:
            if not (FORGETS_REPLIES and error.errno == tolerated):
                raise


class Appender(Writer):
    """Records of 100 bytes to 300 KiB, one fsync each; big ones are many UNSTABLE writes under one COMMIT."""

    def step(self, number):
        if number % 200 == 1:
            self.name_now, self.offset = f"log-{number:06}", 0
            self.file = os.open(self.path(self.name_now), os.O_CREAT | os.O_WRONLY)
        length = self.order.choice((100, 4096, 5000, 40_000, 300_000))
        key = f"{self.label} {number}"
        os.pwrite(self.file, content(key, length), self.offset)
        os.fsync(self.file)
        self.note("record", self.name_now, self.offset, length, key)
        self.offset += length


class Overwriter(Writer):
    """4 KiB blocks of one file written over in random order: the newest version counts, never an older one."""

    def step(self, number):
        if number == 1:
            self.file = os.open(self.path("slots"), os.O_CREAT | os.O_WRONLY)
        slot = self.order.randrange(SLOTS)
        key = f"{self.label} {number}"
        os.pwrite(self.file, content(key, SLOT_BYTES), slot * SLOT_BYTES)
        os.fsync(self.file)
        self.note("slot", slot, key)


class Renamer(Writer):
    """Create, rename, link, truncate, remove: metadata is stable when the call returns, without any fsync."""

    def step(self, number):
        name, final = self.path(f"new-{number:06}"), self.path(f"file-{number:06}")
        key = f"{self.label} {number}"
        file = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        os.write(file, content(key, 2000))
        os.fsync(file)
        os.close(file)
        self.note("exists", f"new-{number:06}", key, 2000)
        self.repeated(lambda: os.rename(name, final), errno.ENOENT)
        self.note("gone", f"new-{number:06}")
        self.note("exists", f"file-{number:06}", key, 2000)
        if number % 3 == 0:
            self.repeated(lambda: os.link(final, self.path(f"link-{number:06}")), errno.EEXIST)
            self.note("exists", f"link-{number:06}", key, 2000)
        if number % 5 == 0:
            os.truncate(final, 700)
            self.note("exists", f"file-{number:06}", key, 700)
            if number % 3 == 0:
                self.note("exists", f"link-{number:06}", key, 700)
        if number > 20 and (number - 20) % 3 == 0:
            self.repeated(lambda: os.unlink(self.path(f"link-{number - 20:06}")), errno.ENOENT)
            self.note("gone", f"link-{number - 20:06}")
        if number > 20:
            self.repeated(lambda: os.unlink(self.path(f"file-{number - 20:06}")), errno.ENOENT)
            self.note("gone", f"file-{number - 20:06}")


class Directories(Writer):
    """mkdir, symlink, rmdir: the other names."""

    def step(self, number):
        self.repeated(lambda: os.mkdir(self.path(f"dir-{number:06}")), errno.EEXIST)
        self.note("directory", f"dir-{number:06}")
        self.repeated(lambda: os.symlink(f"to-{number}", self.path(f"sym-{number:06}")), errno.EEXIST)
        self.note("symlink", f"sym-{number:06}", f"to-{number}")
        if number > 10:
            self.repeated(lambda: os.rmdir(self.path(f"dir-{number - 10:06}")), errno.ENOENT)
            self.note("gone", f"dir-{number - 10:06}")
            self.repeated(lambda: os.unlink(self.path(f"sym-{number - 10:06}")), errno.ENOENT)
            self.note("gone", f"sym-{number - 10:06}")


class Truth:
    """What one writer was told has happened, and its comparison with what the server shows."""

    def __init__(self, writer, directory):
        self.writer, self.directory = writer, directory
        self.records, self.fresh, self.slots, self.names = [], [], {}, {}
        self.acknowledged = 0
        self.errors = []

    def take(self, control):
        """Reads all notes there are. The host's log gets them too: it outlives a guest that hangs."""
        lines = []
        while self.writer.notes.poll():
            try:
                kind, *what = self.writer.notes.recv()
            except EOFError:
                break
            self.acknowledged += 1
            lines.append(f"{self.writer.label} {kind} {' '.join(map(str, what))}")
            if kind == "error":
                self.errors.append(f"{self.writer.label}: {what[0]}")
            elif kind == "record":
                self.records.append(what)
                self.fresh.append(what)
            elif kind == "slot":
                self.slots[what[0]] = what[1]
            elif kind == "gone":
                self.names.pop(what[0])
            else:
                self.names[what[0]] = (kind, *what[1:])
        control.tell(lines)

    def verify(self, everything):
        """Yields a sentence for each thing that is not as acknowledged."""
        for name, offset, length, key in self.records if everything else self.fresh:
            if self.read(name, offset, length) != content(key, length):
                yield f"{name} lost its record at {offset}, {length} bytes ({key})"
        self.fresh = []
        whole = self.read("slots", 0, SLOTS * SLOT_BYTES) if self.slots else b""
        for slot, key in self.slots.items():
            found = whole[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES]
            if found != content(key, SLOT_BYTES):
                older = [n for n in range(1, 10**6) if content(f"{self.writer.label} {n}", 16) == found[:16]][:1]
                yield f"slot {slot} is not that of {key}, but {f'of {older[0]}' if older else 'foreign'}"
        if not (self.names or isinstance(self.writer, (Renamer, Directories))):
            return
        prefix = self.writer.label + "-"
        listed = {name[len(prefix):] for name in os.listdir(self.directory) if name.startswith(prefix)}
        for name in sorted(listed - self.names.keys()):
            yield f"{name} is there again"
        for name in sorted(self.names.keys() - listed):
            yield f"{name} is lost"
        for name in sorted(self.names.keys() & listed):
            kind, *rest = self.names[name]
            path = f"{self.directory}/{prefix}{name}"
            if kind == "symlink" and os.readlink(path) != rest[0]:
                yield f"{name} points to {os.readlink(path)}"
            elif kind == "exists":
                key, length = rest
                if os.lstat(path).st_size != length or self.read(name, 0, length) != content(key, 2000)[:length]:
                    yield f"{name} has {os.lstat(path).st_size} bytes, or others than it was given"

    def read(self, name, offset, length):
        """Around the page cache; O_DIRECT wants aligned memory, which mmap is."""
        try:
            file = os.open(f"{self.directory}/{self.writer.label}-{name}", os.O_RDONLY | os.O_DIRECT)
        except OSError as error:
            return str(error).encode()
        try:
            buffer = mmap.mmap(-1, length)
            count = os.preadv(file, [buffer], offset)
            return buffer[:count]
        finally:
            os.close(file)


def wait_until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def main(a, b):
    control = Control()
    os.mkdir(f"{a}/k")
    writers = [
        Appender("append-1", f"{a}/k"), Appender("append-2", f"{a}/k"), Overwriter("over", f"{a}/k"),
        Renamer("rename", f"{a}/k"), Directories("names", f"{a}/k"),
    ]
    truths = [Truth(writer, f"{b}/k") for writer in writers]
    for writer in writers:
        writer.start()
    order = random.Random(SEED)
    damage, answers, gaps = [], [], []

    def progress():
        for truth in truths:
            truth.take(control)
        return sum(truth.acknowledged for truth in truths)

    def broken():
        return damage or any(truth.errors for truth in truths)

    def pause_and_verify(everything):
        for writer in writers:
            writer.go.clear()
        if not wait_until(lambda: progress() and (broken() or all(w.parked.is_set() for w in writers)), RECOVERY_S):
            damage.append(f"writers still wait for the server {RECOVERY_S} s after its restart")
            return
        progress()
        for truth in truths:
            damage.extend(truth.verify(everything))
        for writer in writers:
            writer.go.set()

    kills = stops = 0
    while kills < KILLS and not broken():
        before = progress()
        # Every kill meets a server that works: at least a few acknowledgements, then a random moment.
        if not wait_until(lambda: progress() >= before + 10 or broken(), RECOVERY_S):
            damage.append(f"no progress in {RECOVERY_S} s after kill {kills}")
        if broken():
            break
        deadline = time.monotonic() + order.uniform(0, 0.4)
        while time.monotonic() < deadline:
            progress()
            time.sleep(0.005)
        started = time.monotonic()
        if order.random() < STOPS / (1 + STOPS):
            control.ask("stop")
            stops += 1
            pause_and_verify(everything=False)
            continue
        answers.append(int(control.ask("kill").split()[1]))
        kills += 1
        # Now and then once more, while it and its clients are still coming to terms.
        if order.random() < 0.2 and kills < KILLS:
            time.sleep(order.uniform(0, 0.3))
            answers.append(int(control.ask("kill").split()[1]))
            kills += 1
        pause_and_verify(everything=False)
        gaps.append(time.monotonic() - started)
        if kills // 10 > (kills - 1) // 10 or broken():
            print(f"  {kills} kills, {progress()} operations acknowledged, last gap {gaps[-1]:.1f} s", flush=True)
    if not broken():
        pause_and_verify(everything=True)
    for writer in writers:
        writer.ended.set()
    total = progress()
    errors = [error for truth in truths for error in truth.errors]
    for sentence in (damage + errors)[:20]:
        print("  " + sentence)
    print(f"  {total} operations; restart {sorted(answers)[len(answers) // 2] if answers else 0} ms (median), "
          f"work resumed and verified in {sorted(gaps)[len(gaps) // 2] if gaps else 0:.1f} s (median)")
    print(("ok" if kills >= KILLS else "FAILED") + f" {kills} of {KILLS} kills under load, and {stops} clean stops")
    print(("FAILED" if damage else "ok") + f" all that was acknowledged is there after each ({len(damage)} damages)")
    print(("FAILED" if errors else "ok") + f" no client saw an error ({len(errors)})")
    sys.stdout.flush()
    os._exit(bool(damage or errors or kills < KILLS))


try:
    main(*sys.argv[1:])
except Exception as error:
    # Not by the ordinary way out, which would wait for writers that wait for the server.
    print(f"FAILED kill-loop broke off: {type(error).__name__}: {error}", flush=True)
    os._exit(1)
