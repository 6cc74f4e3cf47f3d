"""Servers under test: how each is started, made ready, killed and mounted.

Both kinds listen on the standard ports inside the namespace, so that a client finds every service through portmap as
it would in an office.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import time

from . import GUEST, HOST_ADDRESS, LAB, LabError, namespace

# How long a server may take until it answers: recovery of a full journal, on a loaded machine.
READY_S = 60


class Server:
    """A process that serves NFSv3 at HOST_ADDRESS. Subclasses say how to start it and what to mount."""

    export = "/export"
    # Ports that must accept before the server counts as ready: portmap, MOUNT, NFS.
    ports = (111, 20048, 2049)
    mount_options = "vers=3,proto=tcp,mountproto=tcp"
    name = "server"
    # Whether a stop that was asked for ends with status 0.
    stops_cleanly = True
    # What its jobs get in addition; a peer's known deviations, for example.
    variables = {}

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.process = None
        self.starts = 0

    def prepare(self):
        """Once, before the first start."""

    def start(self):
        if self.starts:
            self.before_restart()
        self.starts += 1
        self.process = self._launch("server", self.command())
        self.wait_ready()

    def fixed_port_options(self):
        """Mount options that need no portmap and no lock services."""
        _, mount_port, nfs_port = self.ports
        return f"{self.mount_options},nolock,port={nfs_port},mountport={mount_port}"

    def files(self):
        """What its jobs find beside them, once it has started."""
        return []

    def administer(self, arguments):
        """What an administrator of this server asks of it."""
        raise LabError(f"{self.name} knows no {' '.join(arguments)}")

    def recover(self):
        """Goes on, on a machine that has nothing, with what survives a disaster."""
        raise LabError(f"{self.name} knows no recovery")

    def before_restart(self):
        """What the system around the server would do."""

    def command(self):
        raise NotImplementedError

    def _launch(self, name, command):
        log = open(self.directory / f"{name}.log", "ab")
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def wait_ready(self):
        deadline = time.monotonic() + READY_S
        for port in self.ports:
            while True:
                try:
                    socket.create_connection((HOST_ADDRESS, port), 1).close()
                    break
                except OSError:
                    if self.process.poll() is not None:
                        raise LabError(f"{self.name} ended with status {self.process.returncode}:\n{self.log_tail()}")
                    if time.monotonic() > deadline:
                        raise LabError(f"{self.name} does not listen on port {port}:\n{self.log_tail()}")
                    time.sleep(0.01)

    def kill(self):
        """SIGKILL: no handler, no flush, no goodbye."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def stop(self):
        """A clean stop; returns the exit status."""
        if not self.alive():
            return self.process.returncode if self.process else None
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def log_tail(self, lines=30):
        tail = []
        for log in sorted(self.directory.glob("*.log")):
            text = log.read_text(errors="replace").splitlines()[-lines:]
            tail += [f"  {log.name}: {line}" for line in text]
        return "\n".join(tail)

    def panic(self, lines=40):
        """The first panic in its logs with what follows, or nothing."""
        for log in sorted(self.directory.glob("*.log")):
            text = log.read_text(errors="replace").splitlines()
            for number, line in enumerate(text):
                if re.search(r"panicked at|Assertion .* failed", line):
                    return "\n".join(f"  {log.name}: {line}" for line in text[number : number + lines])
        return None


