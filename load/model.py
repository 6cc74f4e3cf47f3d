#!/usr/bin/env python3
"""model UNITS.json - what N tenants and M disk nodes cost in requests, table capacity and money, and what breaks first.

    count = Σ unit cost × how often it was done

What is done (DRIVERS) is counted in the run, so a machine that does half as much in a minute is no miss; what each costs is measured once, at a first stage:

    what does not depend on tenants ─▶ per second of all three (ONLY); so do lists of all tenants, per page
    the service alone               ─▶ per second
    tenants whose edges do nothing  ─▶ per visit of the service's upkeep to a tenant, which comes once a minute; per look of an office for a newer key ring; per tenant settled
    tenants that work               ─▶ the rest: per commit, per batch of usage, per query of the fold that finds some, per tenant that it finds some of, per request to the API (DRIVER_OF)

Tenants that do nothing do some of what those do that work (an edge reports what it did at its start): these two runs are solved together, two costs from two counts.

What one partition of the table is for all tenants is held against what DynamoDB gives a partition; of the ledger's shards the fullest counts, whose share
follows from throwing streams at random into 32 of them. All else grows with tenants and is only money. The pass that settles accounts every ten
minutes is in no window in which tenants work. Prices are the list prices of AWS in us-east-1 as of 2025, as crates/store and crates/table have them.
"""

import json
import math
import pathlib
import re
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
# What costs depend on. `metered`: batches of usage that the service itself makes, of commits above all; `reports`: those of edges.
DRIVERS = ("seconds", "visits", "walks", "tenant_pages", "stream_pages", "looks", "commits", "metered", "reports", "batches", "finds", "tenant_folds", "settled", "requests")
# By the beginning of a count's name: of what its rest is a multiple.
DRIVER_OF = (
    ("store ", "commits"),
    ("api requests", "commits"),
    (r"table \w+ anchor/\S+ counted", "metered"),
    (r"table \w+ anchor/", "commits"),
    ("table reads billing/pending", "finds"),
    (r"table \w+ billing/(tenants|hours)/", "tenant_folds"),
    (r"table \w+ billing/", "batches"),
    ("table ", "requests"),
)
# What is not by visits of what tenants cost that do nothing. An office looks for a newer key ring every five minutes, if it committed since the last look:
# that is its only list of the store (edge-proxy/src/rings/follow.rs), and each is followed by calls. A tenant's heads and hours are read by the fold, and where accounts are settled.
IDLE_OF = ((r"table reads billing/streams/", "walks"), (r"store |api requests", "looks"), (r"table \w+ billing/(tenants|hours|credits|invoices)/", "settled"))
LOOK_S = 300
# What has one driver, whoever works. Disk nodes know nothing of tenants, and an instance asks for revocations every two seconds. Each pass over the tenants lists them, and the forwarding records of their streams.
ONLY = ((r"store LIST$", "looks"), (r"table \w+ disks ", "seconds"), (r"table reads service$", "seconds"), (r"table reads tenants$", "tenant_pages"), (r"table reads billing/streams$", "stream_pages"))
# Of an edge: a trickle is committed so long after its first change (crates/volume/src/config.rs). Of the service: between two folds, two visits.
TRICKLE_S, FOLD_S, VISIT_S = 30, 2, 60
# Between two passes that settle accounts (services/api/src/upkeep.rs).
SETTLE_S = 600
SHARD = re.compile(r"^(table \w+ billing/\w+)/\d\d$")
SHARDS = 32
# The expected largest of 32 normal deviates.
FULLEST = 2.07
# Names thrown into shards, for each tenant: an edge and a volume report to the ledger again and again, and each has a stream; a tenant has one head.
NAMES = {"streams": 2, "pending": 2, "tenants": 1}
# Streams of a tenant: its edge's, its volume's, and that of what it had in each hour, which comes when the first is over. A run counts those that there are.
STREAMS = 3
# A walk over a shard of heads takes a unit for each page, and a stream's head about so many bytes of it.
PAGE_BYTES, STREAM_BYTES = 4096, 200
# Of a row in the list of tenants (a small run holds it against the rows that it sees), and of a forwarding record, of which a tenant has as many as
# streams: names of attributes, partition, a name such as `anchor/vol_…|…`, version, content.
TENANT_BYTES, FORWARDING_BYTES = 172, 109
# Tenants that the service takes from its list at once, visits, and goes on (services/api/src/upkeep.rs).
TENANTS_A_QUERY = 100
# With fewer names in a shard the fullest is a matter of luck.
NAMES_LEAST = 16


def driver_of(name):
    return next(driver for pattern, driver in DRIVER_OF if re.match(pattern, name))


def counted(name):
    """Whether a count is a model's matter: processors are this machine's, the totals of actions are sums of others."""
    return not name.startswith(("cpu ", "table requests ", "writes"))


