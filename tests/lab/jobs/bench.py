"""bench.py DIRECTORY TAR: measures DIRECTORY and prints lines `row NAME VALUE UNIT SECONDS`.

The same program measures a mount, in the guest, and the local file system, on the host: the limit. COLD in the
environment is a command that empties the caches between writing and reading. BENCH_SCALE shrinks or grows all rows;
BENCH_PARTS names the groups of rows to measure. With BENCH_SAMPLE a line `begin` and a pause stand before each row, and a pause behind it, in which whoever
reads them looks at what the server has used (BENCH_PAUSE_SECONDS, 0.3 each); if it is a command it is run in them, and its words (figures that only grow) follow as
`cost BEFORE… AFTER…`.
"""

import hashlib
import os
import subprocess
import sys
import tarfile
import time

MIB = 1 << 20
CLIENTS = os.environ.get("BENCH_CLIENTS") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "clients")
SAMPLE, PAUSE_SECONDS, sampled = os.environ.get("BENCH_SAMPLE"), float(os.environ.get("BENCH_PAUSE_SECONDS", "0.3")), []
SCALE = float(os.environ.get("BENCH_SCALE", "1"))
SEQUENTIAL_MIB = int(256 * SCALE)
RANDOM_FILE_MIB, RANDOM_SECONDS = 64, 3 * SCALE
CREATES, CREATES_OF_16 = int(300 * SCALE), int(60 * SCALE)
ENTRIES = int(3000 * SCALE)
# What a mount cannot show: links and owners over SMB.
TAR_OPTIONS = os.environ.get("BENCH_TAR_OPTIONS", "").split()

directory, archive = (os.path.abspath(argument) for argument in sys.argv[1:3])  # cold() leaves this directory


def cold():
    os.chdir("/")
    subprocess.run(os.environ["COLD"], shell=True, check=True)


def row(name, amount, unit, seconds):
    print(f"row {name} {amount / seconds:.2f} {unit} {seconds:.3f} {amount:.0f}", flush=True)
    if SAMPLE:
        print(f"cost {' '.join(sampled)}", flush=True)
        time.sleep(PAUSE_SECONDS)


def sample():
    """What the server has used; time for whoever reads the line to look."""
    time.sleep(PAUSE_SECONDS)
    if SAMPLE not in (None, "yes"):
        sampled.extend(subprocess.run(SAMPLE, shell=True, check=True, capture_output=True, text=True).stdout.split())


def timed(call):
    if SAMPLE:
        sampled.clear()
        sample()
        print("begin", flush=True)
        time.sleep(PAUSE_SECONDS)
    start = time.monotonic()
    result = call()
    seconds = time.monotonic() - start
    if SAMPLE:
        print("end", flush=True)
        sample()
    return result, seconds


def clients(job, path, count, amount):
    """`clients.c` beside this file, built: how many operations its clients did, and in what time."""
    command = [CLIENTS, job, path, str(count), str(amount)]
    done, seconds = timed(lambda: subprocess.run(command, check=True, stdout=subprocess.PIPE))
    return int(done.stdout), seconds


def sequential():
    chunks = [os.urandom(MIB) for _ in range(8)]  # not compressible, not all alike

    def write():
        with open(f"{directory}/big", "wb", buffering=0) as file:
            for number in range(SEQUENTIAL_MIB):
                file.write(chunks[number % 8])
            os.fsync(file.fileno())

    def read():
        with open(f"{directory}/big", "rb", buffering=0) as file:
            while file.read(MIB):
                pass

    # Once before, so that no server is measured while it takes memory that the machine has to find for it.
    write()
    os.unlink(f"{directory}/big")
    row("write-sequential", SEQUENTIAL_MIB, "MiB/s", timed(write)[1])
    cold()
    row("read-sequential", SEQUENTIAL_MIB, "MiB/s", timed(read)[1])
    os.unlink(f"{directory}/big")


def random_4k(job, count):
    operations, seconds = clients(job, f"{directory}/random", count, RANDOM_SECONDS)
    row(f"{job}-random-4k-{count}", operations, "operations/s", seconds)


def random_rows():
    with open(f"{directory}/random", "wb") as file:
        for _ in range(RANDOM_FILE_MIB):
            file.write(os.urandom(MIB))
        os.fsync(file.fileno())
    for count in (1, 16):
        random_4k("write", count)
    cold()
    for count in (1, 16):
        random_4k("read", count)
    os.unlink(f"{directory}/random")


def creates(count, each):
    place = f"{directory}/create-{count}"
    os.mkdir(place)
    files, seconds = clients("create", place, count, each)
    row(f"create-commit-{count}", files, "files/s", seconds)


def listing():
    os.mkdir(f"{directory}/many")

    def create():
        for number in range(ENTRIES):
            os.close(os.open(f"{directory}/many/entry-{number:06}", os.O_CREAT | os.O_WRONLY))

    row("create", ENTRIES, "files/s", timed(create)[1])
    cold()
    row("stat", ENTRIES, "files/s",
        timed(lambda: [os.lstat(f"{directory}/many/entry-{number:06}") for number in range(ENTRIES)])[1])
    cold()

    def read_plus():
        with os.scandir(f"{directory}/many") as entries:
            return sum(1 for entry in entries if entry.stat(follow_symlinks=False))

    found, seconds = timed(read_plus)
    assert found == ENTRIES, f"{found} of {ENTRIES} entries"
    row("readdirplus", found, "entries/s", seconds)


def tree():
    with tarfile.open(archive) as tar:
        files = sum(1 for _ in tar)
    os.mkdir(f"{directory}/tree")

    def untar():
        subprocess.run(["tar", "xf", archive, *TAR_OPTIONS, "-C", f"{directory}/tree"], check=True)
        subprocess.run(["sync", "-f", f"{directory}/tree"], check=True)  # only that file system

    row("untar", files, "files/s", timed(untar)[1])
    cold()

    def checksum():
        total, sum_of_all = 0, hashlib.blake2b()
        for place, names, found in os.walk(f"{directory}/tree"):
            names.sort()
            for name in sorted(found):
                if not os.path.islink(os.path.join(place, name)):
                    with open(os.path.join(place, name), "rb", buffering=0) as file:
                        data = file.read()
                    sum_of_all.update(data)
                    total += len(data)
        return total, sum_of_all.hexdigest()[:16]

    (total, digest), seconds = timed(checksum)
    row("checksum", total / MIB, "MiB/s", seconds)
    print(f"digest {digest}", flush=True)


PARTS = {
    "sequential": sequential,
    "random": random_rows,
    "creates": lambda: (creates(1, CREATES), creates(16, CREATES_OF_16)),
    "listing": listing,
    "tree": tree,
}
for part in os.environ.get("BENCH_PARTS", " ".join(PARTS)).split():
    PARTS[part]()
