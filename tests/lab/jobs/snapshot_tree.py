"""snapshot_tree.py make DIRECTORY FILES: a tree of all kinds of files; snapshot_tree.py list DIRECTORY OUTPUT: all that is in it.

A line of the list has everything of a file that a copy must share with its original: path, kind, mode, owner, size, times of
change in nanoseconds, what it points to, how many names it has, and its content's hash. Of a directory the size and the number of
names are the file system's own.
"""

import hashlib
import os
import stat
import sys

# Names in a directory; every fifth directory lies in another.
DIRECTORY_FILES = 100


def make(top, files):
    os.mkdir(top)
    where = top
    for number in range(files):
        if number % DIRECTORY_FILES == 0:
            parent = where if number // DIRECTORY_FILES % 5 == 4 else top
            where = f"{parent}/directory {number // DIRECTORY_FILES}"
            os.mkdir(where, 0o750)
        path = f"{where}/file-{number:05}"
        kind = number % 50
        if kind == 17:
            os.symlink(f"../nowhere/{number}", path)
        elif kind == 31:
            os.link(f"{where}/file-{number - 1:05}", path)
        elif kind == 43:
            os.mkfifo(path, 0o620)
        else:
            with open(path, "wb") as file:
                if kind == 5:
                    file.seek(200_000)
                # Up to 8 KiB, now and then more than a block.
                length = number * 2_654_435_761 % (100_000 if kind == 29 else 8192)
                file.write(hashlib.shake_128(str(number).encode()).digest(length))
                os.fchmod(file.fileno(), 0o600 + number % 64)
                os.fchown(file.fileno(), number % 7, number % 11)
            os.utime(path, ns=(1_500_000_000_123_456_789 + number, 1_600_000_000_987_654_321 + number))


def listing(top):
    for directory, below, names in os.walk(top):
        below.sort()
        for name in ["."] + sorted(names) + [link for link in below if os.path.islink(f"{directory}/{link}")]:
            path = os.path.normpath(f"{directory}/{name}")
            found = os.lstat(path)
            fields = [stat.filemode(found.st_mode), found.st_uid, found.st_gid, found.st_mtime_ns]
            if not stat.S_ISDIR(found.st_mode):
                fields += [found.st_size, found.st_nlink]
            if stat.S_ISLNK(found.st_mode):
                fields.append(os.readlink(path))
            if stat.S_ISREG(found.st_mode):
                with open(path, "rb") as file:
                    fields.append(hashlib.sha256(file.read()).hexdigest())
            yield f"{os.path.relpath(path, top)}: {' '.join(map(str, fields))}"


match sys.argv[1:]:
    case ["make", top, files]:
        make(top, int(files))
    case ["list", top, output]:
        with open(output, "w") as file:
            file.writelines(line + "\n" for line in sorted(listing(top)))
    case _:
        sys.exit(__doc__)
