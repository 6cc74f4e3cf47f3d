"""All scenarios: what customers do with the whole product, and the program that does it.

A scenario that is somebody's test already is run as that test. `commands` are given the directory of the programs (`make scenarios` builds
them); a test of cargo's is named in full, so that it is that one and no other.
"""

import dataclasses

from firnlab import CACHE

# Debian as the appliance's image is made of it.
APPLIANCE_BASE = CACHE / "lab/appliance/debian.tar.zst"


@dataclasses.dataclass(frozen=True)
class Scenario:
    name: str
    # What a customer does, and what must come of it.
    what: str
    # Of this folder, played by `run --one`; or else:
    module: str | None = None
    # What makes what it needs from the network, which is not there in the namespace of a module; each in turn, before it.
    needs: tuple = ()
    # Each in turn; PROGRAMS stands for the directory of the programs.
    commands: tuple = ()
    # In `make test`, in its short form if it has one.
    short: bool = False
    # The section of scripts/test that runs it in any case, under this name or its own.
    section: str = "all-scenarios"


def cargo(target, test, *arguments):
    """One test of the workspace, as `unit` of scripts/test has built it."""
    return ("cargo", "test", "--locked", "--quiet", "--workspace", "--test", target, "--", "--include-ignored", "--nocapture", "--exact", test, *arguments)


def on_servers(*servers):
    return ("tests/lab/cloud/with", *servers, "--")


SCENARIOS = (
    Scenario(
        "customer", "sign up, provision, join from the package, work, crash, clean, snapshot, restore, disk attach, bill: an office's machine with systemd and "
        "the kernel's NFS and NBD clients, a bucket and tables on emulators, every service a process", module="customer",
    ),
    Scenario(
        "lost-edge", "machine, disk, profile and keys are lost; the owner is let in by the phrase on paper, and a new machine takes the volume over",
        module="lost_edge", short=True,
    ),
    Scenario(
        "store-away", "the region's store is away while an office works and its edge is killed: nothing is lost, nobody waits, all is committed afterwards",
        module="store_away",
    ),
    Scenario(
        "appliance", "the appliance's disk image in an emulated machine: from firmware to edge, joined by a stick, a kernel's client, a power cut", module="appliance",
        needs=(("packaging/appliance/build", "--base", APPLIANCE_BASE),),
    ),
    Scenario(
        "self-hosted", "Terraform in the customer's own account: applied, interrupted, an edge and a kernel's client, the cleaner's function, drift, destroyed; "
        "with the anchor as a function; the managed composition",
        commands=(("tests/terraform/run", "PROGRAMS/firn-edge", "PROGRAMS/bootstrap", "PROGRAMS/firn-anchor-lambda", "PROGRAMS/firn-api"),), section="terraform",
    ),
    Scenario(
        "two-offices", "one volume in two offices under kernels' clients, 30 ms from the cloud: in turns, one edge is killed, one is cut off for two minutes",
        commands=(("tests/lab/run-kernel-tests", "--set", "LATENCIES=30", "--set", "PHASES=turns kill cut", "offices", "PROGRAMS/firn-edge"),), section="all-offices",
    ),
    Scenario(
        "cut-off-edge", "an edge that is cut off while another takes its volume by force: fenced when it comes back, its writes in a salvage clone",
        commands=((*on_servers("versitygw", "dynamodb"), *cargo("real_takeover", "real_an_edge_cut_off_is_fenced_when_it_comes_back_and_its_writes_are_in_a_salvage_clone")),), section="stores",
    ),
    Scenario(
        "key-rotation", "keys are rotated and a volume is rekeyed while a kernel writes and the edge is killed; caps, snapshot policies and a disk beside it",
        commands=(("tests/lab/run-kernel-tests", "--jobs", "joined-edge", "tenant", "PROGRAMS"),), section="disk-kernel",
    ),
    Scenario(
        "upgrade", "the packages on an office's machine: installed, set up, killed, upgraded while a client writes, with a full disk, removed",
        commands=(("tests/integration/scenarios/upgrade", "PROGRAMS"),), section="debian",
    ),
    Scenario(
        "old-and-new", "this build beside the release before it, in each pairing of edge, cleaner, anchor, API and nodes: forth, back and forth again",
        commands=(("scripts/upgrade-matrix",),), section="upgrades",
    ),
    Scenario(
        "story", "a customer's whole story through `firn dev`, and the search of all that the service stored and received for what it must not know",
        commands=(cargo("dev", "story::from_sign_up_to_the_bill_and_the_service_knows_nothing"),), section="story",
    ),
    Scenario(
        "several-volumes", "one edge with two volumes of a tenant, joined once, beside the service that wants things of it",
        commands=(("cargo", "test", "--locked", "--quiet", "--workspace", "--test", "dev", "--", "--include-ignored", "--nocapture", "several_volumes::"),), section="unit",
    ),
    Scenario(
        "managed-cleaning", "space comes back to a volume whose roots the service keeps, by the cleaner's own program; audits know lost from retired",
        commands=(cargo("dev", "cleaning::a_volume_whose_roots_the_service_keeps_is_cleaned_and_its_edge_reads_everything"),), section="unit",
    ),
    Scenario(
        "service-away", "an edge that joined starts without the service, twice, and commits when it is back",
        commands=(cargo("dev", "outage::an_edge_that_joined_starts_without_the_service_and_commits_when_it_is_back"),), section="unit",
    ),
    Scenario(
        "bill", "two volumes under a kernel, a disk under fio, each process killed in turn; every line of the bill against counts of others",
        commands=(("tests/bill/run", "PROGRAMS"),), section="bill",
    ),
)


@dataclasses.dataclass(frozen=True)
class Break:
    name: str
    what: str
    scenario: str
    # Where it must be found.
    step: str


# Done wrong by the scenario itself, never by what ships.
BREAKS = (
    Break("cleaner-never-runs", "the region has no cleaner", "customer", "clean"),
    Break("snapshot-of-another-time", "tuesday's snapshot is restored for monday's", "customer", "restore"),
    Break("bill-counts-twice", "a commit stands twice in the ledger's hour", "customer", "bill"),
    Break("edge-with-a-wrong-phrase", "the new machine is approved with a stranger's phrase", "lost-edge", "a new machine joins"),
    Break("stick-without-a-secret", "the stick that is plugged in has no join secret", "appliance", "a stick is plugged in"),
    Break("the-line-holds", "the line to the store is never cut", "store-away", "the store is away"),
)