def with_sums(done):
    """With what follows from it. A fold takes what waits in a shard by one query, however much that is: of the shards so many are found to have anything. What waits of a
    tenant it adds at once, whichever shards that lies in: a look at the tenant's head, a check of it, and its hour (crates/billing/src/fold.rs).
    Before each pass over the tenants the heads of all streams are walked over, a query for each shard: it takes a unit for each page of those that have any."""
    batches, folds = done["metered"] + done["reports"], max(done["folds"], 1e-9)
    minutes = max(done["seconds"] / VISIT_S, 1e-9)
    tenants = done.get("offices", done["visits"]) / minutes
    # Visits of a window are those of passes that began before it as well.
    passes = done.get("passes", minutes)
    streams = done.get("streams", STREAMS * tenants)
    in_shard = streams / SHARDS
    pages = SHARDS * (1 - math.exp(-in_shard)) * max(1.0, in_shard * STREAM_BYTES / PAGE_BYTES)
    # Of so many, those for which a fold finds any of its batches.
    found = lambda of: of * (1 - math.exp(-batches / (max(of, 1e-9) * folds)))
    listed = lambda rows, row_bytes: passes * max(1.0, rows * row_bytes / PAGE_BYTES)
    # A pass asks for the next of its list as it comes along, so that of a long one a window holds a part; there is one tenant that has no office.
    units = lambda rows: max(1, math.ceil(rows * TENANT_BYTES / PAGE_BYTES))
    in_list = round(tenants) + 1
    a_list = in_list // TENANTS_A_QUERY * units(TENANTS_A_QUERY) + units(in_list % TENANTS_A_QUERY)
    return done | {
        "batches": batches, "finds": folds * found(SHARDS), "tenant_folds": folds * found(tenants), "walks": passes * pages,
        "tenant_pages": done["visits"] / in_list * a_list, "stream_pages": listed(streams, FORWARDING_BYTES),
    }


def both(idle, working):
    """The costs of two things of which two runs did different amounts; each run: (count, how often the one, how often the other). Tenants that do nothing have some
    of what those do that work, such as the capacity of an hour that ends: without it counted the one would cost more than it does. No cost is negative."""
    (idle_count, idle_one, idle_other), (count, one, other) = idle, working
    split = idle_one * other - one * idle_other
    by_idle, by_working = idle_count / idle_one if idle_one else 0.0, count / other if other else 0.0
    if split <= 0:
        return by_idle, max(0.0, count - by_idle * one) / other if other else 0.0
    of_one, of_other = (idle_count * other - count * idle_other) / split, (idle_one * count - one * idle_count) / split
    return (0.0, by_working) if of_one < 0 else (by_idle, 0.0) if of_other < 0 else (of_one, of_other)


def calibrated(alone, idle, working):
    """Unit costs by name and driver, from three runs: each (counts, how often what was done)."""
    units = {}
    for name in sorted({name for counts, _ in (alone, idle, working) for name in counts if counted(name)}):
        driver, costs = driver_of(name), {}
        if only := next((by for pattern, by in ONLY if re.match(pattern, name)), None):
            runs = (alone, idle, working)
            done = sum(done[only] for _, done in runs)
            # A short run may hold none of it.
            units[name] = {only: sum(counts.get(name, 0.0) for counts, _ in runs) / done} if done else {}
            continue

        def rest(run):
            counts, done = run
            return max(0.0, counts.get(name, 0.0) - sum(cost * done.get(by, 0.0) for by, cost in costs.items()))

        # Of tenants that do nothing, heads of streams are read by the walk over all of them; and what they ask themselves they ask whenever the service comes.
        of_idle = next((by for pattern, by in IDLE_OF if re.match(pattern, name)), "visits")
        if alone[1].get("seconds"):
            costs["seconds"] = rest(alone) / alone[1]["seconds"]
        if name == "api requests":
            # Each report is one.
            costs["reports"] = 1.0
        found = both((rest(idle), idle[1].get(of_idle, 0.0), idle[1].get(driver, 0.0)), (rest(working), working[1].get(of_idle, 0.0), working[1].get(driver, 0.0)))
        for by, cost in zip((of_idle, driver), found):
            costs[by] = costs.get(by, 0.0) + cost
        units[name] = {by: cost for by, cost in costs.items() if cost > 0}
    return units


def requests_of_tenants(counts, done, alone):
    """Requests to the API of a window beyond those that come without tenants, of disk nodes above all: what these cost is in the seconds."""
    counts_alone, done_alone = alone
    return max(0.0, counts.get("api requests", 0.0) - counts_alone.get("api requests", 0.0) / done_alone["seconds"] * done["seconds"])


