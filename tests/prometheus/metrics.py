"""The names of metrics: those that alert rules and dashboards use, and those that the edge exposes."""

import pathlib
import re

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent.parent
PLACE = REPOSITORY / "infra" / "prometheus"
NAME = re.compile(r"\bfirn_[a-z_]+\b")


def used():
    """By file. Prometheus's own metrics, such as `up`, are none of ours."""
    files = [*sorted(PLACE.glob("*.yaml")), *sorted(PLACE.glob("*.json"))]
    return {path: set(NAME.findall(path.read_text())) for path in files}


def of_source():
    """Those that edge-proxy/src/metrics.rs writes; it adds the `firn_` itself."""
    source = (REPOSITORY / "edge-proxy" / "src" / "metrics.rs").read_text()
    calls = re.findall(r'(?:\bout\.(?:gauge|counter|family)|\boperations)\(\s*"([a-z_]+)"', source)
    return {f"firn_{name}" for name in calls}


def of_exposition(text):
    return set(re.findall(r"(?m)^# TYPE (firn_[a-z_]+) ", text))
