"""A scenario under way: its steps, what must hold in them, and what is shown when one does not.

    == [12 s] join from the package
    ok the edge serves [40 s]
    FAILED at "restore": … and then the last lines of every process

A scenario stops at the first sentence that does not hold: what comes after it would be judged on ruins.
"""

import contextlib
import pathlib
import socket
import subprocess
import threading
import time

from firnlab import HOST_ADDRESS, REPOSITORY, LabError
from firnlab.lines import Lines
from machine import Machine
from world import API, CREDENTIALS, NODES, World

BUILD_S = 300
PACKAGES = ("firn-edge", "firn", "firn-blockd")


class NotSo(Exception):
    """Something did not hold."""


class Story:
    def __init__(self, directory, programs, broken=None, short=False):
        self.directory, self.programs, self.broken, self.short = directory, programs, broken, short
        self.began, self.here, self.passed = time.monotonic(), "begin", 0
        self.world = World(directory, programs, names=("files",))
        self.machines = []

    def say(self, line):
        print(line, flush=True)

    @contextlib.contextmanager
    def step(self, name):
        self.here = name
        self.say(f"== [{time.monotonic() - self.began:.0f} s] {name}")
        yield

    def holds(self, sentence, so, why=""):
        if not so:
            raise NotSo(f"{sentence}: {str(why)[-3000:]}")
        self.passed += 1
        self.say(f"ok {sentence} [{time.monotonic() - self.began:.0f} s]")

    def breaks(self, name):
        """Whether this is to be done wrong on purpose (catalogue.py)."""
        return self.broken == name

    # The region: everything that is not the customer's.

    def begin_region(self):
        """Store, table, control plane and disk nodes, each a process; the office's way to the store can be cut."""
        world = self.world
        world.begin_cloud()
        world.begin_service()
        self.line = Lines()
        self.store_port = self.line.add(int(world.of_edge.address.rsplit(":", 1)[1]))
        self.ports = [API, self.store_port, *(7500 + number for number in range(1, NODES + 1))]
        for port in self.ports:
            let_in(port)

    def store(self, volume):
        return f"s3://firn/{volume}?region=us-east-1&endpoint=http://127.0.0.1:{self.store_port}"

    # The customer's.

    def packages(self):
        """Of the programs that are tried."""
        made = pathlib.Path(self.directory, "packages")
        if not made.is_dir():
            command = [REPOSITORY / "packaging/build", "--plain", "--binaries", self.programs, made, *PACKAGES]
            done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S)
            if done.returncode != 0:
                raise LabError(f"the packages are not made: {done.stdout}{done.stderr}")
        return sorted(made.glob("*.deb"))

    def machine(self):
        """Another machine of the customer's, empty but for Debian; the packages lie in /tmp/job."""
        self.machines.append(Machine(self.directory, len(self.machines), self.packages(), self.ports))
        return self.machines[-1]

    def end(self):
        for machine in self.machines:
            machine.is_lost()
        self.world.end()

    def tails(self):
        """The last lines of every process."""
        parts = []
        for one in [*self.machines, *self.world.processes.values()]:
            try:
                parts.append(one.tail())
            except (LabError, OSError) as error:
                parts.append(f"  {one.name}: {error}")
        return "\n".join(part for part in parts if part)


def let_in(port):
    """What listens there on this machine's loopback, for the machines on the bridge, too."""
    listener = socket.create_server((HOST_ADDRESS, port))

    def pump(source, sink):
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, sink):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def accept():
        while True:
            caller, _ = listener.accept()
            try:
                server = socket.create_connection(("127.0.0.1", port))
            except OSError:
                caller.close()
                continue
            for pair in ((caller, server), (server, caller)):
                threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def credentials():
    return "".join(f"{name}={value}\n" for name, value in CREDENTIALS.items())
