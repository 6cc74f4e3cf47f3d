"""An office that is opened as docs/install.md says: one script from whoever is logged in, run on an empty machine beside the packages."""

from firnlab import LabError
from story import credentials
from world import wait_for

INSTALL_S = 600
# A look costs the machine a tenth of a second: it has one processor.
PAUSE_S = 2
# nolock: the kernel's client would tell the port mapper of this machine that its own lock manager is the edge's.
MOUNT = "mkdir -p /mnt/firn && mount -t nfs -o vers=3,hard,nolock localhost:/{0} /mnt/firn"
# Thirty files of 300,000 bytes that cannot be compressed; what they must be stays on the machine's own disk.
TREE = "set -e; mkdir -p /mnt/firn/{0} /tmp/{0}; for n in $(seq 30); do head -c 300000 /dev/urandom > /tmp/{0}/$n; cp /tmp/{0}/$n /mnt/firn/{0}/$n; done; sync -f /mnt/firn"
TREE_BYTES = 30 * 300_000
SAME = "diff -r /tmp/{0} /mnt/firn/{1}"


class Office:
    """`who` is at the desk and logged in."""

    def __init__(self, story, who, name, volume):
        self.story, self.who, self.name, self.volume = story, who, name, volume
        self.machine = story.machine()

    def invites(self):
        """The script for its machine."""
        secret = self.who.place / f"join-{self.name}"
        made = self.who.types(
            "edge", "install", self.name, "--volume", self.volume, "--clients", "127.0.0.0/8", "--packages", "/tmp/job",
            "--store", f"{self.volume}={self.story.store(self.volume)}", "--credentials", "environment", "--secret-file", secret,
        )
        self.machine.puts("/tmp/job/install-office.sh", made["script"])
        self.machine.puts("/tmp/job/join-secret", secret.read_text())
        self.machine.puts("/etc/firn/credentials", credentials())

    def runs_the_script(self):
        """It goes on beside what is typed next."""
        self.machine.types("cd /tmp/job; rm -f install.status; (sh install-office.sh < join-secret; echo $? > install.status) > install.log 2>&1 &")

    def approves(self, phrase):
        """Once its machine has joined, which takes a while; what is refused then is refused."""

        def approved():
            status, said = self.machine.tries("cat /tmp/job/install.status 2> /dev/null && tail -n 20 /tmp/job/install.log")
            if status == 0:
                raise LabError(f"the script ended before the edge was approved: {said}")
            try:
                return self.who.types("edge", "approve", self.name, "--phrase-file", phrase)
            except LabError as error:
                if "ends with 6" not in str(error):
                    raise
                return None

        return wait_for("the machine joins", approved, INSTALL_S, PAUSE_S)

    def script_ended(self):
        """Its status, and what it said."""
        self.machine.types("until [ -e /tmp/job/install.status ]; do sleep 1; done", INSTALL_S)
        said = self.machine.types("cat /tmp/job/install.status /tmp/job/install.log")
        status, _, log = said.partition("\n")
        return int(status), log

    def opens(self, phrase):
        """From an empty machine to a mounted client."""
        self.invites()
        self.runs_the_script()
        self.approves(phrase)
        status, said = self.script_ended()
        if status != 0:
            raise LabError(f"the script ends with {status}: {said[-3000:]}")
        self.mounts()

    def mounts(self):
        self.machine.types(MOUNT.format(self.volume))

    def edge(self, *arguments):
        """A command to the running edge, typed on its machine."""
        return self.machine.types("runuser -u firn -- firn-edge " + " ".join(arguments), 300)

    def without_the_edge(self, *arguments):
        """One that opens the store itself, as docs/operations.md types it."""
        return self.machine.types("systemd-run -q --wait --pipe -p User=firn -p EnvironmentFile=/etc/firn/credentials firn-edge " + " ".join(arguments), 300)

    def finds_all_whole(self):
        """Everything committed is read from the store and checked."""
        said = self.edge("verify")
        self.story.holds("everything in the bucket is whole", any(line.startswith("whole") for line in said.splitlines()), said)

    def starts_cold(self):
        """The edge starts without a cache, and the client has none: what is read comes from the store."""
        self.machine.types(
            "umount /mnt/firn && systemctl stop firn-edge && rm -rf $(find /var/lib/firn -type d '(' -name cache -o -name unconfirmed ')') && systemctl start firn-edge"
        )
        self.mounts()

    def pid(self):
        return int(self.machine.types("systemctl show --value --property=MainPID firn-edge.service"))
