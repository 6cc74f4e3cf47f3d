"""An office burns down: its edge is lost with its disk, and so is the owner's notebook. There is the bucket, the service, and the phrase on paper."""

import re
import shutil
import subprocess

from firnlab import LabError
from ledger import commits_in_table
from office import SAME, TREE, Office
from world import Person, wait_for


def play(story):
    world = story.world
    with story.step("the region is up"):
        story.begin_region()
    with story.step("an office works"):
        world.sign_up_customer()
        ada = world.customer
        phrase = ada.place / "phrase"
        world.volumes["files"] = ada.types("volume", "create", "files", "--region", "eu", "--phrase-file", phrase)["id"]
        berlin = Office(story, ada, "berlin", "files")
        berlin.opens(phrase)
        berlin.machine.types(TREE.format("kept"))
        berlin.edge("sync")
        sums = berlin.machine.types("cd /tmp/kept && md5sum *")
        committed = commits_in_table(world, "files")
        story.holds("thirty files are in the cloud (level 2)", committed > 0)
    with story.step("it is lost"):
        # What the machine had acknowledged and not committed (level 1) is on its disk; here it had nothing more.
        berlin.machine.is_lost()
        paper = phrase.read_text()
        shutil.rmtree(ada.place)
        story.holds("machine, disk, profile and keys are gone", not ada.place.exists())
    with story.step("the owner is let in again by the phrase"):
        ada = let_in_again(world, paper)
        phrase = ada.place / "phrase"
        story.holds("as the owner of the same tenant", ada.types("whoami")["tenant"] == world.customer.tenant)
        world.customer = ada
        edges = ada.types("edge", "list")
        story.holds("who still sees the edge that is lost", [edge["name"] for edge in edges] == ["berlin"], edges)
        ada.types("edge", "remove", "berlin", "--yes", "--phrase-file", phrase)
    with story.step("a new machine joins"):
        potsdam = Office(story, ada, "potsdam", "files")
        potsdam.invites()
        potsdam.runs_the_script()
        if story.breaks("edge-with-a-wrong-phrase"):
            phrase = another_phrase(story)
        potsdam.approves(phrase)
        status, said = potsdam.script_ended()
        story.holds("the script stops and says whose the volume is", status != 0 and "berlin" in said, said)
    with story.step("it takes the volume over"):
        said = potsdam.without_the_edge("takeover", "--force")
        story.holds("from the edge that is lost", "Taken over from berlin" in said, said)
        potsdam.runs_the_script()
        status, said = potsdam.script_ended()
        story.holds("run again, the script goes through", status == 0, said)
        potsdam.mounts()
    with story.step("everything is there"):
        story.holds("every file that was in the cloud, byte for byte", potsdam.machine.types("cd /mnt/firn/kept && md5sum *") == sums)
        potsdam.finds_all_whole()
        potsdam.machine.types(TREE.format("later"))
        potsdam.edge("sync")
        wait_for("the office commits again", lambda: commits_in_table(world, "files") > committed)
        potsdam.starts_cold()
        story.holds("what is written from now on, too, from the store", not potsdam.machine.types(SAME.format("later", "later")))


def let_in_again(world, paper):
    """Somebody with nothing but paper and the owner's mailbox."""
    ada = Person(world, "ada-again")
    (ada.place / "phrase").write_text(paper)
    mail = world.directory / "state/mail"
    before = set(mail.glob("*"))
    child = subprocess.Popen(
        ada.command("recover", *world.server(), "--email", "customer@one.example", "--phrase-file", ada.place / "phrase"),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    code = wait_for("a letter with a code", lambda: next((found for letter in set(mail.glob("*")) - before if (found := re.search(r"^Code: (.*)\n", letter.read_text(), re.M))), None))
    said, _ = child.communicate(code.group(1) + "\n", timeout=120)
    if child.returncode != 0:
        raise LabError(f"the owner is not let in: {said}")
    ada.knows_itself()
    return ada


def another_phrase(story):
    """On purpose: that of somebody else."""
    stranger = Person(story.world, "stranger")
    stranger.signs_up()
    return stranger.place / "phrase"