class Firn(Server):
    """firn-edge with a directory as its store; `binary` is the program, `settings` extra lines of configuration."""

    name = "firn"

    def __init__(self, directory, binary, settings=""):
        super().__init__(directory)
        self.binary = str(pathlib.Path(binary).resolve())
        if not os.access(self.binary, os.X_OK):
            raise LabError(f"{binary} is not a program; build it with: cargo build --release -p firn-edge")
        self.settings = settings
        self.config = self.directory / "firn-edge.toml"

    def prepare(self):
        template = (LAB / "firn-edge.toml.in").read_text()
        self.config.write_text(
            template.replace("@DIRECTORY@", str(self.directory)).replace("@ADDRESS@", HOST_ADDRESS) + self.settings
        )
        (self.directory / "store").mkdir(exist_ok=True)
        done = subprocess.run(
            [self.binary, "format", "--config", self.config, "--phrase-file", self.directory / "phrase"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60,
        )
        (self.directory / "format.log").write_text(done.stdout)
        if done.returncode != 0:
            raise LabError(f"firn-edge format failed:\n{done.stdout}")

    def command(self):
        return [self.binary, "run", "--config", str(self.config)]

    def administer(self, arguments):
        """Runs a command of the program beside the running server; returns what it printed."""
        done = subprocess.run(
            [self.binary, "--config", self.config, *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600,
        )
        if done.returncode != 0:
            raise LabError(f"firn-edge {' '.join(arguments)} ends with status {done.returncode}: {done.stdout}")
        return done.stdout


    def recover(self):
        """Table, state and bucket are lost; a copy of the bucket and the recovery phrase are not."""
        self.kill()
        shutil.copytree(self.directory / "store", self.directory / "copied-store")
        for lost in ("store", "state"):
            shutil.rmtree(self.directory / lost)
        (self.directory / "table.redb").unlink()
        self.config.write_text(self.config.read_text().replace(f"{self.directory}/store", f"{self.directory}/copied-store"))
        said = self.administer(["recover", "--phrase-file", self.directory / "phrase", "--yes"])
        self.start()
        return said


class Junctions(Firn):
    """An edge of two volumes, of which one is shown in the other: to be read and written at one place, to be read at another."""

    export = "/files"

    def prepare(self):
        template = (LAB / "firn-edge.toml.in").read_text()
        nfs = template[template.index("[nfs]") : template.index("[[export]]")].replace("@ADDRESS@", HOST_ADDRESS)
        text = f'[edge]\nstate_directory = "{self.directory}/state"\n{nfs}'
        for volume in ("files", "projects"):
            text += f"""
[[volume]]
name = "{volume}"
store = "file://{self.directory}/store/{volume}"
table = "redb:{self.directory}/{volume}.redb"
"""
            (self.directory / "store" / volume).mkdir(parents=True)
        for path, volume, clients in (
            ("/projects", "projects", "clients"), ("/archive", "projects", "clients = []\nread_only_clients"), (self.export, "files", "clients"),
        ):
            text += f"""
[[export]]
path = "{path}"
volume = "{volume}"
squash = "none"
{clients} = ["192.168.77.0/24"]
"""
        for place, shown in (("/dept/projects", "/projects"), ("/archive", "/archive")):
            text += f"""
[[export.junction]]
path = "{place}"
export = "{shown}"
"""
        self.config.write_text(text)
        for volume in ("files", "projects"):
            self.administer(["--volume", volume, "format", "--phrase-file", str(self.directory / f"phrase-{volume}")])


class Disk(Server):
    """`firn-blockd dev`: a cluster and one virtual disk in a process, served over NBD; killed, all of it goes at once."""

    name = "disk"
    ports = (10809,)
    variables = {"PORT": "10809"}

    def __init__(self, directory, binary):
        super().__init__(directory)
        self.binary = str(pathlib.Path(binary).resolve())
        if not os.access(self.binary, os.X_OK):
            raise LabError(f"{binary} is not a program; build it with: cargo build --release -p firn-blockd")

    def command(self):
        return [
            self.binary, "dev", "--nodes", "3", "--node-size", "512MiB", "--size", "256MiB",
            "--directory", str(self.directory / "cluster"), "--nbd", f"tcp:{HOST_ADDRESS}:{self.ports[0]}",
        ]


class Tenant(Server):
    """`firn dev`, and a tenant with a disk in it; the job is what that tenant types on another machine."""

    name = "tenant"
    ports = (7400,)
    programs = ("firn", "firn-dev", "firn-blockd")

    def __init__(self, directory, programs):
        super().__init__(directory)
        self.built = pathlib.Path(programs).resolve()
        for name in self.programs:
            if not os.access(self.built / name, os.X_OK):
                raise LabError(f"{self.built / name} is not a program; build it with: cargo build --release -p {name}")

    def command(self):
        return [
            str(self.built / "firn-dev"), "--empty", "--directory", str(self.directory / "firn"),
            "--api", f"{HOST_ADDRESS}:{self.ports[0]}", "--nfs", "127.0.0.1:20490",
        ]

    def files(self):
        """What the tenant has on the other machine: programs, and the profile of who signed up here."""
        return [self.built / "firn", self.built / "firn-blockd", self.directory / "profile.json"]

    def start(self):
        super().start()
        mail = self.directory / "firn/api/mail"
        child = subprocess.Popen(
            [
                *self._firn(), "signup", "--server", f"https://{HOST_ADDRESS}:{self.ports[0]}",
                "--authority", str(self.directory / "firn/authority.pem"), "--email", "ada@one.example", "--name", "Ada",
                "--phrase-file", str(self.directory / "phrase"),
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        deadline = time.monotonic() + READY_S
        while not (letters := sorted(mail.glob("*")) if mail.is_dir() else []):
            if child.poll() is not None or time.monotonic() > deadline:
                child.kill()
                raise LabError(f"nobody signed up: {child.communicate()[0]}\n{self.log_tail()}")
            time.sleep(0.05)
        code = next(line for line in letters[-1].read_text().splitlines() if line.startswith("Code: "))
        said, _ = child.communicate(code.removeprefix("Code: ") + "\n", timeout=READY_S)
        if child.returncode != 0:
            raise LabError(f"nobody signed up: {said}")
        # Nodes may still be registering.
        while True:
            made = subprocess.run(
                [*self._firn(), "disk", "create", "data", "64MiB", "--replicas", "2", "--wait"],
                stdin=subprocess.DEVNULL, capture_output=True, text=True,
            )
            if made.returncode == 0:
                return
            if time.monotonic() > deadline:
                raise LabError(f"the disk is not made: {made.stdout}{made.stderr}\n{self.log_tail()}")
            time.sleep(0.5)

    def _firn(self):
        return [str(self.built / "firn"), "--profile", str(self.directory / "profile.json")]


class JoinedEdge(Tenant):
    """The same tenant with an office: one edge, a process of its own, that joined and serves two of the tenant's volumes here.

    The job is what the tenant types on a client of that edge. Of `homes` the tenant wanted no snapshots until then.
    """

    name = "joined-edge"
    programs = (*Tenant.programs, "firn-edge")
    volumes = ("projects", "homes")
    export = "/projects"

    def __init__(self, directory, programs):
        super().__init__(directory, programs)
        self.state, self.config, self.edge = self.directory / "edge", self.directory / "firn-edge.toml", None

    def files(self):
        return [*super().files(), self.directory / "phrase"]

    def start(self):
        super().start()
        phrase, secret = self.directory / "phrase", self.directory / "join-secret"
        for volume in self.volumes:
            self._types("volume", "create", volume, "--region", "local", "--phrase-file", phrase)
        self._types("snapshot", "policy", "homes", *(word for tier in ("last", "hourly", "daily", "weekly", "monthly") for word in (f"--{tier}", "0")))
        both = [word for volume in self.volumes for word in ("--volume", volume)]
        self._types("edge", "create", "office", *both, "--secret-file", secret)
        self._types(
            "edge", "join", "--server", f"https://{HOST_ADDRESS}:{self.ports[0]}", "--authority", self.directory / "firn/authority.pem",
            "--tenant", json.loads((self.directory / "profile.json").read_text())["tenant"], "--state", self.state, text=secret.read_text(),
        )
        self._types("edge", "approve", "office", "--phrase-file", phrase)
        text = f'[edge]\nstate_directory = "{self.state}"\n'
        for volume in self.volumes:
            (self.directory / "store" / volume).mkdir(parents=True)
            identity = json.loads(self._types("volume", "show", volume))["id"]
            text += f"""
[[volume]]
name = "{identity}"
store = "file://{self.directory}/store/{volume}"
anchor = "service"
[[export]]
path = "/{volume}"
volume = "{identity}"
clients = ["192.168.77.0/24"]
squash = "none"
"""
        self.config.write_text(text + f"""
[limits]
checkpoint_busy = "1 s"
checkpoint_trickle = "1 s"
[nfs]
listen = "{HOST_ADDRESS}"
mount_port = 20048
grace_seconds = 1
""")
        for volume in self.volumes:
            self.administer(["enrol", "--volume", json.loads(self._types("volume", "show", volume))["id"]])
        self._start_edge()

    def administer(self, arguments):
        """`kill`: the edge alone, which comes again. All else is a command of its program."""
        if arguments == ["kill"]:
            if self.edge.poll() is not None:
                raise LabError(f"the edge had already ended by itself:\n{self.log_tail()}")
            self.edge.kill()
            self.edge.wait()
            self._start_edge()
            return "it was killed and came again"
        return self._run([str(self.built / "firn-edge"), "--config", str(self.config), *arguments])

    def alive(self):
        return super().alive() and (self.edge is None or self.edge.poll() is None)

    def stop(self):
        """The edge first, and then what it speaks to."""
        status = 0
        if self.edge:
            self.edge.terminate()
            status = self.edge.wait(60)
            self.edge = None
        return status or super().stop()

    def _start_edge(self):
        self.edge = self._launch("edge", [str(self.built / "firn-edge"), "--config", str(self.config), "run"])
        for port in Server.ports:
            wait_for_port(HOST_ADDRESS, port, READY_S)

    def _types(self, *arguments, text=""):
        return self._run([*self._firn(), "--output", "json", *map(str, arguments)], text)

    @staticmethod
    def _run(command, text=""):
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=180)
        if done.returncode != 0:
            raise LabError(f"{' '.join(command)} ends with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout


class Ganesha(Server):
    """NFS-Ganesha of Debian with its back end on a local file system: the peer.

    It runs from the guest's root tree by chroot, in this namespace's view of it, with its own /run, state and logs;
    rpcbind and statd are started beside it, as on a host. They stay up when it is killed. While its grace period lasts
    it also holds back ordinary writes, so it has one only where locks are to be reclaimed.
    """

    name = "ganesha"
    stops_cleanly = False
    # noacl: its answers to the ACL side protocol make `cp -a` fail with EIO.
    mount_options = Server.mount_options + ",noacl"
    variables = {"COMPARE_IGNORES": "symlink-mtime", "FORGETS_REPLIES": "1"}

    def __init__(self, directory, exported=None, ports=(111, 20048, 2049), grace_s=0, synchronous_directories=False):
        super().__init__(directory)
        self.synchronous_directories = synchronous_directories
        self.grace_s = grace_s
        self.exported = pathlib.Path(exported or self.directory / "export")
        self.ports = ports
        self.beside = []

    def prepare(self):
        root = GUEST / "root"
        self.exported.mkdir(parents=True, exist_ok=True)
        self.exported.chmod(0o777)
        if self.synchronous_directories:
            # It answers CREATE, MKDIR, RENAME and REMOVE from the kernel's memory, though RFC 1813 (§4.8) wants them stable.
            # So ext4 is told to have them on disk when the system call returns; subdirectories inherit it.
            namespace.run("chattr", "+D", str(self.exported))
        (self.directory / "state").mkdir(exist_ok=True)
        for target in ("tmp", "run", "var/lib/nfs"):
            namespace.run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(root / target))
        for source, target in (("/proc", "proc"), ("/dev", "dev")):
            namespace.run("mount", "--rbind", source, str(root / target))
        # sm-notify insists on a name for the address that it speaks from; the guest knows the same name.
        (root / "run/hosts").write_text(f"127.0.0.1 localhost\n{HOST_ADDRESS} server\n")
        namespace.run("mount", "--bind", str(root / "run/hosts"), str(root / "etc/hosts"))
        for name, source in (("export", self.exported), ("state", self.directory / "state")):
            target = root / "run" / name
            target.mkdir()
            namespace.run("mount", "--bind", str(source), str(target))
        (root / "var/lib/nfs/sm").mkdir()
        (root / "var/lib/nfs/sm.bak").mkdir()
        (root / "var/lib/nfs/ganesha").mkdir()
        (root / "run/rpcbind").mkdir()
        (root / "run/ganesha").mkdir()
        (root / "run/ganesha.conf").write_text(self.configuration())
        chroot = ["chroot", str(root)]
        # rpcbind without -h: given an address, the one of Debian 12 dies of a double free.
        self.beside.append(self._launch("rpcbind", chroot + ["rpcbind", "-f", "-w"]))
        wait_for_port("127.0.0.1", 111)
        # Ganesha grants NLM locks only with a statd beside it.
        self.beside.append(self._launch("statd", chroot + ["rpc.statd", "-F", "--no-notify"]))

    def configuration(self):
        _, mount_port, nfs_port = self.ports
        grace = f"Grace_Period = {self.grace_s}; Lease_Lifetime = 5" if self.grace_s else "Graceless = true"
        return f"""
NFS_CORE_PARAM {{
  NFS_Port = {nfs_port}; MNT_Port = {mount_port}; NLM_Port = {nfs_port + 1}; Rquota_Port = {nfs_port + 2};
  Protocols = 3; Enable_UDP = false; mount_path_pseudo = true;
}}
NFSV4 {{ {grace}; RecoveryBackend = fs; RecoveryRoot = "/run/state"; }}
NFS_KRB5 {{ Active_krb5 = false; }}
EXPORT {{
  Export_Id = 1; Path = /run/export; Pseudo = /export; Access_Type = RW; Squash = No_Root_Squash;
  SecType = sys; Protocols = 3; Transports = TCP; PrivilegedPort = false; FSAL {{ Name = VFS; }}
}}
LOG {{ Default_Log_Level = EVENT; }}
"""

    def command(self):
        return ["chroot", str(GUEST / "root"), "ganesha.nfsd", "-F", "-f", "/run/ganesha.conf",
                "-L", "/run/state/ganesha.log", "-p", "/run/ganesha.pid"]

    def before_restart(self):
        # Clients reclaim their locks when they hear of a restart. On a host, that is a reboot and statd's to tell. It
        # has to be told first: when Ganesha starts, it has statd forget all hosts.
        command = ["chroot", str(GUEST / "root"), "sm-notify", "-d", "-f", "-v", "server"]
        self.beside.append(self._launch("sm-notify", command))
        time.sleep(0.5)

    def stop(self):
        status = super().stop()
        for process in self.beside:
            process.kill()
            process.wait()
        self.beside = []
        self.unmount()
        return status

    @staticmethod
    def unmount():
        for target in ("etc/hosts", "run/export", "run/state", "run", "var/lib/nfs", "tmp", "dev", "proc"):
            subprocess.run(["umount", "-R", "-l", GUEST / "root" / target], stderr=subprocess.DEVNULL)


def wait_for_port(address, port, seconds=10):
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((address, port), 1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise LabError(f"nothing listens on {address}:{port}")
            time.sleep(0.02)
