"""All of Firn as processes of its own: control plane, anchor, disk nodes, cleaners, an edge of two volumes; on emulators of a cloud.

    guest ──NFS──▶ firn-edge ──▶ proxy ──▶ S3                          customer's machines
    fio ──NBD──▶ firn-blockd (attached) ──▶ 3 × firn-blockd node
                                                         the operator's: firn-api, firn-anchor, nodes, 2 × firn-cleaner, each with a proxy before S3
"""

import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import ssl
import subprocess
import threading
import time
import urllib.request

from firnlab import HOST_ADDRESS, LAB, LabError
from firnlab.counting import CountingProxy

API, API_METRICS, ANCHOR = 7400, 7464, 8447
READY_S = 90
DOMAIN = "firn.lab"
NODES = 3
VOLUMES = ("files", "homes")
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "firntest", "AWS_SECRET_ACCESS_KEY": "firntestsecret", "AWS_REGION": "us-east-1"}


class Process:
    """A program that can be killed and started again; what it says goes to a log."""

    def __init__(self, world, name, command, ready, variables=None):
        self.log = world.directory / f"{name}.log"
        self.name, self.command, self.ready = name, [str(part) for part in command], ready
        self.environment = dict(os.environ, **CREDENTIALS, **(variables or {}))
        self.child = None

    def start(self):
        begins = self.log.stat().st_size if self.log.exists() else 0
        with open(self.log, "ab") as log:
            self.child = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment, start_new_session=True
            )
        deadline = time.monotonic() + READY_S
        while not re.search(self.ready, self.log.read_bytes()[begins:].decode(errors="replace")):
            if self.child.poll() is not None or time.monotonic() > deadline:
                raise LabError(f"{self.name} does not come up:\n{self.tail()}")
            time.sleep(0.05)

    def kill(self):
        if self.child.poll() is not None:
            raise LabError(f"{self.name} had ended by itself:\n{self.tail()}")
        self.child.kill()
        self.child.wait()

    def stop(self):
        if self.child is None or self.child.poll() is not None:
            return
        self.child.send_signal(signal.SIGTERM)
        status = self.child.wait(60)
        if status != 0:
            raise LabError(f"{self.name} ends with status {status}:\n{self.tail()}")

    def tail(self, lines=25):
        return "\n".join(f"  {self.name}: {line}" for line in self.log.read_text(errors="replace").splitlines()[-lines:])


