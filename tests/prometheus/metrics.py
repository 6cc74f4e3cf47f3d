"""The names of metrics: those that alert rules and dashboards use, and those that the edge exposes."""

import pathlib
import re
import subprocess
import tempfile

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent.parent
PLACE = REPOSITORY / "infra" / "prometheus"
NAME = re.compile(r"\bfirn_[a-z_]+\b")


def used():
    """By file. Prometheus's own metrics, such as `up`, are none of ours."""
    files = [*sorted(PLACE.glob("*.yaml")), *sorted(PLACE.glob("*.json"))]
    return {path: set(NAME.findall(path.read_text())) for path in files}


def of_source():
    """Those that edge-proxy/src/metrics/figures.rs tells; the `firn_` is added when they are written."""
    source = (REPOSITORY / "edge-proxy" / "src" / "metrics" / "figures.rs").read_text()
    calls = re.findall(r'(?:\bout\.(?:gauge|counter|gauges|counters|info)|\boperations)\(\s*"([a-z_]+)"', source)
    return {f"firn_{name}" for name in calls}


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
