"""Three offices of one shared volume, by turns or by inode: an edge each, a bucket and a table, and the lines of each office to them."""

import json
import os
import shutil
import subprocess

from . import HOST_ADDRESS, BRIDGE, LabError, namespace
from .cloud import Cloud
from .lines import Lines
from .servers import READY_S, Server, wait_for_port

OFFICES = {"one": HOST_ADDRESS, "two": "192.168.77.100", "three": "192.168.77.101"}


class Offices(Server):
    """The edges, each at an address of its own; the bucket is versitygw's, the table DynamoDB Local's."""

    name = "offices"
    variables = {"OFFICES": " ".join(f"{name}={address}" for name, address in OFFICES.items())}

    def __init__(self, directory, binary, leases="volume"):
        super().__init__(directory)
        self.leases = leases
        self.binary = str(shutil.which(str(binary)) or binary)
        if not os.access(self.binary, os.X_OK):
            raise LabError(f"{binary} is not a program; build it with: cargo build --release -p firn-edge")
        self.edges, self.lines = {}, {}
        self.cloud = Cloud(self.directory / "cloud")

    def prepare(self):
        self.cloud.start("versitygw", "dynamodb")
        self.cloud.s3("PUT", "/offices")
        for name, address in OFFICES.items():
            if address != HOST_ADDRESS:
                namespace.run("ip", "address", "add", f"{address}/24", "dev", BRIDGE)
            lines = self.lines[name] = Lines()
            store, table = (lines.add(self.cloud.ports[server]) for server in ("versitygw", "dynamodb"))
            exports = "".join(
                f'[[export]]\npath = "{path}"\nclients = ["192.168.77.0/24"]\nsquash = "none"\ndurability = "{durability}"\n'
                for path, durability in (("/export", "journal"), ("/contracts", "cloud"))
            )
            self._config(name).write_text(f"""
[volume]
edge_name = "{name}"
store = "s3://offices/volume?region=us-east-1&endpoint=http://127.0.0.1:{store}"
anchor = "dynamodb://offices?region=us-east-1&endpoint=http://127.0.0.1:{table}&create=true"
state_directory = "{self.directory}/{name}"
shared = true
leases = "{self.leases}"
freshness = "0 s"
[limits]
checkpoint_busy = "1 s"
checkpoint_trickle = "2 s"
[nfs]
listen = "{address}"
mount_port = 20048
grace_seconds = 1
{exports}""")
        making = ["--leases", "inode"] if self.leases == "inode" else []
        self._edge("one", "format", *making, "--phrase-file", self.directory / "phrase")
        for name in list(OFFICES)[1:]:
            self._edge(name, "join", "--identity", self.directory / "one/identity")

    def start(self):
        for name in OFFICES:
            self._start(name)

    def alive(self):
        return bool(self.edges) and all(edge.poll() is None for edge in self.edges.values())

    def stop(self):
        status = 0
        for name in list(self.edges):
            self.process = self.edges.pop(name)
            self.lines[name].mend()
            status = super().stop() or status
        self.cloud.stop()
        return status

    def administer(self, arguments):
        """latency MS | cut OFFICE | mend OFFICE | kill OFFICE | start OFFICE | status OFFICE"""
        verb, of = arguments
        if verb == "latency":
            for lines in self.lines.values():
                lines.set_latency(int(of))
        elif verb == "cut":
            self.lines[of].cut()
        elif verb == "mend":
            self.lines[of].mend()
        elif verb == "kill":
            edge = self.edges.pop(of)
            if edge.poll() is not None:
                raise LabError(f"the edge of office {of} had already ended by itself:\n{self.log_tail()}")
            edge.kill()
            edge.wait()
        elif verb == "start":
            self._start(of)
        elif verb == "status":
            return json.dumps(json.loads(self._edge(of, "status", "--output", "json")))
        else:
            raise LabError(f"no {verb} for offices")
        return "done"

    def _config(self, name):
        return self.directory / f"{name}.toml"

    def _start(self, name):
        log = open(self.directory / f"edge-{name}.log", "ab")
        command = [self.binary, "--config", str(self._config(name)), "run"]
        self.edges[name] = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=self.cloud.environment
        )
        for port in self.ports:
            wait_for_port(OFFICES[name], port, READY_S)

    def _edge(self, name, *arguments):
        return self.cloud.run([self.binary, "--config", self._config(name), *arguments])
