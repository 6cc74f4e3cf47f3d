"""What the lab's scripts share: namespaces, the guest, servers under test, and the control line between them.

Everything runs in a network, mount and process namespace of its own, made anew for each run. So two runs never meet,
nothing listens in the machine's own network, and when the first process ends, by whatever means, all others end and
all mounts go. Only the standard library is used.
"""

import os
import pathlib

LAB = pathlib.Path(__file__).resolve().parent.parent
REPOSITORY = LAB.parent.parent
CACHE = pathlib.Path(
    os.environ.get("FIRN_CACHE")
    or pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "firn"
)
GUEST = CACHE / "lab" / "guest"
OFFICE = CACHE / "lab" / "office"

# The link between the host's end of a tap device and the guest on it. Guest N has the address .2 + N.
HOST_ADDRESS = "192.168.77.1"
BRIDGE = "firnbr0"


class LabError(Exception):
    """Something a user can act on; printed as one line, without a trace."""
