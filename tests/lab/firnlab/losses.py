"""Edges on stores that lose: two whose store acknowledges puts and drops them, one of which believes what it is answered, and one with a second store."""

import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import time

from . import BRIDGE, HOST_ADDRESS, LabError, namespace
from .cloud import Cloud
from .counting import CountingProxy
from .servers import READY_S, Server, wait_for_port

# An edge each: as it ships; the same with confirmation taken out, which is how it was before there was any; and one with a second store.
EDGES = {"confirming": HOST_ADDRESS, "believing": "192.168.77.100", "mirrored": "192.168.77.101"}
DROPPING = ("confirming", "believing")

# Confirmation is answered from memory; only a build for tests can do that.
BELIEVES = "volume.upload_not_read_back"

SEGMENT = re.compile(r"/log/[0-9a-f]{16}/[0-9a-f]{16}$")
# Of so many puts of segments one is dropped, in the middle, so that even a short run has some.
EVERY = 50


@dataclasses.dataclass
class Drop:
    """A put that was acknowledged and dropped."""

    at: float
    # When the same name was put once more and went on to the store.
    again: float | None = None
    # Its puts that were dropped.
    count: int = 1


class DroppingProxy(CountingProxy):
    """Takes one of `EVERY` puts of segments whole, answers as the store would, and forwards nothing."""

    def __init__(self, target):
        self.puts, self.drops, self.newest_dropped = 0, {}, False
        super().__init__(target)

    def answers(self, request, asked):
        if request.method != "PUT" or not SEGMENT.search(request.path):
            return None
        with self.lock:
            self.puts += 1
            self.newest_dropped = self.puts % EVERY == EVERY // 2
            drop = self.drops.get(request.path)
            if not self.newest_dropped:
                if drop and drop.again is None:
                    drop.again = time.time()
                return None
            if drop:
                drop.count += 1
            else:
                self.drops[request.path] = Drop(time.time())
        etag = hashlib.md5(asked).hexdigest()
        return f'HTTP/1.1 200 OK\r\nETag: "{etag}"\r\nContent-Length: 0\r\n\r\n'.encode()

    def story(self):
        """What an administrator of the store could know of it, by counts."""
        with self.lock:
            drops = list(self.drops.values())
            noticed = [drop.again - drop.at for drop in drops if drop.again]
            return {
                "puts": self.puts,
                "dropped": len(drops),
                "dropped_puts": sum(drop.count for drop in drops),
                "put_again": len(noticed),
                "soonest_s": round(min(noticed, default=0), 1),
                "latest_s": round(max(noticed, default=0), 1),
                "newest_dropped": self.newest_dropped,
            }


