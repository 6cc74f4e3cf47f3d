"""Two or more builds of firn-blockd in one run: what each request of each job costs.

The wall clock of a busy machine says little, and nothing across runs; builds that are interleaved, job by job, have the same neighbours. For each job and
build it prints the median of what the serving process (client and node in one) spends: CPU seconds a GiB, and for each request the hand-offs
that the kernel sees (context switches: a thread that had to wait for another), system calls and page faults, counted by `perf stat`.
"""

import statistics, subprocess, tempfile, os

EVENTS = ("context-switches", "raw_syscalls:sys_enter", "page-faults")


def counted(side, job, seconds, directory):
    """One job, with the kernel's counts for each of its requests."""
    output = os.path.join(directory, "stat")
    pid = str(side.processes[0].pid)
    watch = subprocess.Popen(["perf", "stat", "-x,", "-e", ",".join(EVENTS), "-p", pid, "-o", output, "--", "sleep", str(seconds)],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    side.measure(job, seconds)
    watch.wait()
    name, _, _, _, unit = job
    speed = side.results[name][-1]
    requests = seconds * (speed * 1e6 / 2**20 if unit == "MB/s" else speed)
    counts = {}
    for line in open(output):
        fields = line.split(",")
        if len(fields) > 2 and fields[0].isdigit():
            counts[fields[2]] = int(fields[0]) / requests
    return [counts.get(event, float("nan")) for event in EVENTS]


def compare(sides, jobs, rounds, seconds):
    """The table, as text."""
    found = {}
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(rounds):
            for job in jobs:
                for side in sides:
                    counts = counted(side, job, seconds, directory)
                    found.setdefault((job[0], side.name), []).append((side.results[job[0]][-1], side.cpu[job[0]][-1], *counts))
    lines = ["| job | build | speed | CPU s/GiB | context switches a request | system calls | page faults |", "|---|---|---|---|---|---|---|"]
    for name, *_, unit in jobs:
        for side in sides:
            speed, cpu, *counts = (statistics.median(values) for values in zip(*found[name, side.name]))
            lines.append(f"| {name} | {side.name} | {speed:,.0f} {unit} | {cpu:.2f} | " + " | ".join(f"{count:.1f}" for count in counts) + " |")
    return "\n".join(lines)
