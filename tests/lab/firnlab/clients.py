"""The program whose threads are the clients of a bench row, built from `jobs/clients.c`."""

import pathlib
import subprocess

from . import LAB, LabError


def build(directory):
    """Its path, `clients` in `directory`; static, so that it runs in the guest as here."""
    program = pathlib.Path(directory, "clients")
    command = ["cc", "-O2", "-Wall", "-Werror", "-static", "-pthread", "-o", program, LAB / "jobs/clients.c"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise LabError(f"jobs/clients.c does not build:\n{done.stderr}")
    return program
