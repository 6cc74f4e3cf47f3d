"""smbtorture_judge.py OURS THEIRS EXPECTED: holds each case of smbtorture against the edge beside the same case against a local directory.

What fails must be listed with its reason, whether it passes there (a deviation) or not (common to both); what is listed must fail. That both
fail says only that it is no difference of the file system: it may be a fault of the configuration, which both have.
"""

import collections
import re
import sys
import tomllib

# The suites have 171 cases in Samba 4.17; with far fewer they broke off, and prove nothing.
CASES_MIN = 160


def results(path):
    """Cases by suite and name, the last line of why one failed, and suites that broke off."""
    cases, why, suite, pending, broken = {}, {}, [], [], []
    for line in open(path, errors="replace"):
        line = line.rstrip("\n")
        end = re.match(r"end of (\S+): (\d+)$", line)
        if end:
            for name, outcome, said in pending:
                cases[f"{end[1]}/{name}"], why[f"{end[1]}/{name}"] = outcome, said
            if end[2] == "124":
                broken.append(end[1])
            pending = []
            continue
        match = re.match(r"(success|failure|error|skip): (\S+)(?: \[(.*))?$", line)
        if match:
            pending.append([match[2], match[1], ""])
        elif pending and pending[-1][1] in ("failure", "error") and line.strip() not in ("", "]"):
            pending[-1][2] = pending[-1][2] or line.strip()
    return cases, why, broken


(ours, why, broken), (theirs, _, _) = results(sys.argv[1]), results(sys.argv[2])
with open(sys.argv[3], "rb") as file:
    document = tomllib.load(file)
expected = {}
for kind in ("deviation", "common"):
    for rule in document.get(kind, []):
        if not rule["reason"]:
            sys.exit(f"FAILED smbtorture-expected.toml: a {kind} without a reason")
        expected.update((case, kind) for case in rule["cases"])

counts = collections.Counter()
for case in sorted(ours.keys() | theirs.keys() | expected.keys()):
    here, there = ours.get(case, "not run"), theirs.get(case, "not run")
    counts[here] += 1
    fails = here not in ("success", "skip")
    kind = "deviation" if there in ("success", "skip") else "common"
    if not fails:
        listed = case in expected
        print(f"FAILED {case}: {here} here, and listed as failing" if listed else f"ok {case}" + ("" if here == "success" else f" ({here})"))
    elif expected.get(case) == kind:
        print(f"ok {case} ({here}, as listed)")
    else:
        print(f"FAILED {case}: {here} here, {there} on a local directory, and not listed as {kind}: {why.get(case, '')[:300]}")
for suite in broken:
    print(f"FAILED {suite} did not end")
if len(ours) < CASES_MIN:
    print(f"FAILED only {len(ours)} cases ran, of at least {CASES_MIN}")
print("  " + ", ".join(f"{count} {what}" for what, count in sorted(counts.items())))
