"""The disk model beside a real disk: is a node on a model as fast as one on the disk that the model describes?

What the model is told, it is told by fio on the plain file system: what a sync takes, and what bytes take on top of it. Then the same
jobs of durable writes run on a node whose files are on that disk, and on one on a tmpfs behind the model, by turns.
"""
import json, os, shutil, statistics, subprocess, tempfile, time

JOBS = [("4 KiB", "4k"), ("64 KiB", "64k"), ("256 KiB", "256k"), ("1 MiB", "1m")]
SIZE_MIB = 256


def fio(*arguments):
    """Runs a job; returns the mean time of a write with what makes it durable, in milliseconds."""
    output = subprocess.run(["fio", "--name=job", "--rw=randwrite", "--iodepth=1", "--time_based", "--randrepeat=1",
                             f"--size={SIZE_MIB}m", "--output-format=json", *arguments], capture_output=True, text=True, check=True).stdout
    result = json.loads(output[output.index("{"):])["jobs"][0]
    return result["job_runtime"] / result["write"]["total_ios"]


def describe(directory, seconds):
    """A sync in milliseconds, and megabytes a second on top of it."""
    path = os.path.join(directory, "plain")
    subprocess.run(["fio", "--name=lay", f"--filename={path}", "--rw=write", "--bs=1m", f"--size={SIZE_MIB}m", "--end_fsync=1"],
                   capture_output=True, check=True)

    def durable_ms(block):
        return fio(f"--filename={path}", "--ioengine=psync", "--fdatasync=1", f"--bs={block}", f"--runtime={seconds}")

    small, large = durable_ms("4k"), durable_ms("1m")
    megabytes_per_second = 1.048576e3 / max(large - small, 0.05)
    os.remove(path)
    return small, megabytes_per_second


class Disk:
    """A cluster of one node and its disk, behind an NBD socket."""

    def __init__(self, binary, directory, model=None):
        self.directory = directory
        socket = os.path.join(directory, "nbd.sock")
        arguments = [binary, "dev", "--nodes", "1", "--replication", "1", "--mode", "write-through", "--directory", directory,
                     "--node-size", "640MiB", "--size", f"{SIZE_MIB}MiB"]
        self.process = subprocess.Popen(arguments + (["--model", model] if model else []), stdout=subprocess.DEVNULL,
                                        stderr=open(os.path.join(directory, "log"), "w"))
        for _ in range(600):
            if os.path.exists(socket) or self.process.poll() is not None:
                break
            time.sleep(0.1)
        self.uri = f"nbd+unix:///?socket={socket}"
        # The first write of a block makes room for it.
        subprocess.run(["fio", "--name=lay", "--ioengine=nbd", "--thread", f"--uri={self.uri}", "--rw=write", "--bs=1m", "--iodepth=4",
                        f"--size={SIZE_MIB}m"], capture_output=True, check=True)

    def durable_ms(self, block, seconds):
        return fio("--ioengine=nbd", "--thread", f"--uri={self.uri}", f"--bs={block}", f"--runtime={seconds}")

    def close(self):
        self.process.terminate()
        self.process.wait()


def check(binary, rounds, seconds):
    """A table of both, as Markdown."""
    on_disk = tempfile.mkdtemp(prefix="firn-model.", dir=os.environ.get("FIRN_BENCH_DIRECTORY", "/var/tmp"))
    in_memory = tempfile.mkdtemp(prefix="firn-model.", dir="/dev/shm")
    disks = []
    try:
        sync_ms, megabytes_per_second = describe(on_disk, seconds)
        model = f"seek=0ms,bw={megabytes_per_second:.0f}MB/s,sync={sync_ms:.3f}ms"
        disks.append(Disk(binary, on_disk))
        disks.append(Disk(binary, in_memory, model))
        found = {name: ([], []) for name, _ in JOBS}
        for _ in range(rounds):
            for name, block in JOBS:
                for results, disk in zip(found[name], disks):
                    results.append(disk.durable_ms(block, seconds))
    finally:
        for disk in disks:
            disk.close()
        shutil.rmtree(on_disk)
        shutil.rmtree(in_memory)
    lines = [f"What fio says of the disk makes the model `{model}`. {rounds} rounds of {seconds} s, medians and ranges:", "",
             "| durable writes, one at a time | node on the disk, ms | node on the model, ms | model / disk |", "|---|---|---|---|"]
    for name, (real, modelled) in found.items():
        cells = [f"{statistics.median(times):.2f} ({min(times):.2f}–{max(times):.2f})" for times in (real, modelled)]
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {statistics.median(modelled) / statistics.median(real):.2f} |")
    return "\n".join(lines)
