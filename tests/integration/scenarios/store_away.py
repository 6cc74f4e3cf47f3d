"""The region's store is away while an office works, and its edge dies meanwhile: nothing is lost, nobody waits, and all of it is in the cloud afterwards.

An hour is compressed by what is honest. What makes an hour another thing than a second: the edge tries again in pauses that grow to thirty seconds
(crates/volume/src/checkpoint), so the line is cut for at least three of the longest; and what an office writes in an hour must find room in the
journal, so an hour's work of it (30 KB a second) is written in that time. What is left out: sessions of the service's end after a quarter of an
hour (here the store has the office's own credentials), and whatever else goes by the clock. `AWAY_S=3600` cuts it for the whole hour.
"""

import json
import os
import time

from ledger import commits_in_table
from office import TREE, TREE_BYTES, Office
from world import wait_for

LONGEST_PAUSE_S = 30
HOUR_BYTES = 30_000 * 3600
# The short form shows all but the longest pauses.
SHORT_S = 25


def play(story):
    world = story.world
    away_s = float(os.environ.get("AWAY_S") or (SHORT_S if story.short else 3.5 * LONGEST_PAUSE_S))
    with story.step("an office works"):
        story.begin_region()
        world.sign_up_customer()
        ada = world.customer
        phrase = ada.place / "phrase"
        world.volumes["files"] = ada.types("volume", "create", "files", "--region", "eu", "--phrase-file", phrase)["id"]
        office = Office(story, ada, "berlin", "files")
        office.opens(phrase)
        office.machine.types(TREE.format("before"))
        office.edge("sync")
        story.holds("what it wrote is in the cloud", commits_in_table(world, "files") > 0)
    machine = office.machine
    rounds = max(1, round(HOUR_BYTES / TREE_BYTES * (0.25 if story.short else 1)))
    with story.step("the store is away"):
        if not story.breaks("the-line-holds"):
            story.line.cut()
        cut = time.monotonic()
        slowest = 0.0
        for number in range(rounds):
            began = time.monotonic()
            machine.types(TREE.format(f"away-{number}"))
            slowest = max(slowest, time.monotonic() - began)
            if number == 0:
                # From here on nothing that was under way before the cut can end.
                committed = commits_in_table(world, "files")
            if number == rounds // 2:
                died = office.pid()
                machine.types(f"kill -9 {died}")
                wait_for("another process serves", lambda: office.pid() not in (0, died))
        story.holds(f"{rounds * TREE_BYTES // 1_000_000} MB were acknowledged, thirty files in {slowest:.1f} s at most, through a kill -9", True)
        time.sleep(max(0, cut + away_s - time.monotonic()))
        story.holds(f"nothing was committed in {time.monotonic() - cut:.0f} s", commits_in_table(world, "files") == committed)
        story.holds("what was written before is read meanwhile", not machine.types("diff -r /tmp/before /mnt/firn/before"))
        status = json.loads(office.edge("status", "--output", "json"))
        story.holds("the edge says that the store is away", (status.get("detached") or {}).get("store_away"), status)
    with story.step("the store is back"):
        story.line.mend()
        mended = time.monotonic()
        # It looks again in its own time, and refuses until then.
        machine.types("until runuser -u firn -- firn-edge sync; do sleep 2; done")
        story.holds(f"everything is in the cloud {time.monotonic() - mended:.0f} s later", commits_in_table(world, "files") > committed)
    with story.step("nothing was lost"):
        office.finds_all_whole()
        office.starts_cold()
        for tree in ("before", *(f"away-{number}" for number in range(rounds))):
            machine.types(f"diff -r /tmp/{tree} /mnt/firn/{tree}")
        story.holds("every acknowledged byte comes from the store", True)
