"""An office's machine: a real kernel with systemd (tests/lab/office), at which a scenario types as its administrator does."""

import base64
import os
import pathlib
import shlex
import socket
import threading
import time

from firnlab import HOST_ADDRESS, LabError, guest

HERE = pathlib.Path(__file__).resolve().parent
# The host's end of the first machine's line; the second has the next one.
LINE = 7800
MEMORY_MIB = 1280
BOOT_S = 300
POLL_S = 1
# Of a whole scenario; it ends the machine of one that hangs.
JOB_S = 2700


class Machine:
    """`files` lie in /tmp/job; whatever listens on `ports` of this host's loopback is found on the same ports there."""

    def __init__(self, directory, number, files, ports):
        self.name, self.lost, self.failure, self.began = f"machine-{number + 1}", False, None, time.monotonic()
        self.log = directory / f"{self.name}.log"
        self.guest = guest.Guest(number=number, memory_mib=MEMORY_MIB, office=True)
        variables = {"LINE": LINE + number, "PORTS": " ".join(map(str, sorted(ports)))}
        with socket.create_server((HOST_ADDRESS, LINE + number)) as listener:
            listener.settimeout(POLL_S)
            runs = threading.Thread(target=self._run, args=(files, variables), daemon=True)
            runs.start()
            self.line = self._comes_up(listener, runs)
        self.answers = self.line.makefile("r")

    def _comes_up(self, listener, runs):
        """Its line; nobody waits for a machine that has ended, or was never started."""
        while time.monotonic() < self.began + BOOT_S:
            try:
                return listener.accept()[0]
            except TimeoutError:
                if not runs.is_alive():
                    raise LabError(f"{self.name} ended before it came up: {self.failure or f'see {self.log}'}") from None
        raise LabError(f"{self.name} does not come up in {BOOT_S} s")

    def _run(self, files, variables):
        with open(self.log, "a", buffering=1) as log:
            try:
                self.guest.run(HERE / "machine.sh", files, variables, JOB_S, on_line=lambda line: log.write(line + "\n"))
            except LabError as failure:
                self.failure = failure

    def tries(self, script, limit_s=300):
        """Status and output of what is typed."""
        if self.lost:
            raise LabError(f"{self.name} is lost")
        with open(self.log, "a") as log:
            log.write(f"[{time.monotonic() - self.began:.1f} s] $ {script if len(script) < 300 else script[:300] + ' …'}\n")
        self.line.settimeout(limit_s)
        try:
            self.line.sendall(base64.b64encode(script.encode()) + b"\n")
            status, _, said = self.answers.readline().rstrip("\n").partition(" ")
        except OSError as error:
            raise LabError(f"{self.name} does not answer to: {script[:300]} ({error})") from None
        if not status:
            raise LabError(f"{self.name} has ended")
        said = base64.b64decode(said).decode(errors="replace")
        with open(self.log, "a") as log:
            log.write(said)
        return int(status), said

    def types(self, script, limit_s=300):
        """What it says; it must end well."""
        status, said = self.tries(script, limit_s)
        if status != 0:
            raise LabError(f"on {self.name} this ends with {status}: {script[:300]}\n{said[-3000:]}")
        return said

    def puts(self, path, content, mode="600"):
        """Writes a file of its."""
        encoded = base64.b64encode(content.encode()).decode()
        self.types(f"mkdir -p {shlex.quote(os.path.dirname(path))} && base64 -d <<< {encoded} > {path} && chmod {mode} {path}")

    def is_lost(self):
        """Fire, theft, a dead disk: it ends at once, and nothing of it is left."""
        self.lost = True
        if self.guest.process and self.guest.process.poll() is None:
            self.guest.end_in(0).join()
            self.guest.process.wait()

    def tail(self, lines=25):
        said = "" if self.lost else self.tries("journalctl -u firn-edge -n 25 --no-pager -o cat; tail -n 5 /tmp/job/*.log 2> /dev/null", 30)[1]
        # What it answered is in its log now.
        del said
        text = self.log.read_text(errors="replace").splitlines()[-2 * lines:]
        return "\n".join(f"  {self.name}: {line}" for line in text)
