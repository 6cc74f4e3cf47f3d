"""Booting the guest to run one job."""

import io
import os
import pathlib
import shlex
import signal
import subprocess
import tarfile
import tempfile
import threading

from . import GUEST, HOST_ADDRESS, LAB, OFFICE, LabError, namespace

# What the kernel may use for its page cache; jobs that must read from the server drop that cache or go around it.
MEMORY_MIB = 1024


class Guest:
    """One run of the guest. `number` selects tap and address, so that several can be up at once.

    `disks` are images that it has as /dev/ubdc and so on, to be written. With `office` it is the machine in an office instead: systemd is its first program, and packages can be installed.
    """

    def __init__(self, number=0, memory_mib=MEMORY_MIB, office=False, disks=()):
        self.disks = disks
        self.number = number
        self.image, self.init = (OFFICE, ["init=/lib/systemd/systemd", "systemd.show_status=0"]) if office else (GUEST, ["init=/sbin/firn-init"])
        self.address = f"192.168.77.{2 + number}"
        self.memory_mib = memory_mib
        self.process = None

    def end_in(self, seconds):
        """Pulls the plug after that time: processes in it may wait for ever for a server that is gone."""
        return signal_after(self.process, seconds)

    def run(self, job, files=(), variables=None, timeout_s=600, on_line=print):
        """Runs the shell script `job` with `files` beside it; returns its exit status, 125 if the guest died.

        Every line of its output goes to `on_line`. Variables reach the script in its environment; HOST is always
        the address of this machine.
        """
        if not (self.image / "image.version").exists():
            raise LabError(f"there is no image in {self.image}; make it with: scripts/setup test")
        with tempfile.TemporaryDirectory(prefix="firn-guest.") as directory:
            directory = pathlib.Path(directory)
            self._pack(directory / "job.tar", job, files, variables or {})
            command = [
                str(GUEST / "linux"),
                f"mem={self.memory_mib}M",
                f"umid=firn{self.number}",
                f"uml_dir={directory}/",
                f"ubd0={directory}/cow,{self.image}/root.img",
                f"ubd1r={directory}/job.tar",
                *(f"ubd{number}={disk}" for number, disk in enumerate(self.disks, 2)),
                "root=/dev/ubda", "rootfstype=ext4", "rw", *self.init, "quiet", "panic=-1",
                # Without gro the host's 64 KiB segments arrive as 1500-byte packets, and reads run at a third.
                f"vec0:transport=tap,ifname={namespace.tap(self.number)},depth=128,gro=1",
                "con0=null,fd:1", "con=null", "ssl=null",
                f"firn.address={self.address}/24", f"firn.host={HOST_ADDRESS}",
                f"firn.name=guest{self.number}", f"firn.timeout={timeout_s}",
            ]
            environment = dict(os.environ, TMPDIR="/dev/shm", LD_PRELOAD=f"{GUEST}/xstate.so:{GUEST}/idle.so")
            process = self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                env=environment, start_new_session=True, text=True, errors="replace",
            )
            status, boot = 125, []
            watchdog = self.end_in(timeout_s + 60)
            try:
                for line in process.stdout:
                    line = line.rstrip("\r\n")
                    if line.startswith("GUEST-EXIT="):
                        status = int(line.split("=")[1])
                        break
                    if boot is None:
                        on_line(line)
                    elif line.startswith("GUEST-UP"):
                        boot = None
                    else:
                        boot.append(line)
                # The kernel's own chatter matters only when it did not come up.
                for line in boot or []:
                    on_line(line)
            finally:
                watchdog.cancel()
                # It has nothing of its own to save: the image is thrown away.
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                process.wait()
            return status

    def _pack(self, archive, job, files, variables):
        # A tar file is a multiple of 512 bytes, hence a block device as it is.
        with tarfile.open(archive, "w") as tar:
            tar.add(job, "job.sh")
            for shared in sorted((LAB / "jobs").iterdir()):
                if shared.suffix == ".py" or shared.name == "lib.sh":
                    tar.add(shared, shared.name)
            for file in files:
                tar.add(file, pathlib.Path(file).name)
            text = "".join(
                f"export {name}={shlex.quote(str(value))}\n"
                for name, value in {"HOST": HOST_ADDRESS, "GUEST": self.address, **variables}.items()
            ).encode()
            entry = tarfile.TarInfo("variables.sh")
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text))


def signal_after(process, seconds):
    """Kills the group of a process that outlives every limit set inside it."""

    def end():
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    return timer
