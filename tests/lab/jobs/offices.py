"""offices.py: what people do in three offices with one file system, by the mounts of a kernel on three edges.

/mnt/OFFICE-contracts answers at level 2 (cloud), /mnt/OFFICE-export at level 1 (journal); both are one volume. Prints how many turns a second two offices
make, and how long a handover takes, at each latency to the cloud.
"""

import hashlib
import json
import os
import sqlite3
import statistics
import subprocess
import threading
import time

from control import Control

LATENCIES = [int(word) for word in os.environ.get("LATENCIES", "0 30 100").split()]
# Whether they write it by turns, or at the same moment ("inode").
BY_INODE = os.environ.get("LEASES", "volume") == "inode"
PHASES = os.environ.get("PHASES", "turns git build sqlite kill cut").split()
TURNS = int(os.environ.get("TURNS", "12"))
# Of SQLite: those by turns, and those of each of the four writers at once.
TRANSACTIONS = int(os.environ.get("TRANSACTIONS", "9"))
OFFICES = [office.split("=")[0] for office in os.environ["OFFICES"].split()]
# Whose edges are killed, one after the other.
KILLED = os.environ.get("KILLED", "one two three").split()
# What may be waited for whatever the machine does: a takeover takes a minute by itself.
TIMEOUT_S = 240

control = Control()
failed = 0


def check(sentence, holds, why=""):
    global failed
    print(f"ok {sentence}" if holds else f"FAILED {sentence}: {str(why)[:1500]}", flush=True)
    failed += not holds


