#!/usr/bin/env python3
"""model UNITS.json - what N tenants and M disk nodes cost in requests, table capacity and money, and what breaks first.

It is arithmetic on unit costs that load/tenants measured: `count(N) = service + N × tenant`, a second. What is one partition of the table for
all tenants is held against what DynamoDB gives one partition; all else grows with tenants and is only money. It is a straight line, and above
the truth where work is shared: the ledger's fold takes up to 24 chunks in a transaction, so that what it reads and removes of `billing/pending` and
`billing/tenants` falls for each of many tenants. A first stage that is short counts too little of what is rare. Prices are the list prices of
AWS in us-east-1 as of 2025, as crates/store and crates/table have them.
"""

import json
import pathlib
import sys

SECONDS_A_MONTH = 30 * 24 * 3600
# What one partition key of DynamoDB takes a second (its documentation: partition throughput limits).
PARTITION_WRITES, PARTITION_READS = 1000, 3000
# Dollars: on-demand capacity units, and S3's requests.
DOLLARS = {
    "table writes": 0.625e-6, "table reads": 0.125e-6,
    "store PUT": 5e-6, "store LIST": 5e-6, "store GET": 0.4e-6, "store HEAD": 0.4e-6, "store DELETE": 0.0,
}
# Beside any number of tenants, where the table of a million says nothing of nodes.
NODES = 3
# A prediction may be so far off; what came or was to come fewer times than that says nothing.
WITHIN, LEAST = 0.25, 15


def of_many(name):
    """Whether a count is of a partition that each tenant, stream or volume has for itself."""
    return "*" in name


def units(alone, measured, tenants, every_s):
    """Unit costs from the service alone and from a first stage."""
    names = {name for name in measured if not name.startswith("cpu proxies")}
    # The cluster's table is its nodes' matter: no tenant has a disk here.
    mine = {name for name in names if " disks " not in name}
    per_tenant = {name: max(0.0, measured[name] - alone.get(name, 0)) / tenants if name in mine else 0.0 for name in names}
    return {"service": {name: alone.get(name, 0) for name in names}, "tenant": per_tenant, "calibrated_with": tenants, "seconds_between_writes": every_s}


def predict(units, tenants, nodes):
    counts = {name: units["service"][name] + tenants * cost for name, cost in units["tenant"].items()}
    return counts | predict_nodes(units["node"], nodes)


def of_nodes(counts):
    """What is the disk nodes' of a service without tenants: the capacity of their table."""
    return {name: count for name, count in counts.items() if name.startswith(("table writes disks ", "table reads disks "))}


def node_units(measured):
    """`count(M) = cluster + M × node`, from the two smallest numbers of nodes. The cluster's coordinator lists all nodes, and with thousands such a
    list is many units; that is not in here."""
    (few, at_few), (more, at_more) = sorted(measured.items())[:2]
    found = {}
    for name in at_more:
        node = max(0.0, (at_more[name] - at_few.get(name, 0.0)) / (more - few))
        found[name] = {"cluster": max(0.0, at_more[name] - node * more), "node": node}
    return found


def predict_nodes(units, nodes):
    return {name: cost["cluster"] + cost["node"] * nodes for name, cost in units.items()}


def summed(counts):
    """The classes that a prediction is held to: requests to the store by kind, capacity of the table, partitions that all tenants share."""
    sums = {name: count for name, count in counts.items() if name.startswith("store ") or name == "writes"}
    for kind in ("writes", "reads"):
        parts = {name: count for name, count in counts.items() if name.startswith(f"table {kind} ")}
        sums[f"table {kind}"] = sum(parts.values())
        sums |= {name: count for name, count in parts.items() if not of_many(name)}
    return sums


def compare(predicted, measured, seconds):
    """Prints each; how many were missed."""
    predicted, measured, misses = summed(predicted), summed(measured), 0
    for name in sorted(measured):
        expected, found = predicted.get(name, 0.0), measured[name]
        if max(expected, found) * seconds < LEAST:
            continue
        off = found / expected - 1 if expected else float("inf")
        missed = abs(off) > WITHIN
        misses += missed
        print(f"{'MISS' if missed else 'ok  '} {name:44} predicted {expected:9.2f}/s, measured {found:9.2f}/s ({off:+.0%})")
    return misses


def print_measured(tenants, measured, slowest_s):
    busy = sorted(((count, name[4:]) for name, count in measured.items() if name.startswith("cpu ")), reverse=True)
    print(f"{tenants} tenants wrote {measured['writes']:.1f} times a second, the slowest in {slowest_s:.2f} s. Processors: " + ", ".join(f"{name} {count:.2f}" for count, name in busy[:6]))
    print(f"busiest here: {busy[0][1]}")


def dollars_a_month(counts):
    sums = summed(counts)
    return {name: sums.get(name, 0) * price * SECONDS_A_MONTH for name, price in DOLLARS.items()}


def limits(units):
    """(How many until it is full, of what, which limit): partitions that all share, in the order in which they break."""
    found = []
    nodes = {name: (cost["cluster"], cost["node"]) for name, cost in units["node"].items()}
    tenants = {name: (units["service"][name], cost) for name, cost in units["tenant"].items()}
    for what, costs in (("tenants", tenants), ("disk nodes", nodes)):
        for name, (fixed, cost) in costs.items():
            for kind, limit in (("writes", PARTITION_WRITES), ("reads", PARTITION_READS)):
                if name.startswith(f"table {kind} ") and not of_many(name) and cost > 0:
                    found.append(((limit - fixed) / cost, what, f"{limit} {kind} a second of the partition {name.split(' ', 2)[2]!r}"))
    cost = units["tenant"].get("cpu api", 0)
    if cost > 0:
        found.append(((1 - units["service"]["cpu api"]) / cost, "tenants", "one processor for firn-api, of this build on this machine"))
    return sorted(found)


def print_model(units, tenants=(10**3, 10**4, 10**5, 10**6)):
    print(f"\nUnit costs of a tenant that writes every {units['seconds_between_writes']:g} s, from {units['calibrated_with']} tenants:")
    for name, cost in sorted(summed(units["tenant"]).items()):
        if cost > 0:
            print(f"  {name:46} {cost:.5f}/s")
    each = dollars_a_month(units["tenant"])
    print("  money a month: " + ", ".join(f"{name} ${cost:.4f}" for name, cost in each.items() if cost) + f"; in all ${sum(each.values()):.4f}")
    print("\n   tenants  store requests/s  table writes/s  table reads/s    $ a month")
    for count in tenants:
        counts = predict(units, count, NODES)
        sums = summed(counts)
        store = sum(value for name, value in sums.items() if name.startswith("store "))
        print(f"{count:10}  {store:16.0f}  {sums['table writes']:14.0f}  {sums['table reads']:13.0f}  {sum(dollars_a_month(counts).values()):11.0f}")
    print("\ndisk nodes   table writes/s  table reads/s    $ a month")
    for nodes in (10**2, 10**3, 10**4):
        counts = summed(predict_nodes(units["node"], nodes))
        dollars = sum(counts[kind] * DOLLARS[kind] for kind in ("table writes", "table reads")) * SECONDS_A_MONTH
        print(f"{nodes:10}   {counts['table writes']:14.0f}  {counts['table reads']:13.0f}  {dollars:11.0f}")
    print("\nWhat breaks first:")
    for count, what, limit in limits(units)[:8]:
        print(f"  at {count:10.0f} {what}: {limit}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__.splitlines()[0])
    print_model(json.loads(pathlib.Path(sys.argv[1]).read_text()))