def predict(units, done):
    """Counts from how often what was done. Requests to the API of tenants are a count themselves, and what others depend on."""
    done = with_sums(done)
    done["requests"] = sum(cost * done.get(by, 0.0) for by, cost in units.get("api requests", {}).items() if by != "seconds")
    return {name: sum(cost * done.get(by, 0.0) for by, cost in costs.items()) for name, costs in units.items()}


def commit_period_s(every_s):
    """A trickle is committed TRICKLE_S after its first change, and the next change is the first write after that."""
    return every_s * (math.floor(TRICKLE_S / every_s) + 1)


def to_be_done(cadence, tenants, seconds):
    """How often what will be done, by the clock: the service's passes are quick, and no edge is late."""
    commits = tenants * seconds / commit_period_s(cadence["seconds_between_writes"])
    return {
        "seconds": seconds, "folds": seconds / FOLD_S, "offices": tenants * seconds / VISIT_S, "visits": tenants * seconds / VISIT_S, "commits": commits,
        "looks": min(commits, tenants * seconds / LOOK_S), "settled": tenants * seconds / SETTLE_S,
        "metered": commits * cadence["metered_per_commit"], "reports": commits * cadence["reports_per_commit"],
    }


def cadence(done, every_s):
    return {
        "seconds_between_writes": every_s,
        "metered_per_commit": done["metered"] / done["commits"], "reports_per_commit": done["reports"] / done["commits"],
    }


def fullest(names):
    """The fullest of SHARDS shards against their mean, for so many names thrown at random: they spread by √mean."""
    mean = max(names / SHARDS, 1e-9)
    return 1 + FULLEST / math.sqrt(mean)


def is_shared(name):
    """Whether a partition is one for all tenants, streams or volumes."""
    return "*" not in name and not SHARD.match(name)


def is_shared_or_shard(name):
    return is_shared(name) or SHARD.match(name) is not None


def summed(counts):
    """The classes that a prediction is held to: requests to the store by kind and to the API, capacity of the table, partitions that all tenants share."""
    sums = {name: count for name, count in counts.items() if name.startswith(("store ", "api "))}
    for kind in ("writes", "reads"):
        parts = {name: count for name, count in counts.items() if name.startswith(f"table {kind} ")}
        sums[f"table {kind}"] = sum(parts.values())
        sums |= {name: count for name, count in parts.items() if is_shared(name)}
        for name, count in parts.items():
            if shard := SHARD.match(name):
                group = f"{shard.group(1)} in shards"
                sums[group] = sums.get(group, 0.0) + count
    return sums


def fullest_shards(counts):
    """Of what is written; all are read alike, by the fold that looks for markers."""
    found = {}
    for name, count in counts.items():
        if (shard := SHARD.match(name)) and name.startswith("table writes "):
            found[shard.group(1)] = max(found.get(shard.group(1), 0.0), count)
    return found


def rows(predicted, measured, tenants):
    """(what, predicted, measured, whether it is missed; None: too few to say), of a window."""
    predicted_sums, measured_sums = summed(predicted), summed(measured)
    shards = fullest_shards(measured)
    for group, found in shards.items():
        names = tenants * NAMES[group.rsplit("/", 1)[1]]
        name = f"{group}, fullest of {SHARDS} shards"
        measured_sums[name] = found
        predicted_sums[name] = predicted_sums.get(f"{group} in shards", 0.0) / SHARDS * fullest(names)
    for name in sorted(measured_sums.keys() | predicted_sums.keys()):
        expected, found = predicted_sums.get(name, 0.0), measured_sums.get(name, 0.0)
        few = max(expected, found) < LEAST
        if "fullest" in name and tenants * NAMES[re.search(r"billing/(\w+)", name).group(1)] < NAMES_LEAST * SHARDS:
            few = True
        yield name, expected, found, None if few else abs(found - expected) > WITHIN * expected


def of_nodes(counts):
    """What is the disk nodes' of a service without tenants: the capacity of their table."""
    return {name: count for name, count in counts.items() if name.startswith(("table writes disks ", "table reads disks "))}


def node_units(measured):
    """`count(M) = cluster + M × node`, a second, from the two smallest numbers of nodes. The cluster's coordinator lists all nodes, and with thousands
    such a list is many units; that is not in here."""
    (few, at_few), (more, at_more) = sorted(measured.items())[:2]
    found = {}
    for name in at_more:
        node = max(0.0, (at_more[name] - at_few.get(name, 0.0)) / (more - few))
        found[name] = {"cluster": max(0.0, at_more[name] - node * more), "node": node}
    return found


def predict_nodes(units, nodes):
    return {name: cost["cluster"] + cost["node"] * nodes for name, cost in units.items()}


def dollars(counts):
    sums = summed(counts)
    return {name: sums.get(name, 0) * price for name, price in DOLLARS.items()}