def until(what, seconds=TIMEOUT_S):
    """The seconds until `what` gives something true; None if it does not."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        try:
            if what():
                return time.monotonic() - began
        except OSError:
            pass
        time.sleep(0.05)
    return None


def admin(*words):
    return control.ask("admin " + " ".join(words)).split(": ", 1)[1]


def status(office):
    return json.loads(admin("status", office))


def last_wait_ms(office):
    """How long the office waited for the volume last; by inode, for a lease at the longest."""
    return status(office)["by_inode"]["longest_wait_ms"] if BY_INODE else status(office)["shared"]["last_wait_ms"]


def handovers():
    """How often the volume went to another office; by inode, the right to decide about locks."""
    return sum(status(office)["by_inode"]["lock_terms"] if BY_INODE else status(office)["shared"]["taken"] for office in OFFICES)


def clones(office):
    """The salvage clones that an office tells of; by inode, of its last start."""
    if not BY_INODE:
        return status(office)["shared"]["salvaged"]
    try:
        salvaged = status(office)["by_inode"]["salvaged"]
    except RuntimeError:
        # The volume is being opened again.
        return []
    return [salvaged] if salvaged else []


def append(path, text):
    """As an editor that adds a line and saves; returns once it is as durable as its export makes it."""
    with open(path, "a") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def read(path):
    with open(path) as file:
        return file.read()


def write(path, text):
    with open(path, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def run(*command, cwd=None):
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    return done.stdout


def turns(latency):
    expected, took = "", []
    name = f"minutes-{latency}"
    began = time.monotonic()
    for turn in range(TURNS):
        office = ("one", "two")[turn % 2]
        path = f"/mnt/{office}-contracts/{name}"
        asked = time.monotonic()
        # What the other office saved last, as soon as it was told that it is saved.
        before = read(path) if turn else ""
        if before != expected:
            check(f"turn {turn} at {latency} ms reads what the other office saved", False, (before, expected))
            return
        line = f"turn {turn} in office {office}\n"
        append(path, line)
        expected += line
        took.append(time.monotonic() - asked)
    total = time.monotonic() - began
    same = [read(f"/mnt/{office}-contracts/{name}") == expected for office in ("one", "two")]
    check(f"a document edited in turns is the same in both offices at {latency} ms", all(same))
    print(
        f"   at {latency} ms: {TURNS / total:.2f} turns/s; a turn (handover, read, save at level 2) {statistics.median(took):.2f} s, "
        f"the longest {max(took):.2f} s; the wait of office one {last_wait_ms('one')} ms",
        flush=True,
    )


def git(latency):
    one, two = (f"/mnt/{office}-export/repository-{latency}" for office in ("one", "two"))
    clone = f"/mnt/two-export/clone-{latency}"
    os.mkdir(one)
    run("git", "init", "-q", cwd=one)
    write(f"{one}/report.txt", "first\n")
    run("git", "add", ".", cwd=one)
    began = time.monotonic()
    run("git", "commit", "-q", "-m", "first", cwd=one)
    took = time.monotonic() - began
    seen = until(lambda: "first" in run("git", "log", "--oneline", cwd=two))
    check(f"a commit of office one is in the log of office two at {latency} ms", seen is not None)
    run("git", "clone", "-q", "--no-local", two, clone)
    write(f"{one}/report.txt", "first\nsecond\n")
    run("git", "commit", "-q", "-a", "-m", "second", cwd=one)
    head = run("git", "rev-parse", "HEAD", cwd=one)
    until(lambda: run("git", "rev-parse", "HEAD", cwd=two) == head)
    run("git", "pull", "-q", cwd=clone)
    check(f"office two pulls what office one committed at {latency} ms", read(f"{clone}/report.txt") == "first\nsecond\n")
    # Its commit goes back.
    write(f"{clone}/report.txt", "first\nsecond\nthird\n")
    run("git", "commit", "-q", "-a", "-m", "third", cwd=clone)
    run("git", "push", "-q", "origin", "HEAD:refs/heads/topic", cwd=clone)
    there = until(lambda: "third" in run("git", "log", "--oneline", "topic", cwd=one))
    check(f"and office one has what office two pushed at {latency} ms", there is not None)
    for place in (one, clone):
        run("git", "fsck", "--full", "--strict", cwd=place)
    check(f"git fsck finds nothing in either office at {latency} ms", True)
    print(f"   at {latency} ms: git commit {took:.2f} s; seen by the other office {seen or 0:.2f} s later", flush=True)


def build(latency):
    sources = {f"part{number}.c": f"int part{number}(void) {{ return {number}; }}\n" for number in range(24)}
    calls = " + ".join(f"part{number}()" for number in range(24))
    externs = "".join(f"int part{number}(void);\n" for number in range(24))
    sources["main.c"] = f"#include <stdio.h>\n{externs}int main(void) {{ printf(\"%d\\n\", {calls}); return 0; }}\n"
    objects = " ".join(name.replace(".c", ".o") for name in sources)
    sources["Makefile"] = f"all: program\nprogram: {objects}\n\tgcc -o $@ $^\n"
    one, two = (f"/mnt/{office}-export/build-{latency}" for office in ("one", "two"))
    os.mkdir(one)
    for name, text in sources.items():
        write(f"{one}/{name}", text)
    check(f"the sources are in the other office at {latency} ms", until(lambda: set(sources) <= set(os.listdir(two))) is not None)
    building = subprocess.Popen(["make", "-s"], cwd=one, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    reads, wrong = 0, []
    while building.poll() is None:
        for name, text in sources.items():
            wrong += [name] * (until(lambda: read(f"{two}/{name}") == text, 60) is None)
            reads += 1
            if building.poll() is not None:
                break
    check(f"a build in office one, while office two reads, at {latency} ms", building.wait() == 0, building.stdout.read())
    check(f"all {reads} reads beside it are what was written", not wrong, wrong)
    digest = hashlib.sha256(open(f"{one}/program", "rb").read()).digest()
    same = until(lambda: hashlib.sha256(open(f"{two}/program", "rb").read()).digest() == digest)
    check(f"what it made runs in the other office at {latency} ms", same is not None and run(f"{two}/program") == "276\n")


def sqlite(latency):
    """The mounts have locks: SQLite's are decided by the edges, and a transaction of one office is complete when another office's begins."""
    name = f"ledger-{latency}.db"
    paths = {office: f"/mnt/{office}-export/{name}" for office in OFFICES}
    # Connections stay open, and have pages of the file in memory, while others write.
    offices = {}
    took = []
    for turn in range(TRANSACTIONS):
        office = OFFICES[turn % len(OFFICES)]
        if office not in offices:
            offices[office] = sqlite3.connect(paths[office], timeout=TIMEOUT_S, isolation_level=None)
            offices[office].execute("pragma synchronous=full")
        ledger, asked = offices[office], time.monotonic()
        ledger.execute("begin immediate")
        if not turn:
            ledger.execute("create table entries(number integer primary key, office text)")
        (entries,) = ledger.execute("select count(*) from entries").fetchone()
        if entries != turn:
            check(f"transaction {turn} at {latency} ms sees all before it", False, f"{entries} of {turn}, in office {office}")
        ledger.execute("insert into entries values (?, ?)", (turn, office))
        ledger.execute("commit")
        took.append(time.monotonic() - asked)
    whole = {office: ledger.execute("pragma integrity_check").fetchone()[0] for office, ledger in offices.items()}
    entries = {office: ledger.execute("select count(*) from entries").fetchone()[0] for office, ledger in offices.items()}
    for ledger in offices.values():
        ledger.close()
    check(f"none of {TRANSACTIONS} SQLite transactions that {len(OFFICES)} offices make by turns at {latency} ms is lost", set(entries.values()) == {TRANSACTIONS}, entries)
    check(f"the database is whole in every office at {latency} ms", set(whole.values()) == {"ok"}, whole)

    before, began = handovers(), time.monotonic()
    paths = [f"/mnt/{office}-export/counter-{latency}.db" for office in OFFICES[:2]]
    writers = subprocess.run(
        ["python3", "./sqlite_writers.py", *paths], env={**os.environ, "TRANSACTIONS": str(TRANSACTIONS), "PAUSE_S": "1"}, capture_output=True, text=True,
        timeout=2 * TIMEOUT_S,
    )
    check(f"no update of two writers in each of two offices, all at once at {latency} ms, is lost", writers.returncode == 0, writers.stdout + writers.stderr)
    together, given = time.monotonic() - began, handovers() - before
    # Else they did not meet.
    check(f"{'the right to lock' if BY_INODE else 'the volume'} went to and fro meanwhile at {latency} ms", given >= 4, given)
    check(f"and that database is whole in both offices at {latency} ms", [run("sqlite3", path, "pragma integrity_check") for path in paths] == ["ok\n"] * 2)
    print(
        f"   at {latency} ms: an SQLite transaction by turns {statistics.median(took):.2f} s, the longest {max(took):.2f} s; "
        f"{4 * TRANSACTIONS} of four writers at once {together:.0f} s, {given} handovers",
        flush=True,
    )


class Writer(threading.Thread):
    """Saves one small file after the other in an office, in both exports, and notes what it was told. `ended` ends it after the file under way."""

    def __init__(self, office, name):
        super().__init__(daemon=True)
        self.office, self.label, self.ended, self.error = office, name, threading.Event(), None
        self.acknowledged = {"contracts": [], "export": []}

    def run(self):
        number = 0
        try:
            while not self.ended.is_set():
                number += 1
                for export, names in self.acknowledged.items():
                    name = f"{self.label}-{export}-{number}"
                    write(f"/mnt/{self.office}-{export}/{name}", f"content of {name}\n")
                    names.append(name)
                time.sleep(0.02)
        except OSError as error:
            self.error = error


def others(lost):
    """The offices that go on, the one first that takes the volume over."""
    at = OFFICES.index(lost)
    return OFFICES[at + 1 :] + OFFICES[:at]


def judge(writer, when, acknowledged):
    """What was acknowledged at level 2 before the edge of the writer's office was lost is in all others; what was at level 1 only there or in a salvage clone."""
    lost = writer.office
    for office in others(lost):
        missing = [
            name for name in acknowledged["contracts"]
            if until(lambda: read(f"/mnt/{office}-contracts/{name}") == f"content of {name}\n", 5) is None
        ]
        check(f"{when}: all {len(acknowledged['contracts'])} files that were answered at level 2 are in office {office}", not missing, missing)
    there = set(os.listdir(f"/mnt/{others(lost)[0]}-export"))
    put_aside = [name for name in acknowledged["export"] if name not in there]
    salvaged = until(lambda: not put_aside or clones(lost))
    paths = {path for clone in clones(lost) for path in clone["paths"]}
    gone = [name for name in put_aside if f"/{name}" not in paths]
    check(
        f"{when}: of {len(acknowledged['export'])} files at level 1 {len(put_aside)} were put aside, with their paths", salvaged is not None and not gone, gone
    )
    writer.ended.set()
    writer.join(TIMEOUT_S)
    check(f"{when}: the clients of office {lost} go on", not writer.is_alive() and writer.error is None, writer.error)
    for office in others(lost):
        again = [name for name in writer.acknowledged["contracts"] if until(lambda: os.path.exists(f"/mnt/{office}-contracts/{name}"), 60) is None]
        check(f"{when}: and what they are told later is in office {office} as well", not again, again)


