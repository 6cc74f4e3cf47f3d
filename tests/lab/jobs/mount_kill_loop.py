"""mount_kill_loop.py MOUNT PROGRAM CONFIG: writers on a FUSE mount, kill -9 of the edge, and what is there after each.

Unlike an NFS client the kernel sends nothing again: a call that the kill cuts off fails (ENOTCONN, ECONNABORTED; of a memory map EIO or
SIGBUS), and the writer ends. So before each call a writer notes what it is about to do, and after it that it was done. At the next start
everything done must be there (level 1), and what was under way was done or was not. What has level 0 only, data without fsync, is not judged.

    round = start the edge, writers, kill at a random moment, nobody hangs, ENOTCONN for all; next start; compare; the writers go on

KILLS (40), SEED (1). With SKIP_SYNC=1 the writers note as durable what they did not sync; then the loop must find damage: so one sees that it looks.
"""

import copy
import errno
import hashlib
import mmap
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time

KILLS = int(os.environ.get("KILLS", "40"))
SEED = int(os.environ.get("SEED", "1"))
SKIP_SYNC = os.environ.get("SKIP_SYNC") == "1"
# For whatever has to happen at once; far longer than it takes on a busy machine.
WITHIN_S = 120
SLOTS, SLOT_BYTES = 64, 4096
# What a call says whose server is gone.
CUT_OFF = (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO)


def content(key, length):
    """Bytes that belong to one operation only, so that any mix-up shows."""
    return hashlib.shake_128(key.encode()).digest(length) if length else b""


def sync(file):
    if not SKIP_SYNC:
        os.fsync(file)


