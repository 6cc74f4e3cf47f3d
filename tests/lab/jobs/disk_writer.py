"""disk_writer.py DIRECTORY LIST: commits to an SQLite database and writes files with fsync there until something fails; each
number that was acknowledged is a line of LIST, which is not on that disk.
disk_writer.py DIRECTORY LIST check: all of them are there, and the database is whole.
"""

import os
import pathlib
import random
import sqlite3
import sys


def content(number):
    return random.Random(number).randbytes(3000 + number * 7919 % 50_000)


def database(directory):
    connection = sqlite3.connect(directory / "commits.db", timeout=30)
    connection.execute("pragma journal_mode=wal")
    connection.execute("pragma synchronous=full")
    connection.execute("create table if not exists commits (number integer primary key, content blob)")
    return connection


def write(directory, acknowledged):
    connection = database(directory)
    number = connection.execute("select coalesce(max(number), 0) from commits").fetchone()[0]
    with open(acknowledged, "a", buffering=1) as lines:
        while True:
            number += 1
            with connection:
                connection.execute("insert into commits values (?, ?)", (number, content(number)))
            if number % 5 == 0:
                with open(directory / f"file{number}", "wb") as file:
                    file.write(content(number))
                    file.flush()
                    os.fsync(file.fileno())
                folder = os.open(directory, os.O_RDONLY)
                os.fsync(folder)
                os.close(folder)
            lines.write(f"{number}\n")


def check(directory, acknowledged):
    numbers = [int(line) for line in open(acknowledged)]
    connection = database(directory)
    whole = connection.execute("pragma integrity_check").fetchone()[0]
    if whole != "ok":
        sys.exit(f"the database: {whole}")
    stored = dict(connection.execute("select number, content from commits"))
    for number in numbers:
        if stored.get(number) != content(number):
            sys.exit(f"commit {number} of {len(numbers)} acknowledged ones is not there")
        if number % 5 == 0 and (directory / f"file{number}").read_bytes() != content(number):
            sys.exit(f"file{number} is not what was synced")
    if not numbers:
        sys.exit("nothing was ever acknowledged")
    print(f"{len(numbers)} acknowledged commits, {len(stored)} stored")


directory, acknowledged = pathlib.Path(sys.argv[1]), sys.argv[2]
(check if sys.argv[3:] else write)(directory, acknowledged)
