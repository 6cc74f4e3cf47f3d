"""sqlite_writers.py PATH…: two writers a path, each adding 1 to the same row 40 times (or TRANSACTIONS); the sum must come out.

PAUSE_S are the seconds of which up to so many lie between two of a writer's transactions. SQLITE_VFS names how SQLite locks, if not by byte ranges: `unix-dotfile` by a directory that only one can make.
"""

import multiprocessing
import os
import random
import sqlite3
import sys
import time

TRANSACTIONS = int(os.environ.get("TRANSACTIONS", "40"))
PAUSE_S = float(os.environ.get("PAUSE_S", "0"))


def connect(path):
    vfs = os.environ.get("SQLITE_VFS", "unix")
    connection = sqlite3.connect(f"file:{path}?vfs={vfs}", timeout=120, isolation_level=None, uri=True)
    connection.execute("pragma synchronous=full")
    return connection


def writer(path, name):
    connection = connect(path)
    for number in range(TRANSACTIONS):
        connection.execute("begin immediate")
        (value,) = connection.execute("select value from counter").fetchone()
        connection.execute("update counter set value = ?", (value + 1,))
        connection.execute("insert into history values (?, ?, ?)", (name, number, value + 1))
        connection.execute("commit")
        time.sleep(random.uniform(0, PAUSE_S))


connection = connect(sys.argv[1])
connection.executescript(
    "create table counter(value); insert into counter values(0); create table history(name, number, value unique);"
)
connection.close()
processes = [
    multiprocessing.Process(target=writer, args=(path, f"{path}-{n}")) for n in range(2) for path in sys.argv[1:]
]
for process in processes:
    process.start()
for process in processes:
    process.join()
connection = connect(sys.argv[-1])
(value,) = connection.execute("select value from counter").fetchone()
(rows,) = connection.execute("select count(*) from history").fetchone()
expected = TRANSACTIONS * len(processes)
print(f"{value} counted, {rows} rows, {expected} expected, exits {[p.exitcode for p in processes]}")
sys.exit(not (value == rows == expected and all(p.exitcode == 0 for p in processes)))
