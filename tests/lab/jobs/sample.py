"""sample.py PID [PORT]: what a server has used so far, as `SECONDS REQUESTS`.

SECONDS of processor time, of the process and of all that it started, those that ended and were waited for too; REQUESTS that file systems' clients made, by the
server's metrics at PORT (0 without).
"""

import os
import re
import sys
import urllib.request

COUNTED = re.compile(r"^firn_protocol_operations_total\{[^}]*\} (\d+)", re.MULTILINE)


def processor_seconds(pid):
    """Fields after the name, which may hold anything: state, parent, …; 11 to 14 are utime, stime, and those of waited-for children."""
    parents, ticks = {}, {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = open(f"/proc/{entry}/stat").read().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry)], ticks[int(entry)] = int(fields[1]), sum(map(int, fields[11:15]))

    def is_of(process):
        while process not in (0, pid):
            process = parents.get(process, 0)
        return process == pid

    return sum(used for process, used in ticks.items() if is_of(process)) / os.sysconf("SC_CLK_TCK")


def requests(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
        return sum(int(found) for found in COUNTED.findall(reply.read().decode()))


def sample(pid, port=None):
    return processor_seconds(pid), requests(port) if port else 0


if __name__ == "__main__":
    print(*sample(*map(int, sys.argv[1:])))