def a_second(model, tenants):
    """Counts a second with so many tenants, and NODES nodes."""
    counts = predict(model["units"], to_be_done(model["cadence"], tenants, 1.0))
    counts = {name: count for name, count in counts.items() if " disks " not in name}
    # DynamoDB takes a unit for a query that finds nothing, DynamoDB Local none.
    counts["table reads * queries of the fold that find nothing"] = max(0.0, (1 + SHARDS) / FOLD_S - with_sums(to_be_done(model["cadence"], tenants, 1.0))["finds"])
    return counts | (predict_nodes(model["node"], NODES) if model.get("node") else {})


def limits(model):
    """(How many until it is full, of what, which limit): partitions that all share and the fullest shards, in the order in which they break."""
    found, bounds = [], (("writes", PARTITION_WRITES), ("reads", PARTITION_READS))
    fixed, costs = summed(a_second(model, 0)), summed(a_second(model, 10**6))
    for kind, limit in bounds:
        for name, cost in costs.items():
            if not name.startswith(f"table {kind} ") or " disks " in name:
                continue
            cost = (cost - fixed.get(name, 0.0)) / 10**6
            if cost <= 0:
                continue
            what = name.split(" ", 2)[2]
            if what.endswith(" in shards"):
                group = what.removesuffix(" in shards")
                alone = (limit - fixed.get(name, 0.0)) / cost
                found.append((alone, "tenants", f"{limit} {kind} a second of {group!r}, were it not spread"))
                if kind == "reads":
                    continue
                tenants = alone * SHARDS
                for _ in range(20):
                    tenants = alone * SHARDS / fullest(tenants * NAMES[group.rsplit("/", 1)[1]])
                found.append((tenants, "tenants", f"{limit} {kind} a second of the fullest shard of {group!r}"))
            else:
                found.append(((limit - fixed.get(name, 0.0)) / cost, "tenants", f"{limit} {kind} a second of the partition {what!r}"))
        for name, cost in (model.get("node") or {}).items():
            if name.startswith(f"table {kind} ") and cost["node"] > 0:
                found.append(((limit - cost["cluster"]) / cost["node"], "disk nodes", f"{limit} {kind} a second of the partition {name.split(' ', 2)[2]!r}"))
    return sorted(found)


def described(model, tenants=(10**3, 10**4, 10**5, 10**6)):
    """The model in Markdown."""
    cadence = model["cadence"]
    yield f"A tenant's client writes every {cadence['seconds_between_writes']:g} s; costs are from {model['calibrated_with']} tenants."
    yield ""
    yield "| of each | " + " | ".join(("requests to the store", "requests to the API", "units written", "units read")) + " |"
    yield "|---|---|---|---|---|"
    for by in DRIVERS:
        once = {name: costs[by] for name, costs in model["units"].items() if by in costs}
        sums = summed(once)
        cells = (sum(count for name, count in sums.items() if name.startswith("store ")), sums.get("api requests", 0.0), sums["table writes"], sums["table reads"])
        if any(cells):
            yield f"| {WORDS[by]} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |"
    yield ""
    yield "| tenants | requests to the store a second | units written a second | units read a second | dollars a month |"
    yield "|---|---|---|---|---|"
    for count in tenants:
        counts = a_second(model, count)
        sums = summed(counts)
        store = sum(value for name, value in sums.items() if name.startswith("store "))
        yield f"| {count} | {store:.0f} | {sums['table writes']:.0f} | {sums['table reads']:.0f} | {sum(dollars(counts).values()) * SECONDS_A_MONTH:.0f} |"
    if model.get("node"):
        yield ""
        yield "| disk nodes | units written a second | units read a second | dollars a month |"
        yield "|---|---|---|---|"
        for nodes in (10**2, 10**3, 10**4):
            counts = predict_nodes(model["node"], nodes)
            sums = summed(counts)
            yield f"| {nodes} | {sums['table writes']:.0f} | {sums['table reads']:.0f} | {sum(dollars(counts).values()) * SECONDS_A_MONTH:.0f} |"
    yield ""
    yield "What breaks first:"
    yield ""
    for count, what, limit in limits(model)[:10]:
        yield f"- at {count:.0f} {what}: {limit}"


WORDS = {
    "seconds": "second of the service", "walks": "page of a walk over all streams", "tenant_pages": "page of the list of tenants", "stream_pages": "page of forwarding records", "finds": "query of the fold that finds some", "tenant_folds": "tenant for whom a fold finds some", "visits": "visit of the upkeep to a tenant", "commits": "commit", "looks": "look for a newer key ring",
    "metered": "batch of usage that the service makes", "reports": "report of an edge", "batches": "batch of usage, whoever made it",
    "requests": "request of a tenant to the API", "settled": "tenant whose accounts are settled",
}


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__.splitlines()[0])
    print("\n".join(described(json.loads(pathlib.Path(sys.argv[1]).read_text()))))