class Losses(Server):
    """The edges, each at an address of its own and on a bucket of its own of one S3 server; `programs` is a directory of release builds."""

    name = "losses"
    variables = {"EDGES": " ".join(f"{name}={address}" for name, address in EDGES.items())}

    def __init__(self, directory, programs):
        super().__init__(directory)
        programs = pathlib.Path(programs).resolve()
        self.shipped, self.testing = programs / "firn-edge", programs / "firn-edge-testing"
        for program in (self.shipped, self.testing):
            if not os.access(program, os.X_OK):
                raise LabError(f"{program} is not a program; build it with: scripts/build-release")
        self.edges, self.proxies = {}, {}
        self.cloud = Cloud(self.directory / "cloud")

    def prepare(self):
        self.cloud.start("versitygw")
        server = f"http://127.0.0.1:{self.cloud.ports['versitygw']}"
        for bucket in (*EDGES, "second"):
            self.cloud.s3("PUT", f"/{bucket}")
        for name, address in EDGES.items():
            if address != HOST_ADDRESS:
                namespace.run("ip", "address", "add", f"{address}/24", "dev", BRIDGE)
            endpoint, second = server, ""
            if name in DROPPING:
                self.proxies[name] = DroppingProxy(server)
                endpoint = self.proxies[name].address
            else:
                second = f'[second]\nstore = "s3://second/volume?region=us-east-1&endpoint={server}"\n'
            # Smaller segments and commits sooner than by default: as many puts of as many checkpoints, of less data.
            self._config(name).write_text(f"""
[volume]
edge_name = "{name}"
store = "s3://{name}/volume?region=us-east-1&endpoint={endpoint}"
table = "redb:{self.directory}/{name}.redb"
state_directory = "{self.directory}/{name}"
[limits]
segment = "1 MiB"
checkpoint_busy = "2 s"
checkpoint_trickle = "2 s"
[nfs]
listen = "{address}"
mount_port = 20048
grace_seconds = 1
[[export]]
path = "/export"
clients = ["192.168.77.0/24"]
squash = "none"
{second}""")
            self._edge(name, "format", "--phrase-file", self._phrase(name))

    def start(self):
        for name in EDGES:
            self._start(name)

    def alive(self):
        return bool(self.edges) and all(edge.poll() is None for edge in self.edges.values())

    def stop(self):
        ending, self.edges = self.edges, {}
        for edge in ending.values():
            edge.terminate()
        statuses = [edge.wait(READY_S) for edge in ending.values()]
        self.cloud.stop()
        return max(statuses, key=abs, default=0)

    def administer(self, arguments):
        """status EDGE | store EDGE | empty EDGE | recover EDGE | lose EDGE | has EDGE KEY | repaired EDGE | verify EDGE"""
        verb, name, *rest = arguments
        if verb == "status":
            return json.dumps(json.loads(self._edge(name, "status", "--output", "json")))
        if verb == "store":
            return json.dumps({**self.proxies[name].story(), "absent": self._absent(name)})
        if verb == "empty":
            # What lies in `unconfirmed/` is no cache, and may not be taken away.
            self._kill(name)
            if kept := list((self.directory / name / "unconfirmed").iterdir()):
                raise LabError(f"{len(kept)} segments are not confirmed yet")
            shutil.rmtree(self.directory / name / "cache")
            self._start(name)
        elif verb == "recover":
            # The machine is lost, and the table.
            self._kill(name)
            shutil.rmtree(self.directory / name)
            (self.directory / f"{name}.redb").unlink()
            self._edge(name, "recover", "--phrase-file", self._phrase(name), "--yes")
            self._start(name)
        elif verb == "lose":
            return self._lose(name)
        elif verb == "has":
            return "yes" if (self.cloud.bucket(name) / rest[0]).exists() else "no"
        elif verb == "repaired":
            # Segments that it wrote anew without being asked, by its log.
            told = (self.directory / f"edge-{name}.log").read_text(errors="replace")
            return str(sum(int(count) for count in re.findall(r"was repaired as far .* (\d+) were written anew", told)))
        elif verb == "verify":
            command = [self.shipped, "--config", self._config(name), "verify"]
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, env=self.cloud.environment
            )
            return json.dumps({"status": done.returncode, "said": done.stdout + done.stderr})
        else:
            raise LabError(f"no {verb} for {self.name}")
        return "done"

    def _absent(self, name):
        """Of the segments whose put was dropped, those that are not in the bucket."""
        with self.proxies[name].lock:
            paths = list(self.proxies[name].drops)
        # `/bucket/key`
        return sum(not (self.cloud.bucket(name).parent / path.lstrip("/")).exists() for path in paths)

    def _lose(self, name):
        """Deletes a segment by hand, as who has the bucket's credentials can: the largest, for it has a client's data. Returns its key."""
        bucket = self.cloud.bucket(name)
        largest = max(bucket.glob("volume/*/log/*/*"), key=lambda path: path.stat().st_size)
        key = str(largest.relative_to(bucket))
        self.cloud.s3("DELETE", f"/{name}/{key}")
        return key

    def _config(self, name):
        return self.directory / f"{name}.toml"

    def _phrase(self, name):
        return self.directory / f"{name}.phrase"

    def _start(self, name):
        log = open(self.directory / f"edge-{name}.log", "ab")
        command = [self.shipped, "--config", self._config(name), "run"]
        if name == "believing":
            command = [self.testing, *command[1:], "--plant", BELIEVES]
        self.edges[name] = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=self.cloud.environment
        )
        for port in self.ports:
            wait_for_port(EDGES[name], port, READY_S)

    def _kill(self, name):
        edge = self.edges.pop(name)
        if edge.poll() is not None:
            raise LabError(f"the edge {name} had already ended by itself:\n{self.log_tail()}")
        edge.kill()
        edge.wait()

    def _edge(self, name, *arguments):
        return self.cloud.run([self.shipped, "--config", self._config(name), *arguments])
