"""Private namespaces, and the bridge with tap devices that guests are plugged into."""

import ctypes
import os
import signal
import subprocess
import sys

from . import BRIDGE, HOST_ADDRESS, LabError

MARK = "FIRN_LAB_NAMESPACE"

# Taps made at start; each takes one guest. Two are enough for any test (two clients), four leave room.
TAPS = 4

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def enter(tied=False):
    """Re-executes this program in fresh namespaces, unless it already runs in such.

    `tied`: all of it is killed when the parent process ends. `unshare` by itself ignores the signals that end a
    program, so a driver that is interrupted would leave guests and servers behind.

    As root nothing else is needed. Another user gets a user namespace, in which they are root: enough for the guest
    and for our own server, but not for the peer, which opens files by handle.
    """
    if os.environ.get(MARK):
        return
    command = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid() != 0:
        command[1:1] = ["--user", "--map-root-user"]
        probe = subprocess.run(command + ["true"], stderr=subprocess.PIPE, text=True)
        if probe.returncode != 0 or not os.access("/dev/net/tun", os.R_OK | os.W_OK):
            raise LabError("this needs root, or user namespaces and a /dev/net/tun open to all; try sudo")
    os.environ[MARK] = "fresh"
    if tied:
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.execvp("unshare", command + [sys.executable] + sys.argv)


def set_up():
    """Once in a fresh namespace: loopback, bridge and taps, and memory for guests that is surely executable."""
    if os.environ.get(MARK) != "fresh":
        return
    run("mount", "--make-rprivate", "/")
    # User-Mode Linux maps its memory from a file as executable; on some systems /dev/shm forbids that.
    run("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm")
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "address", "add", f"{HOST_ADDRESS}/24", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    for number in range(TAPS):
        run("ip", "tuntap", "add", "dev", tap(number), "mode", "tap")
        run("ip", "link", "set", tap(number), "master", BRIDGE, "up")
    os.environ[MARK] = "ready"


def tap(number):
    return f"firntap{number}"


def run(*command, **options):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode != 0:
        raise LabError(f"{' '.join(map(str, command))}: {done.stdout.strip()}")
    return done.stdout