class Person:
    """Somebody who types `firn`, and who asks the service by hand, counting each request."""

    def __init__(self, world, name):
        self.world, self.place = world, world.directory / name
        self.place.mkdir()
        # When each request was sent that had a token and was answered.
        self.name, self.asked, self.token = name, [], None
        self.lock = threading.Lock()

    def command(self, *arguments):
        return [str(self.world.programs / "firn"), "--output", "json", "--profile", str(self.place / "profile.json"), *map(str, arguments)]

    def types(self, *arguments, text=None):
        options = {"stdin": subprocess.DEVNULL} if text is None else {"input": text}
        done = subprocess.run(self.command(*arguments), capture_output=True, text=True, timeout=180, **options)
        if done.returncode != 0:
            raise LabError(f"firn {' '.join(map(str, arguments))} ends with {done.returncode}: {done.stdout}{done.stderr}")
        return json.loads(done.stdout) if done.stdout.strip().startswith(("{", "[")) else done.stdout

    def signs_up(self):
        mail, address = self.world.directory / "state/mail", f"{self.name}@one.example"
        before = set(mail.glob("*"))
        child = subprocess.Popen(
            self.command("signup", *self.world.server(), "--email", address, "--name", self.name, "--phrase-file", self.place / "phrase"),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        # One that was just made may be empty still; others may sign up at the same time.
        mine = rf"^To: {re.escape(address)}\n.*^Code: (.*?)\n"
        def letter():
            if child.poll() is not None:
                raise LabError(f"{self.name} is not signed up: {child.stdout.read()}")
            return next((found for path in set(mail.glob("*")) - before if (found := re.search(mine, path.read_text(), re.M | re.S))), None)

        code = wait_for("a letter with a code", letter)
        said, _ = child.communicate(code.group(1) + "\n", timeout=READY_S)
        if child.returncode != 0:
            raise LabError(f"{self.name} is not signed up: {said}")
        return self.knows_itself()

    def knows_itself(self):
        """From the profile that signing up or a recovery has left."""
        profile = json.loads((self.place / "profile.json").read_text())
        self.tenant, self.key = profile["tenant"], profile["api_key"]
        return self.tenant

    def asks(self, path):
        """GET of something of the tenant's. Counted is what had a token and was answered."""
        with self.lock:
            while True:
                if self.token is None:
                    _, said = self._send("POST", "tokens", {"api_key": self.key})
                    self.token = said["token"]
                status, said = self._send("GET", path)
                if status == 401:
                    self.token = None
                    continue
                self.asked.append(time.monotonic())
                if status != 200:
                    raise LabError(f"{path}: {status} {said}")
                return said

    def _send(self, method, path, body=None):
        context = ssl.create_default_context(cafile=str(self.world.authority))
        connection = http.client.HTTPSConnection("localhost", API, context=context, timeout=60)
        headers = {"content-type": "application/json"} if body else {}
        if body is None:
            headers["authorization"] = f"Bearer {self.token}"
        try:
            connection.request(method, f"/v1/tenants/{self.tenant}/{path}", json.dumps(body) if body else None, headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"null")
        finally:
            connection.close()


def id_of(made):
    return made["id"] if "id" in made else made["node"]["id"] if isinstance(made["node"], dict) else made["node"]


def wait_for(what, ask, limit_s=READY_S, pause_s=0.2):
    deadline = time.monotonic() + limit_s
    while True:
        found = ask()
        if found:
            return found
        if time.monotonic() > deadline:
            raise LabError(f"{what}: not in {limit_s} s")
        time.sleep(pause_s)


class World:
    def __init__(self, directory, programs, names=VOLUMES):
        """`names`: of the customer's volumes, which `volumes` gives ids once they are made."""
        self.directory, self.programs, self.names = directory, programs, names
        self.processes, self.volumes = {}, {}
        self.lab = dict(os.environ, FIRN_LAB_RUN=str(directory / "lab"))

    # The cloud.

    def begin_cloud(self):
        said = subprocess.run([LAB / "cloud/start", "dynamodb", "versitygw"], env=self.lab, stdout=subprocess.PIPE, text=True, check=True).stdout
        self.cloud = dict(line.split("=", 1) for line in said.replace("'", "").split())
        # A directory of the server is a bucket.
        self.bucket = self.directory / "lab/cloud/versitygw/data/buckets/firn"
        self.bucket.mkdir()
        proxy = lambda: CountingProxy(self.cloud["FIRN_TEST_VERSITYGW"])
        self.of_edge, self.of_cleaner = proxy(), {volume: proxy() for volume in self.names}

    def end(self):
        for process in self.processes.values():
            if process.child and process.child.poll() is None:
                process.child.kill()
                process.child.wait()
        subprocess.run([LAB / "cloud/stop", "dynamodb", "versitygw"], env=self.lab, check=False)

    def table(self, name):
        return f"dynamodb://{name}?region=us-east-1&endpoint={self.cloud['FIRN_TEST_DYNAMODB']}&create=true"

    def store(self, volume, proxy):
        return f"s3://firn/{volume}?region=us-east-1&endpoint={proxy.address}"

    def log_bytes(self, volume):
        """What lies in the store of a volume's log, by its own files."""
        files = (self.bucket / volume).glob("*/log/**/*")
        return sum(file.stat().st_size for file in files if file.is_file())

    # The operator's.

    def add(self, name, command, ready, variables=None):
        self.processes[name] = Process(self, name, command, ready, variables)
        self.processes[name].start()

    def run(self, program, *arguments, text=None):
        done = subprocess.run(
            [str(self.programs / program), *map(str, arguments)], env=dict(os.environ, **CREDENTIALS), capture_output=True, text=True, timeout=180,
            **({"stdin": subprocess.DEVNULL} if text is None else {"input": text}),
        )
        if done.returncode != 0:
            raise LabError(f"{program} {' '.join(map(str, arguments))} ends with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def server(self):
        return ["--server", f"https://localhost:{API}", "--authority", self.authority]

    def begin_service(self, nodes=NODES, options=()):
        """With so many disk nodes, and with these options of `firn-api serve` besides."""
        place = self.directory
        self.run("firn-api", "new-secret", place / "secret")
        self.run("firn-api", "certify", "anchor", "--directory", place / "certified", "--secret", place / "secret")
        self.authority = place / "certified/authority.pem"
        serve = [
            self.programs / "firn-api", "serve", "--listen", f"127.0.0.1:{API}", "--table", self.table("control"), "--anchor-table", self.table("roots"),
            "--state", place / "state", "--secret", place / "secret", "--issuer", f"https://localhost:{API}",
            "--listen-metrics", f"127.0.0.1:{API_METRICS}", "--tenant-rate", "1000", "--tenant-burst", "5000", "--stranger-rate", "1000", "--stranger-burst", "5000", *options,
        ]
        self.add("api", serve, "listening on")
        self.operator = Person(self, "operator")
        fleet = self.fleet = self.operator.signs_up()
        cluster = place / "cluster.toml"
        self.run("firn-blockd", "secret", place / "cluster.secret")
        cluster.write_text(
            f'[cluster]\nname = "main"\ntable = "{self.table("disks")}"\nsecret = "{place}/cluster.secret"\n'
            f'[client]\ntenant = "{fleet}"\nstate_directory = "{place}/cluster-client"\n'
        )
        self.run("firn-blockd", "--config", cluster, "init", "--rows", "16")
        self.processes["api"].stop()
        self.add("api", [*serve, "--cluster", "main", "--cluster-table", self.table("disks"), "--fleet-tenant", fleet], "listening on")
        for number in range(1, nodes + 1):
            self.begin_node(number)

    def sign_up_customer(self):
        self.customer = Person(self, "customer")
        self.customer.signs_up()

    def begin_node(self, number):
        name, fleet, port = f"node-{number}", self.fleet, 7500 + number
        place = self.directory / name
        (place / "identity").mkdir(parents=True)
        made = self.operator.types("node", "create", name, "--failure-domain", name, "--secret-file", place / "identity/join-secret")
        shutil.copy(self.authority, place / "identity/server-authority.pem")
        (place / "firn-blockd.toml").write_text(
            f'[cluster]\nname = "main"\ntable = "{self.table("disks")}"\n'
            f'[service]\nserver = "https://localhost:{API}"\ntenant = "{fleet}"\nnode = "{id_of(made)}"\n'
            f'[node]\ndirectory = "{place}"\nsize = "512MiB"\nlisten = "127.0.0.1:{port}"\ndomain = "{name}"\nmetrics = "127.0.0.1:{port + 100}"\n'
            # One that is killed is back long before others would copy what it has.
            "dead_after_seconds = 600\n"
        )
        self.add(name, [self.programs / "firn-blockd", "--config", place / "firn-blockd.toml", "node"], "serves at")
        self.processes[name].metrics = f"http://127.0.0.1:{port + 100}/metrics"

    def unrecorded(self):
        """Requests of customers that the API has counted and not written down."""
        text = urllib.request.urlopen(f"http://127.0.0.1:{API_METRICS}/metrics", timeout=30).read().decode()
        return int(re.search(r"^firn_api_unrecorded_operations (\d+)$", text, re.M).group(1))

    def frames(self, name):
        """Frames that came to a node, and that it refused, since its process began: by operation, but what only opens a connection."""
        text = urllib.request.urlopen(self.processes[name].metrics, timeout=30).read().decode()
        operations = {
            operation: int(count)
            for operation, count in re.findall(r'^firn_blockd_operations_total\{operation="(\w+)"\} (\d+)$', text, re.M)
            if operation not in ("hello", "authenticate")
        }
        copied = int(re.search(r"^firn_blockd_copied_blocks_total (\d+)$", text, re.M).group(1))
        refused = int(re.search(r"^firn_blockd_refused_total (\d+)$", text, re.M).group(1))
        return operations, refused, copied

    def begin_anchor(self):
        """The anchor as a process, for the cleaners; with an authority of its own."""
        place = self.directory / "anchor"
        place.mkdir()
        openssl = lambda *arguments: subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, cwd=place)
        openssl("req", "-x509", "-newkey", "ed25519", "-nodes", "-keyout", "ca.key", "-out", "authority.pem", "-days", "2", "-subj", "/CN=lab")
        for name in ("anchor", "cleaner"):
            (place / f"{name}.cnf").write_text(
                f"subjectAltName=URI:spiffe://{DOMAIN}/service/{name},DNS:localhost\nextendedKeyUsage=serverAuth,clientAuth\nbasicConstraints=CA:FALSE\n"
            )
            openssl("req", "-newkey", "ed25519", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
            openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "authority.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
                    "-extfile", f"{name}.cnf", "-out", f"{name}.crt")
            (place / f"{name}.pem").write_text((place / f"{name}.key").read_text() + (place / f"{name}.crt").read_text())
        grants = [f'[[grant]]\nname = "spiffe://{DOMAIN}/service/cleaner"\nvolume = "{self.place_of(volume)}"\nrole = "cleaner"\n' for volume in self.names]
        (place / "grants.toml").write_text("".join(grants))
        self.add("anchor", [
            self.programs / "firn-anchor", "--listen", f"127.0.0.1:{ANCHOR}", "--table", self.table("roots").replace("&create=true", ""),
            "--identity", place / "anchor.pem", "--authority", place / "authority.pem", "--grants", place / "grants.toml", "--directory", place,
        ], "listens on")

    def begin_cleaners(self):
        for volume in self.names:
            config = self.directory / f"cleaner-{volume}.toml"
            family = next((self.bucket / volume).iterdir()).name
            config.write_text(
                f'family = "{family}"\nstore = "{self.store(volume, self.of_cleaner[volume])}"\nanchor = "https://localhost:{ANCHOR}/{self.place_of(volume)}"\n'
                f'anchor_identity = "{self.directory}/anchor/cleaner.pem"\nanchor_authority = "{self.directory}/anchor/authority.pem"\n'
                "[limits]\ngrace_seconds = 1\n"
            )
            self.add(f"cleaner-{volume}", [self.programs / "firn-cleaner", "--config", config, "run", "--every", "2"], "")

    # The customer's.

    def place_of(self, volume):
        return f"{self.customer.tenant}/{self.volumes[volume]}"

    def begin_edge(self):
        ada, place = self.customer, self.directory / "edge"
        place.mkdir()
        phrase = ada.place / "phrase"
        text = f'[edge]\nstate_directory = "{place}"\n'
        for volume in self.names:
            made = ada.types("volume", "create", volume, "--region", "eu", "--phrase-file", phrase)
            self.volumes[volume] = made["id"]
            secret, state = ada.place / f"join-{volume}", place / volume
            ada.types("edge", "create", f"office-{volume}", "--volume", volume, "--secret-file", secret)
            ada.types("edge", "join", *self.server(), "--tenant", ada.tenant, "--state", state, text=secret.read_text())
            ada.types("edge", "approve", f"office-{volume}", "--phrase-file", phrase)
            text += f"""
[[volume]]
name = "{volume}"
edge_name = "office"
store = "{self.store(volume, self.of_edge)}"
anchor = "service"
state_directory = "{state}"
[[export]]
path = "/{volume}"
volume = "{volume}"
clients = ["192.168.77.0/24", "127.0.0.0/8"]
squash = "none"
require_privileged_port = false
"""
        self.config = self.directory / "firn-edge.toml"
        self.config.write_text(text + f"""
[limits]
checkpoint_busy = "1 s"
checkpoint_trickle = "1 s"
[nfs]
listen = "{HOST_ADDRESS}"
mount_port = 20048
grace_seconds = 1
[log]
level = "warn"
""")
        for volume in self.names:
            self.edge("enrol", "--volume", volume)
        self.add("edge", [self.programs / "firn-edge", "--config", self.config, "run"], "serving on")

    def edge(self, *arguments):
        return self.run("firn-edge", "--config", self.config, *arguments)

    def begin_disk(self):
        ada = self.customer
        ada.types("disk", "create", "data", "64MiB", "--replicas", "3", "--wait")
        self.disk = ada.types("disk", "show", "data")["id"]
        command = ada.command("disk", "attach", "data")
        self.add("disk", command, "is served at|nbd")
        self.nbd = f"nbd+unix:///{self.disk}?socket={ada.place}/disks/{self.disk}.sock"
        wait_for("the disk is served", lambda: subprocess.run(["nbdinfo", "--size", self.nbd], capture_output=True).returncode == 0)
        self.load = None

    def begin_load(self):
        log = open(self.directory / "fio.log", "ab")
        self.load = subprocess.Popen(
            ["fio", "--name=mixture", "--ioengine=nbd", f"--uri={self.nbd}", "--thread", "--rw=randrw", "--bs=16k", "--size=48m", "--iodepth=4",
             "--rate_iops=40,40", "--time_based", "--runtime=100000", "--fsync=20"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )

    def pause_load(self):
        """Nothing new is asked of the disk, and what was asked is answered."""
        os.killpg(self.load.pid, signal.SIGSTOP)
        before = None
        while (now := {name: self.frames(name) for name in self.nodes()}) != before:
            before = now
            time.sleep(1)
        return now

    def go_on_with_load(self):
        if self.load.poll() is not None:
            raise LabError("fio ended: " + (self.directory / "fio.log").read_text()[-2000:])
        os.killpg(self.load.pid, signal.SIGCONT)

    def end_load(self):
        os.killpg(self.load.pid, signal.SIGCONT)
        os.killpg(self.load.pid, signal.SIGKILL)
        self.load.wait()

    def nodes(self):
        return [f"node-{number}" for number in range(1, NODES + 1)]

    # What the tables hold.

    def items(self, table, partition):
        return self.ask_table(
            "Query", TableName=table, ConsistentRead=True, KeyConditionExpression="#p = :p",
            ExpressionAttributeNames={"#p": "partition"}, ExpressionAttributeValues={":p": {"S": partition}},
        )["Items"]

    def ask_table(self, action, **body):
        request = urllib.request.Request(self.cloud["FIRN_TEST_DYNAMODB"], data=json.dumps(body).encode(), headers={
            "Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"DynamoDB_20120810.{action}",
            "Authorization": "AWS4-HMAC-SHA256 Credential=firntest/20260101/us-east-1/dynamodb/aws4_request, SignedHeaders=host, Signature=0",
        })
        return json.loads(urllib.request.urlopen(request, timeout=60).read())
