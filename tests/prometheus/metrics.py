"""The names of metrics: those that alert rules, dashboards and `firn doctor` use, and those that programs expose."""

import pathlib
import re
import subprocess
import tempfile

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent.parent
PLACE = REPOSITORY / "infra" / "prometheus"
NAME = re.compile(r"\bfirn_[a-z_]+\b")


# Where a program tells its figures, a file or a directory of them, and what stands before their names on the wire.
SOURCES = {
    "edge": ("edge-proxy/src/metrics", "firn_"),
    "control plane": ("services/api/src/metrics.rs", "firn_api_"),
    "anchor": ("services/anchor/src/metrics.rs", "firn_anchor_"),
    "disk node": ("dataplane-blockd/node/src/metrics.rs", "firn_blockd_"),
    "cleaner": ("services/cleaner-standalone/src/metrics.rs", "firn_cleaner_"),
}
DOCTOR = REPOSITORY / "cli" / "src" / "commands" / "figures.rs"


def used(files):
    """By file. Prometheus's own metrics, such as `up`, are none of ours."""
    return {path: set(NAME.findall(path.read_text())) for path in files}


def of_edges():
    """Files that are about edges alone."""
    return sorted(PLACE.glob("edge-*"))


def of_source():
    """By program: the names in its source, as calls or as the rows of a table."""
    exposed = {}
    for program, (path, prefix) in SOURCES.items():
        place = REPOSITORY / path
        files = sorted(place.glob("*.rs")) if place.is_dir() else [place]
        source = "\n".join(file.read_text() for file in files)
        names = re.findall(r'(?:\bout\.(?:gauge|counter|gauges|counters|info)|\boperations)\(\s*"([a-z_]+)"', source)
        names += re.findall(r"(?m)^\s+(?:gauge|counter)\s+([a-z_]+)\s+=", source)
        exposed[program] = {prefix + name for name in names}
    return exposed


def of_exposition(text):
    """The names of samples: in OpenMetrics the types of families stand under names without these ends."""
    ends = {"counter": "_total", "info": "_info"}
    families = re.findall(r"(?m)^# TYPE (firn_[a-z_]+) ([a-z]+)$", text)
    return {name + ends.get(kind, "") for name, kind in families}


def refused(text):
    """Why Prometheus's own parser would not take an exposition; empty if it does."""
    # What promtool imports has times.
    lines = [line if line.startswith("#") else f"{line} 1700000000" for line in text.splitlines()]
    with tempfile.TemporaryDirectory(prefix="firn-metrics.") as directory:
        samples = pathlib.Path(directory) / "samples"
        samples.write_text("\n".join(lines) + "\n")
        command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", samples, pathlib.Path(directory) / "blocks"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    return done.stdout if done.returncode else ""
