"""A customer from the first letter to the bill: everything that Firn sells, used once, on one office's machine."""

import base64
import contextlib
import random

from firnlab import LabError
from ledger import account_in_table, charged, commits_in_table, month, usage
from office import SAME, TREE, TREE_BYTES, Office
from world import wait_for

DISK_MIB = 64
# crates/usage/src/meter.rs
ROOT_COMMITS = "1"


def play(story):
    world = story.world
    with story.step("the region is up"):
        story.begin_region()
    with story.step("sign up"):
        world.sign_up_customer()
        ada = world.customer
        phrase = ada.place / "phrase"
        story.holds("a letter, a phrase, and the owner is in", ada.types("whoami")["role"] == "owner")
    with story.step("provision"):
        volume = ada.types("volume", "create", "files", "--region", "eu", "--phrase-file", phrase)
        world.volumes["files"] = volume["id"]
        story.holds("the volume is there, its keys wrapped for the phrase", volume["key_ring_generation"] == 1, volume)
    with story.step("join from the package"):
        office = Office(story, ada, "berlin", "files")
        office.opens(phrase)
        story.holds("the kernel of the office's machine has it mounted", office.machine.tries("mountpoint -q /mnt/firn")[0] == 0)
    machine = office.machine
    with story.step("work"):
        for tree in ("kept", "rewritten"):
            machine.types(TREE.format(tree))
        office.edge("sync")
        story.holds("sixty files are in the cloud", commits_in_table(world, "files") > 0 and world.log_bytes("files") >= 2 * TREE_BYTES)
    with story.step("crash"):
        died = office.pid()
        machine.types(f"echo before > /mnt/firn/last && sync -f /mnt/firn && kill -9 {died}")
        machine.types("cmp /tmp/kept/1 /mnt/firn/kept/1 && grep -qx before /mnt/firn/last && echo after > /mnt/firn/last && sync -f /mnt/firn")
        story.holds("another process serves, and the client never noticed", office.pid() not in (0, died))
        for tree in ("kept", "rewritten"):
            story.holds(f"every acknowledged byte of {tree} is there", not machine.types(SAME.format(tree, tree)))
    with story.step("clean"):
        for _ in range(2):
            machine.types(TREE.format("rewritten"))
            office.edge("sync")
        full = world.log_bytes("files")
        story.holds(f"of {full} bytes in the bucket the half is garbage", full > 4 * TREE_BYTES)
        if not story.breaks("cleaner-never-runs"):
            world.begin_anchor()
            world.begin_cleaners()
        # Three generations of one tree and one of the other were written; two trees are needed.
        wait_for("space comes back", lambda: world.log_bytes("files") < 3 * TREE_BYTES)
        story.holds(f"{full} bytes in the bucket became {world.log_bytes('files')}", True)
        for tree in ("kept", "rewritten"):
            story.holds(f"{tree} is what it was", not machine.types(SAME.format(tree, tree)))
    with story.step("snapshot"):
        office.edge("snapshot", "create", "monday")
        machine.types("rm -r /tmp/kept/1 /mnt/firn/kept/1 && head -c 300000 /dev/urandom > /mnt/firn/kept/2 && sync -f /mnt/firn")
        office.edge("snapshot", "create", "tuesday")
        listed = office.edge("snapshot", "list")
        story.holds("both are listed", "monday" in listed and "tuesday" in listed, listed)
    with story.step("restore"):
        day = "tuesday" if story.breaks("snapshot-of-another-time") else "monday"
        office.edge("restore", day, "/kept", "--to", "/restored")
        # What was deleted since is what the other tree of this machine still has: all of its files but one.
        status, said = machine.tries("test $(ls /mnt/firn/restored | wc -l) = 30 && test -e /mnt/firn/restored/1 && for n in $(seq 2 30); do cmp /tmp/kept/$n /mnt/firn/restored/$n || exit 1; done")
        story.holds("monday's tree is beside today's, the deleted file and the spoilt one whole", status == 0, said)
    with story.step("disk attach"):
        a_disk(story, ada, machine)
    with story.step("bill"):
        the_bill(story, ada, office)
    with story.step("the end of the day"):
        office.finds_all_whole()
        ada.types("audit", "verify")
        story.holds("the audit chain is whole", True)
        machine.types("umount /mnt/firn && systemctl stop firn-edge")
        story.holds("the edge ends well", machine.tries("systemctl is-failed -q firn-edge")[0] != 0)