def owned_by(office, name):
    """That office has the volume, and a writer works there."""
    writer = Writer(office, name)
    writer.start()
    until(lambda: len(writer.acknowledged["contracts"]) >= 10)
    return writer


def taken_over(writer, name):
    acknowledged = {export: list(names) for export, names in writer.acknowledged.items()}
    asked = time.monotonic()
    write(f"/mnt/{others(writer.office)[0]}-contracts/{name}-goes-on", "meanwhile\n")
    return acknowledged, time.monotonic() - asked


def kill():
    for office in KILLED:
        writer = owned_by(office, f"kill-{office}")
        admin("kill", office)
        acknowledged, took = taken_over(writer, f"kill-{office}")
        print(f"   office {others(office)[0]} wrote {took:.0f} s after the edge of office {office} was killed", flush=True)
        admin("start", office)
        judge(writer, f"the edge of office {office} is killed", acknowledged)


def cut():
    writer = owned_by("one", "cut")
    began = time.monotonic()
    admin("cut", "one")
    acknowledged, took = taken_over(writer, "cut")
    print(f"   office two wrote {took:.0f} s after office one was cut off", flush=True)
    time.sleep(max(0, 120 - (time.monotonic() - began)))
    # Nothing is answered at level 2 by who is cut off, nor anything once others may have the volume.
    acknowledged["export"] = list(writer.acknowledged["export"])
    admin("mend", "one")
    judge(writer, "an office that is cut off for two minutes", acknowledged)


for latency in LATENCIES:
    admin("latency", str(latency))
    for phase in (turns, git, build, sqlite):
        if phase.__name__ in PHASES:
            phase(latency)
for phase in (kill, cut):
    if phase.__name__ in PHASES:
        phase()
raise SystemExit(failed != 0)
