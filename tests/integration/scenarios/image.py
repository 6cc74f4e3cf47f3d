"""The appliance's disk image in an emulated machine with UEFI: no part of it knows that it is tried. Its administrator types over SSH."""

import json
import os
import pathlib
import re
import socket
import subprocess

from catalogue import APPLIANCE_BASE
from firnlab import HOST_ADDRESS, REPOSITORY, LabError, namespace

MEMORY_MIB = 1280
BUILD_S = 900
FIRMWARE = pathlib.Path("/usr/share/OVMF/OVMF_CODE.fd")
STICK_MIB = 34
# Of a serial line's escapes only the text matters.
ESCAPE = re.compile(r"\x1b\[[0-9;?=]*[A-Za-z]")


def make_image(story):
    packages = pathlib.Path(story.directory, "appliance-packages")
    run("packaging/build", "--plain", "--binaries", story.programs, packages, "firn-appliance", "firn-edge", "firn")
    image = pathlib.Path(story.directory, "appliance.img")
    run("packaging/appliance/build", "--base", APPLIANCE_BASE, packages, image)
    return image


def run(program, *arguments):
    done = subprocess.run([REPOSITORY / program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=BUILD_S)
    if done.returncode != 0:
        raise LabError(f"{program} ends with {done.returncode}: {done.stdout[-3000:]}")


class Appliance:
    def __init__(self, story, image, disk_gib):
        if not FIRMWARE.exists():
            raise LabError(f"{FIRMWARE} is missing: scripts/setup test")
        self.number = len(story.machines)
        story.machines.append(self)
        self.name, self.directory = "appliance", pathlib.Path(story.directory, "appliance")
        self.directory.mkdir()
        self.address = f"192.168.77.{2 + self.number}"
        self.log, self.disk, self.stick = self.directory / "serial.log", self.directory / "disk.img", self.directory / "stick.img"
        self.key, self.process, self.tunnels = self.directory / "key", None, None
        subprocess.run(["cp", "--sparse=always", image, self.disk], check=True)
        os.truncate(self.disk, disk_gib << 30)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.key], check=True)
        self.starts()

    def starts(self):
        """Power, and no stick in it."""
        self.from_here = self.log.stat().st_size if self.log.exists() else 0
        command = [
            "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", str(MEMORY_MIB), "-display", "none", "-no-reboot",
            "-monitor", "none", "-serial", "stdio", "-qmp", f"unix:{self.directory}/qmp,server=on,wait=off",
            "-drive", f"if=pflash,format=raw,readonly=on,file={FIRMWARE}", "-drive", f"if=virtio,format=raw,file={self.disk}", "-device", "qemu-xhci",
            "-nic", f"tap,ifname={namespace.tap(self.number)},script=no,downscript=no,model=virtio",
        ]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)

    def asks_machine(self, *commands):
        """Of the emulator: what a hand would do."""
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(30)
            line.connect(f"{self.directory}/qmp")
            answers = line.makefile("r")
            answers.readline()
            for command in ({"execute": "qmp_capabilities"}, *commands):
                line.sendall(json.dumps(command).encode() + b"\n")
                while "return" not in (answer := json.loads(answers.readline())):
                    if "error" in answer:
                        raise LabError(f"the emulator refuses {command}: {answer}")

    def plugs_in(self, files):
        """A stick with these files, and what every stick here has: an address, and the administrator's key."""
        network = f"[Match]\nType=ether\n\n[Network]\nAddress={self.address}/24\nGateway={HOST_ADDRESS}\n"
        for name, text in {"network": network, "authorized_keys": self.key.with_suffix(".pub").read_text(), **files}.items():
            (self.directory / name).write_text(text)
        with open(self.stick, "wb") as stick:
            stick.truncate(STICK_MIB << 20)
        # As a shop sells it: one partition.
        subprocess.run(["sfdisk", "--quiet", self.stick], input="label: dos\nstart=1MiB, type=c\n", text=True, check=True)
        subprocess.run(["mformat", "-i", f"{self.stick}@@1M", "-T", str(((STICK_MIB - 1) << 20) // 512), "-v", "FIRN", "::"], check=True)
        subprocess.run(["mcopy", "-i", f"{self.stick}@@1M", *(self.directory / name for name in ("network", "authorized_keys", *files)), "::"], check=True)
        self.asks_machine(
            {"execute": "blockdev-add", "arguments": {"driver": "raw", "node-name": "stick", "file": {"driver": "file", "filename": str(self.stick)}}},
            {"execute": "device_add", "arguments": {"driver": "usb-storage", "drive": "stick", "id": "stick"}},
        )

    def shows(self, text):
        """On its serial console, since it was last started."""
        with open(self.log, "rb") as log:
            log.seek(self.from_here)
            return text in ESCAPE.sub("", log.read().decode(errors="replace"))

    def ssh(self):
        options = ("BatchMode=yes", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "ConnectTimeout=10", "LogLevel=ERROR")
        return ["ssh", "-i", self.key, *(word for option in options for word in ("-o", option)), f"root@{self.address}"]

    def tries(self, script, limit_s=300):
        """Status and output of what an administrator types."""
        if self.process.poll() is not None:
            raise LabError(f"the appliance has ended with {self.process.returncode}")
        try:
            done = subprocess.run([*self.ssh(), script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise LabError(f"the appliance does not answer to: {script[:300]}") from None
        return done.returncode, done.stdout

    def types(self, script, limit_s=300):
        status, said = self.tries(script, limit_s)
        if status != 0:
            raise LabError(f"on the appliance this ends with {status}: {script[:300]}\n{said[-3000:]}")
        return said

    def answers(self):
        return self.tries("true", 60)[0] == 0

    def lets_in(self, ports):
        """What is behind these ports of this machine's loopback is behind them there, since edges speak in the clear to this machine only."""
        forwards = [word for port in ports for word in ("-R", f"127.0.0.1:{port}:127.0.0.1:{port}")]
        self.tunnels = subprocess.Popen([*self.ssh()[:-1], "-N", *forwards, f"root@{self.address}"], stdin=subprocess.DEVNULL)

    def loses_power(self):
        self.process.kill()
        self.process.wait()
        if self.tunnels:
            self.tunnels.kill()
            self.tunnels.wait()

    is_lost = loses_power

    def tail(self, lines=40):
        text = ESCAPE.sub("", self.log.read_text(errors="replace"))
        shown = [line.rstrip() for line in text.splitlines() if line.strip()][-lines:]
        if self.process.poll() is None and self.answers():
            shown += self.tries("journalctl --boot --priority warning --lines 20 --no-pager --output cat; tail -n 15 /run/firn-appliance/join.log", 60)[1].splitlines()
        return "\n".join(f"  appliance: {line}" for line in shown)