def a_disk(story, ada, machine):
    """A file system on the kernel's own device, given back and attached anew."""
    ada.types("disk", "create", "data", f"{DISK_MIB}MiB", "--replicas", "3", "--wait")
    # Who works on the machine is logged in there.
    machine.puts("/root/ada/profile.json", (ada.place / "profile.json").read_text())
    machine.types("apt-get install -q -y --no-install-recommends /tmp/job/firn-blockd_*.deb < /dev/null && modprobe nbd nbds_max=1", 300)
    firn = "firn --profile /root/ada/profile.json"

    def attach():
        machine.types(f"(exec setsid {firn} disk attach data --device /dev/nbd0) > /tmp/job/attach.log 2>&1 &")
        wait_for("the disk is attached", lambda: machine.tries("grep -q 'is served at' /tmp/job/attach.log")[0] == 0, pause_s=1)

    attach()
    size = int(machine.types("blockdev --getsize64 /dev/nbd0"))
    story.holds(f"the kernel has a device of {DISK_MIB} MiB", size == DISK_MIB << 20, size)
    machine.types("mke2fs -q -t ext4 /dev/nbd0 && mkdir /mnt/data && mount /dev/nbd0 /mnt/data && cp -r /tmp/kept /mnt/data/ && umount /mnt/data", 300)
    ada.types("disk", "detach", "data")
    wait_for("the device is free", lambda: machine.types("blockdev --getsize64 /dev/nbd0").strip() == "0", pause_s=1)
    attach()
    said = machine.types("e2fsck -fn /dev/nbd0 && mount -o ro /dev/nbd0 /mnt/data && diff -r /tmp/kept /mnt/data/kept && umount /mnt/data", 300)
    story.holds("its file system is whole after a detach, and holds what was written", "clean" in said or "files" in said, said)
    ada.types("disk", "detach", "data")


def the_bill(story, ada, office):
    """What is charged is what the tables say was done; the invoice is the sum of the hours."""
    world = story.world
    resource = f"volume/{world.volumes['files']}"
    cleaner = world.processes["cleaner-files"].child
    cleaner.terminate()
    cleaner.wait()
    if story.breaks("bill-counts-twice"):
        wait_for("something is in the ledger", lambda: charged(world, "root-commits", resource) > 0)
        count_a_commit_twice(world, resource)

    def settled(of_table, meter):
        def ask():
            table = of_table()
            billed = charged(world, meter, resource)
            return (table, billed) if table == billed == of_table() else None

        with contextlib.suppress(LabError):
            wait_for("it is settled", ask, 60)
        return of_table(), charged(world, meter, resource)

    table, billed = settled(lambda: commits_in_table(world, "files"), "root-commits")
    story.holds(f"{billed} root-commits are charged, {table} are in the table of roots", table == billed)
    noted, billed = settled(lambda: account_in_table(world, "files")[0], "cleaner-operations")
    story.holds(f"{billed} cleaner-operations are charged, {noted} are in the cleaner's account", noted == billed > 0)
    # Written thrice; what the file system adds comes on top.
    passed = 3 * 29 * 300_000
    wait_for("the disk's bytes are charged", lambda: charged(world, "node-bytes") >= passed)

    def invoiced():
        lines = {}
        for line in ada.types("invoice", "show")["lines"]:
            if line.get("meter"):
                lines[line["meter"]] = lines.get(line["meter"], 0) + int(line["quantity"])
        hours = {}
        for (meter, _, standing), quantity in usage(world).items():
            if standing == "observed":
                hours[meter] = hours.get(meter, 0) + quantity
        # Of an hour's bytes there is too little to charge in these minutes.
        meters = ("root-commits", "cleaner-operations", "node-operations", "node-bytes")
        return all(lines.get(meter, 0) == hours.get(meter, 0) > 0 for meter in meters)

    wait_for("the invoice is the sum of the hours", invoiced, 60)
    story.holds(f"the invoice of {month()} is the sum of its hours, line by line", True)


def count_a_commit_twice(world, resource):
    """On purpose: in the hour that the ledger has (crates/billing/src/hours.rs), one commit of the volume once more."""
    for item in world.items("control", f"billing/hours/{world.customer.tenant}"):
        lines = base64.b64decode(item["value"]["B"]).decode().splitlines()
        for at, line in enumerate(lines):
            of, meter, role, quantity, records = (line.split("\t") + [""] * 5)[:5]
            if (of, meter, role) == (resource, ROOT_COMMITS, "o"):
                lines[at] = "\t".join((of, meter, role, str(int(quantity) + 1), str(int(records) + 1)))
                item["value"]["B"] = base64.b64encode("".join(line + "\n" for line in lines).encode()).decode()
                item["version"]["N"] = str(random.getrandbits(62))
                world.ask_table("PutItem", TableName="control", Item=item)
                return
    raise LabError("no hour has a commit of this volume")
