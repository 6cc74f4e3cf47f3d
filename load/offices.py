"""Tenants, each with a volume, an edge of its own and a client that writes. An edge is a process of its own, or one of sixteen in one process of firn-edge:
the program serves several volumes (decision 0160), and here each is another tenant's, by its own enrolment, certificate, session, journal and reports."""

import os

from nfs import Client
from world import Person, Process

FILE_BYTES = 16 << 10
# As many volumes as firn-edge takes.
TOGETHER = 16
# Below those that servers of the lab and outgoing connections take.
FIRST_PORT = 10_000


class Tenant:
    def __init__(self, world, gateway, number):
        self.world, self.gateway, self.number = world, gateway, number
        self.name, self.volume, self.client, self.due = f"tenant-{number}", f"files-{number}", None, None

    def signs_up(self):
        self.person = Person(self.world, self.name)
        self.person.signs_up()

    def invites(self):
        """Makes a volume and an edge, and joins with it: people through the gateway with their token, machines at its other port."""
        world, ada = self.world, self.person
        phrase, secret, self.state = ada.place / "phrase", ada.place / "join", ada.place / "edge"
        ada.types("volume", "create", self.volume, "--region", "eu", "--phrase-file", phrase)
        ada.types("edge", "create", "office", "--volume", self.volume, "--secret-file", secret)
        server = ["--server", self.gateway.machines, "--authority", world.authority]
        ada.types("edge", "join", *server, "--tenant", ada.tenant, "--state", self.state, text=secret.read_text())
        ada.types("edge", "approve", "office", "--phrase-file", phrase)

    def mounts(self, port, export):
        self.mounted = port, export
        self.client = Client(port, export)
        self.file = self.client.create("work")

    def writes(self):
        try:
            self.client.write(self.file, 0, os.urandom(FILE_BYTES))
        except ConnectionError:
            # An edge ends connections that were idle for minutes, and clients come again.
            self.mounts(*self.mounted)
            self.client.write(self.file, 0, os.urandom(FILE_BYTES))


class Office:
    """A process of firn-edge that serves some tenants."""

    def __init__(self, world, number, tenants, trickle_s):
        self.world, self.tenants, self.port = world, tenants, FIRST_PORT + number
        self.name, count = f"edge-{number}", len(tenants)
        self.config = world.directory / f"{self.name}.toml"
        text = f'[edge]\nstate_directory = "{world.directory / self.name}"\n'
        for tenant in tenants:
            text += (
                f'[[volume]]\nname = "{tenant.volume}"\nedge_name = "office"\nstore = "{world.store(tenant.name, world.of_edge)}"\nanchor = "service"\n'
                f'state_directory = "{tenant.state}"\n'
                f'[[export]]\npath = "/{tenant.volume}"\nvolume = "{tenant.volume}"\nclients = ["127.0.0.0/8"]\nsquash = "none"\nrequire_privileged_port = false\n'
            )
        text += (
            f'[limits]\nmemory_cache = "{4 * count} MiB"\ndirty_memory = "{4 * count} MiB"\njournal = "{16 * count} MiB"\ndisk_cache = "{32 * count} MiB"\n'
            f'uploads = {max(4, count)}\ncheckpoint_trickle = "{trickle_s:g} s"\n'
            f'[nfs]\nlisten = "127.0.0.1"\nnfs_port = {self.port}\nportmap = false\ngrace_seconds = 1\n[log]\nlevel = "warn"\n'
        )
        self.config.write_text(text)

    def opens(self):
        world = self.world
        for tenant in self.tenants:
            world.run("firn-edge", "--config", self.config, "enrol", "--volume", tenant.volume)
        process = Process(world, self.name, [world.programs / "firn-edge", "--config", self.config, "run"], "serving on")
        world.processes[self.name] = process
        process.start()
        for tenant in self.tenants:
            tenant.mounts(self.port, f"/{tenant.volume}")