class Writer:
    """Does operations one after the other until the mount is cut off. `state` is what is durable; it is the judge's, and a writer begins with a copy."""

    def __init__(self, label, directory):
        self.label, self.directory, self.number = label, directory, 0
        self.state, self.pending, self.done = {}, None, 0

    def path(self, name):
        return f"{self.directory}/{name}"

    # In the writer's own process.

    def run(self, notes):
        self.order = random.Random(f"{SEED} {self.label} {self.number}")
        try:
            self.open()
            while True:
                self.number += 1
                for operation in self.operations(f"{self.label} {self.number}"):
                    notes.send(("begin", self.number, operation))
                    self.carry_out(operation)
                    notes.send(("done", self.number, operation))
                    self.apply(self.state, operation)
        except OSError as error:
            notes.send(("cut off", error.errno, str(error)))
        os._exit(0)

    def open(self):
        pass

    # In the judge's.

    def start(self):
        self.notes, theirs = multiprocessing.Pipe(False)
        self.process = multiprocessing.Process(target=self.run, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.error = None

    def take(self):
        try:
            while self.notes.poll():
                kind, number, operation = self.notes.recv()
                if kind == "begin":
                    self.number, self.pending = number, operation
                elif kind == "done":
                    self.apply(self.state, operation)
                    self.pending = None
                    self.done += 1
                elif number not in CUT_OFF:
                    self.error = f"{self.label}: {operation}"
        except EOFError:
            pass
        return self.done


class Slots(Writer):
    """4 KiB blocks of one file written over in random order; `how` makes each write durable."""

    def __init__(self, label, directory, how):
        super().__init__(label, directory)
        self.how = how

    def open(self):
        flags = {"O_SYNC": os.O_SYNC, "O_DSYNC": os.O_DSYNC}.get(self.how, 0)
        self.file = os.open(self.path("slots"), os.O_CREAT | os.O_RDWR | (0 if SKIP_SYNC else flags), 0o644)
        os.ftruncate(self.file, SLOTS * SLOT_BYTES)
        if self.how == "msync":
            self.map = mmap.mmap(self.file, SLOTS * SLOT_BYTES)

    def operations(self, key):
        yield self.order.randrange(SLOTS), key

    def carry_out(self, operation):
        slot, key = operation
        begin, end = slot * SLOT_BYTES, (slot + 1) * SLOT_BYTES
        if self.how == "msync":
            self.map[begin:end] = content(key, SLOT_BYTES)
            self.map.flush(begin, SLOT_BYTES)
            return
        os.pwrite(self.file, content(key, SLOT_BYTES), begin)
        if self.how == "fsync":
            sync(self.file)

    @staticmethod
    def apply(state, operation):
        slot, key = operation
        state[slot] = key

    def judge(self, everything):
        if not self.state and not os.path.exists(self.path("slots")):
            return
        with open(self.path("slots"), "rb") as file:
            whole = file.read()
        for slot, key in self.state.items():
            found = whole[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES]
            if found == content(key, SLOT_BYTES):
                continue
            if self.pending and self.pending[0] == slot and found == content(self.pending[1], SLOT_BYTES):
                self.apply(self.state, self.pending)
                continue
            yield f"slot {slot} is not that of {key}, but {'nothing' if not any(found) else 'another'}"


class Appender(Writer):
    """Records of 100 bytes to 300 KiB, one fsync each."""

    def operations(self, key):
        name = f"log-{self.number // 100:04}"
        offset = sum(length for _, length in self.state.get(name, ()))
        yield name, key, self.order.choice((100, 4096, 5000, 40_000, 300_000)), offset

    def carry_out(self, operation):
        name, key, length, offset = operation
        file = os.open(self.path(name), os.O_CREAT | os.O_WRONLY, 0o644)
        os.pwrite(file, content(key, length), offset)
        sync(file)
        os.close(file)

    @staticmethod
    def apply(state, operation):
        name, key, length, _ = operation
        state.setdefault(name, []).append((key, length))

    def start(self):
        self.old = {name: len(records) for name, records in self.state.items()}
        if self.pending and self.pending[0] in self.state:
            # What was cut off is given up, as a log's reader would.
            name, *_, offset = self.pending
            os.truncate(self.path(name), offset)
        super().start()

    def judge(self, everything):
        for name, records in self.state.items():
            if not everything and self.old.get(name) == len(records):
                continue
            try:
                with open(self.path(name), "rb") as file:
                    whole = file.read()
            except FileNotFoundError:
                yield f"{name} is lost"
                continue
            offset = 0
            for key, length in records:
                if whole[offset : offset + length] != content(key, length):
                    yield f"{name} lost its record at {offset}, {length} bytes ({key})"
                offset += length
            under_way = self.pending[2] if self.pending and self.pending[0] == name else 0
            if len(whole) > offset + under_way:
                yield f"{name} has {len(whole)} bytes, of which {offset} were written"


class Names(Writer):
    """Files written and moved into the place of others, links, modes, lengths, directories, symbolic links: durable when the call returns."""

    def operations(self, key):
        number = self.number
        new, final = f"new-{number:06}", f"file-{number % 30:02}"
        yield "create", new
        yield "fill", new, key, 2000
        yield "rename", new, final
        if number % 3 == 0:
            yield "link", final, f"link-{number:06}"
            yield "unlink", f"link-{number:06}"
        if number % 4 == 0:
            yield "truncate", final, 700
        if number % 5 == 0:
            yield "chmod", final, 0o600
        yield "mkdir", f"dir-{number:06}"
        yield "symlink", f"to-{number}", f"dir-{number:06}/sym"
        yield "rename", f"dir-{number:06}", f"moved-{number:06}"
        if number % 2 == 0:
            yield "unlink", f"moved-{number:06}/sym"
            yield "rmdir", f"moved-{number:06}"

    def carry_out(self, operation):
        kind, *rest = operation
        if kind == "create":
            os.close(os.open(self.path(rest[0]), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        elif kind == "fill":
            file = os.open(self.path(rest[0]), os.O_WRONLY)
            os.write(file, content(*rest[1:]))
            sync(file)
            os.close(file)
        elif kind in ("rename", "link"):
            getattr(os, kind)(*map(self.path, rest))
        elif kind == "symlink":
            os.symlink(rest[0], self.path(rest[1]))
        else:
            getattr(os, kind)(self.path(rest[0]), *rest[1:])

    @staticmethod
    def apply(state, operation):
        kind, name, *rest = operation
        if kind == "create":
            state[name] = ["file", "", 0, 0o644]
        elif kind == "fill":
            state[name][1:3] = rest
        elif kind == "truncate":
            state[name][2] = rest[0]
        elif kind == "chmod":
            state[name][3] = rest[0]
        elif kind == "link":
            state[rest[0]] = state[name]
        elif kind == "mkdir":
            state[name] = ["directory"]
        elif kind == "symlink":
            state[rest[0]] = ["symlink", name]
        elif kind == "rename":
            moved = [known for known in state if known == name or known.startswith(name + "/")]
            for known in moved:
                state[rest[0] + known[len(name) :]] = state.pop(known)
        else:
            del state[name]

    def found(self):
        found = {}
        for place, directories, files in os.walk(self.directory):
            for name in directories + files:
                path = os.path.join(place, name)
                status = os.lstat(path)
                if os.path.islink(path):
                    entry = ["symlink", os.readlink(path)]
                elif os.path.isdir(path):
                    entry = ["directory"]
                else:
                    with open(path, "rb") as file:
                        entry = ["file", file.read(), status.st_size, status.st_mode & 0o7777]
                found[os.path.relpath(path, self.directory)] = entry
        return found

    @staticmethod
    def shown(state):
        whole = {}
        for name, entry in state.items():
            if entry[0] == "file":
                entry = ["file", content(entry[1], 2000)[: entry[2]], *entry[2:]]
            whole[name] = entry
        return whole

    def judge(self, everything):
        found = self.found()
        if found == self.shown(self.state):
            return
        if self.pending:
            # Two names of one file stay one.
            other = copy.deepcopy(self.state)
            self.apply(other, self.pending)
            if self.pending[0] == "fill":
                # Whatever part of it has come.
                _, name, key, length = self.pending
                entry = found.get(name, ["lost", b""])
                if entry[0] == "file" and content(key, length).startswith(entry[1]):
                    other[name][2] = len(entry[1])
            if found == self.shown(other):
                self.state = other
                return
        expected = self.shown(self.state)
        for name in sorted(expected.keys() | found.keys()):
            if expected.get(name) != found.get(name):
                told = [str(entry)[:60] for entry in (expected.get(name), found.get(name))]
                yield f"{name} should be {told[0]}, is {told[1]}; under way was {self.pending}"

    def start(self):
        # What a kill left half done is in nobody's way.
        for name in [name for name in self.state if name.startswith(("new-", "dir-")) and "/" not in name]:
            self.forget(name)
        super().start()

    def forget(self, name):
        for below in sorted((known for known in self.state if known.startswith(name + "/")), reverse=True):
            os.unlink(self.path(below))
            del self.state[below]
        (os.rmdir if self.state[name][0] == "directory" else os.unlink)(self.path(name))
        del self.state[name]


class Edge:
    def __init__(self, mount, program, config):
        self.mount, self.command, self.started_ms = mount, [program, "--config", config, "run"], []

    def start(self):
        began = time.monotonic()
        with open("edge-log", "ab") as log:
            self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=log)
        line = self.process.stdout.readline()
        if not line.startswith(b"serving on"):
            raise RuntimeError(f"the edge does not start: {line!r}")
        self.started_ms.append(int((time.monotonic() - began) * 1000))

    def end(self, how):
        self.process.send_signal(how)
        status = self.process.wait(WITHIN_S)
        self.process.stdout.close()
        return status


def bounded(work, what):
    """Does something in a process of its own, since a system call that hangs cannot be left; true if it said so in time."""
    child = multiprocessing.Process(target=lambda: os._exit(0 if work() else 1), daemon=True)
    child.start()
    child.join(WITHIN_S)
    if child.exitcode is None:
        raise RuntimeError(f"{what}: hangs")
    return child.exitcode == 0


def is_cut_off(path):
    try:
        # The kernel has an answer to stat for five seconds more.
        os.statvfs(path)
    except OSError as error:
        return error.errno == errno.ENOTCONN
    return False


def main(mount, program, config):
    edge = Edge(mount, program, config)
    edge.start()
    place = f"{mount}/kills"
    os.mkdir(place)
    writers = [Slots(f"slots-{how}", f"{place}/{how}", how) for how in ("fsync", "O_SYNC", "O_DSYNC")]
    if not SKIP_SYNC:
        # Without msync it would be in memory only, and never notice.
        writers.append(Slots("slots-msync", f"{place}/msync", "msync"))
    writers += [Appender(f"append-{number}", f"{place}/append-{number}") for number in (1, 2)]
    writers += [Names(f"names-{number}", f"{place}/names-{number}") for number in (1, 2)]
    for writer in writers:
        os.mkdir(writer.directory)
    order = random.Random(SEED)
    damage, hung, wrong = [], [], []
    kills = 0
    while kills < KILLS and not (damage or hung or wrong):
        for writer in writers:
            writer.start()
            writer.pending = None
        # Every kill meets writers that all work: some operations of each, then a random moment.
        before = [writer.done for writer in writers]
        deadline = time.monotonic() + WITHIN_S
        while not all(writer.take() >= then + 3 for writer, then in zip(writers, before)):
            if time.monotonic() > deadline or any(writer.error for writer in writers):
                wrong += [writer.error or f"{writer.label}: {writer.done} operations" for writer in writers]
                break
            time.sleep(0.005)
        time.sleep(order.uniform(0, 0.4))
        edge.end(signal.SIGKILL)
        kills += 1
        for writer in writers:
            # Read meanwhile: a writer whose notes nobody takes waits for that.
            deadline = time.monotonic() + WITHIN_S
            while writer.process.exitcode is None and time.monotonic() < deadline:
                writer.take()
                writer.process.join(0.02)
            if writer.process.exitcode is None:
                hung.append(f"{writer.label} hangs, {writer.pending}")
                writer.process.kill()
            elif writer.process.exitcode not in (0, -signal.SIGBUS):
                wrong.append(f"{writer.label} ended with {writer.process.exitcode}")
            writer.take()
            if writer.error:
                wrong.append(writer.error)
        if not bounded(lambda: is_cut_off(mount), "statvfs on the dead mount"):
            wrong.append("a dead mount does not say ENOTCONN")
        edge.start()
        for writer in writers:
            damage += [f"{writer.label}: {sentence}" for sentence in writer.judge(kills == KILLS)]
    status = edge.end(signal.SIGTERM)
    for sentence in (damage + hung + wrong)[:20]:
        print(f"  {sentence}")
    total = sum(writer.done for writer in writers)
    starts = sorted(edge.started_ms)
    print(f"  {total} operations; the edge serves again after {starts[len(starts) // 2]} ms (median), {starts[-1]} ms (worst)")
    print(("ok" if kills >= KILLS else "FAILED") + f" {kills} of {KILLS} kills -9 under writers on the mount, seed {SEED}")
    print(("FAILED" if damage else "ok") + f" all that was acknowledged at level 1 is there after each ({len(damage)} damages)")
    print(("FAILED" if hung else "ok") + f" nothing hangs: every call fails until it is mounted anew ({len(hung)})")
    print(("FAILED" if wrong or status else "ok") + f" no other error is seen, and it stops cleanly ({len(wrong)}, status {status})")


try:
    main(*sys.argv[1:])
except Exception as error:
    print(f"FAILED the loop of kills broke off: {type(error).__name__}: {error}", flush=True)
