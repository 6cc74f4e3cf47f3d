"""pjdfstest_judge.py SERVER LOG EXPECTED: holds each case of a pjdfstest run against the list of known deviations.

A case that is not listed must pass. A listed one must fail, or be skipped, as listed: when it passes, the list is
out of date, and that is a failure too. Each case counts as one sentence.
"""

import collections
import re
import sys
import tomllib

# The suite has 398 cases; a run with far fewer broke off or was filtered, and proves nothing.
CASES_MIN = 390

server, log, expected_file = sys.argv[1:4]
with open(expected_file, "rb") as file:
    document = tomllib.load(file)
expected = {}
for rule in document.get("deviation", []):
    if server not in rule.get("servers", ["firn", "ganesha"]):
        continue
    if rule["outcome"] not in ("FAILED", "skipped") or not rule["reason"]:
        sys.exit(f"FAILED pjdfstest-expected.toml: outcome and reason of {rule}")
    for name in rule["cases"]:
        expected[name] = rule["outcome"]

results, details, current = {}, collections.defaultdict(list), None
for line in open(log, errors="replace"):
    line = re.sub(r"\x1b\[[0-9;]*m", "", line.rstrip("\n"))
    match = re.match(r"(\S+::\S.*?)\s+(ok|skipped|FAILED|expected failure|unexpected success)$", line)
    if match:
        current = match[1]
        results[current] = match[2]
    elif current and line.startswith("\t"):
        details[current].append(line.strip())

counts = collections.Counter()
for name in sorted(results.keys() | expected.keys()):
    got, wanted = results.get(name, "not run"), expected.get(name, "ok")
    counts[got] += 1
    if got == wanted:
        print(f"ok {name}" + ("" if got == "ok" else f" ({got}, as listed)"))
    else:
        print(f"FAILED {name}: {got}, expected {wanted}: {' | '.join(details[name])[:400]}")
if len(results) < CASES_MIN:
    print(f"FAILED only {len(results)} cases ran, of at least {CASES_MIN}")
print("  " + ", ".join(f"{count} {what}" for what, count in sorted(counts.items())))
sys.exit(any(results.get(n, "not run") != expected.get(n, "ok") for n in results.keys() | expected.keys()) or len(results) < CASES_MIN)
