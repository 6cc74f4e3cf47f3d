"""An appliance: its disk image is made, starts from firmware to edge, joins by a stick that is plugged in, loses its power, and goes on."""

from firnlab import LabError
from image import Appliance, make_image
from office import SAME, TREE
from story import credentials
from world import wait_for

START_S = 600
JOIN_S = 900
PAUSE_S = 2
DISK_GIB = 8
MOUNT = "mkdir -p /mnt/firn && mount -t nfs -o vers=3,hard,nolock {0}:/files /mnt/firn"


def play(story):
    world = story.world
    with story.step("the region is up"):
        story.begin_region()
        world.sign_up_customer()
        ada = world.customer
        phrase = ada.place / "phrase"
        world.volumes["files"] = ada.types("volume", "create", "files", "--region", "eu", "--phrase-file", phrase)["id"]
    with story.step("the image is made"):
        image = make_image(story)
        story.holds(f"a disk of {image.stat().st_size >> 20} MiB, {image.stat().st_blocks >> 11} of them used", True)
    with story.step("it starts"):
        appliance = Appliance(story, image, DISK_GIB)
        wait_for("the screen", lambda: appliance.shows("Not joined. On any machine where you are logged in"), START_S, PAUSE_S)
        story.holds("its screen says what to do", appliance.shows("plug it in"), appliance.tail())
    with story.step("a stick is plugged in"):
        secret = ada.place / "join-secret"
        made = ada.types(
            "edge", "install", "berlin", "--volume", "files", "--clients", "192.168.77.0/24", "--store", f"files={story.store('files')}",
            "--credentials", "environment", "--secret-file", secret,
        )
        files = {"install-berlin.sh": made["script"], "join-secret": secret.read_text(), "credentials": credentials(), "hostname": "berlin\n"}
        if story.breaks("stick-without-a-secret"):
            del files["join-secret"]
        appliance.plugs_in(files)
        wait_for("an administrator gets in by the key on the stick", appliance.answers, JOIN_S, PAUSE_S)
        appliance.lets_in(story.ports)

        def approved():
            if appliance.shows("there is no join-secret"):
                raise LabError("the screen says that the stick has no join-secret")
            try:
                return ada.types("edge", "approve", "berlin", "--phrase-file", phrase)
            except LabError as error:
                if "ends with 6" not in str(error):
                    raise
                return None

        wait_for("the appliance joins", approved, JOIN_S, PAUSE_S)
        wait_for("it serves", lambda: appliance.tries("test -e /var/lib/firn-appliance/joined && systemctl is-active firn-edge")[0] == 0, JOIN_S, PAUSE_S)
        wait_for("the screen of an edge", lambda: appliance.shows("Firn appliance berlin") and appliance.shows("files ("), 60, PAUSE_S)
        story.holds("its screen says how the edge is", not appliance.shows("does not serve"), appliance.tail())
    with story.step("an office works"):
        client = story.machine()
        client.types(MOUNT.format(appliance.address))
        client.types(TREE.format("kept"))
        story.holds("thirty files under a kernel's client are synced (level 1)", True)
        size_kib = int(appliance.types("df --output=size -k / | tail -n 1"))
        story.holds(f"the disk's {size_kib >> 10} MiB are the appliance's", size_kib > (DISK_GIB - 1) << 20)
        said = appliance.types("unattended-upgrade --dry-run; systemctl is-enabled apt-daily-upgrade.timer unattended-upgrades")
        story.holds("security updates come by themselves", said.split()[-2:] == ["enabled", "enabled"], said)
        failed = appliance.types("systemctl list-units --failed --plain --no-legend")
        story.holds("no unit has failed", not failed.strip(), failed)
        story.holds("nobody gets in by a password", "passwordauthentication no" in appliance.types("sshd -T").lower() and appliance.types("passwd -S root").split()[1] == "L")
    with story.step("the power goes"):
        client.types("echo before > /mnt/firn/last && sync -f /mnt/firn")
        appliance.loses_power()
        appliance.starts()
        wait_for("it is up again", appliance.answers, START_S, PAUSE_S)
        appliance.lets_in(story.ports)
        client.types("grep -qx before /mnt/firn/last && echo after > /mnt/firn/last && sync -f /mnt/firn", 600)
        story.holds("the client never noticed more than a wait", not client.types(SAME.format("kept", "kept")))
        story.holds("it joined once", appliance.types("journalctl --unit firn-appliance-join --output cat --boot").strip() in ("", "-- No entries --"))
