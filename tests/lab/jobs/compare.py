"""compare.py A B: exits 1 and says how, if two trees differ in entries, contents, modes, owners, times or links.

COMPARE_IGNORES=symlink-mtime in the environment is for a peer that cannot set it.
"""

import hashlib
import os
import stat
import sys

IGNORES = os.environ.get("COMPARE_IGNORES", "")

def describe(root):
    """Relative path (bytes) to everything that a copy must keep."""
    entries, links = {}, {}
    for directory, names, files in os.walk(root):
        for name in names + files:
            path = os.path.join(directory, name)
            relative = os.path.relpath(path, root)
            status = os.lstat(path)
            entry = {"mode": oct(status.st_mode), "owner": (status.st_uid, status.st_gid)}
            if stat.S_ISREG(status.st_mode):
                with open(path, "rb") as file:
                    entry["content"] = hashlib.blake2b(file.read()).hexdigest()[:16]
                entry["size"] = status.st_size
                links.setdefault((status.st_dev, status.st_ino), []).append(relative)
            if stat.S_ISLNK(status.st_mode):
                entry["target"] = os.readlink(path)
            if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
                entry["device"] = status.st_rdev
            if not (stat.S_ISLNK(status.st_mode) and IGNORES == "symlink-mtime"):
                entry["mtime"] = status.st_mtime_ns
            entries[relative] = entry
    for names in links.values():
        for name in names:
            entries[name]["links"] = sorted(names)
    return entries


left, right = (describe(os.fsencode(argument)) for argument in sys.argv[1:3])
differences = 0
for name in sorted(left.keys() | right.keys()):
    if left.get(name) != right.get(name):
        differences += 1
        if differences <= 10:
            a, b = left.get(name, {}), right.get(name, {})
            print(repr(name)[:60], *(f"{key}: {a.get(key)} {b.get(key)}" for key in a.keys() | b.keys() if a.get(key) != b.get(key)))
print(f"{len(left)} and {len(right)} entries, {differences} differences")
sys.exit(differences != 0 or not left)
