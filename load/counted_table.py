"""A proxy before DynamoDB that counts: requests and the capacity they take, by partition; and, from what the requests are about, how often
the service did what its costs depend on (model.DRIVERS).

Of a transaction the capacity is reckoned item by item, as DynamoDB charges it: two units for each KiB begun of an item that is put, two for one that is removed
or checked (all such are small here), whether its conditions held or not. DynamoDB Local says less, and the less the more items there are: a fold of ten tenants would seem to
cost hardly more than one of two. Of all else it is what the table says."""

import base64
import json
import re
import socket
import sys
import pathlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests/lab"))
from firnlab.counting import CountingProxy, Stream  # noqa: E402

READS = ("GetItem", "Query", "TransactGetItems", "BatchGetItem", "Scan")
WRITES = ("PutItem", "DeleteItem", "UpdateItem", "TransactWriteItems")
# In a partition's name: ids, addresses, numbers. The two digits of a shard stay.
IDS = re.compile(r"[0-9a-f]{16,32}|@[\w.-]+|(?<=[/|])\d+(?=[/|]|$)")
SHARD = re.compile(r"^(billing/\w+)/(\d\d)$")


# Of a write by itself; a transaction prepares and commits each.
WRITE_UNIT_BYTES, TRANSACTION = 1024, 2


def value_bytes(value):
    """Of an attribute's value, as DynamoDB counts: text and bytes as they are, two digits of a number in a byte and one more."""
    (kind, content), = value.items()
    if kind == "S":
        return len(content.encode())
    return len(base64.b64decode(content)) if kind == "B" else len(content) // 2 + 1


def item_bytes(item):
    return sum(len(name.encode()) + value_bytes(value) for name, value in item.items())


def item_units(item):
    return max(1, -(-item_bytes(item) // WRITE_UNIT_BYTES))


def transaction_units(asked):
    """Of each item of a transaction, in order."""
    return [TRANSACTION * item_units(item.get("Item", {})) for part in asked["TransactItems"] for item in part.values()]


def action_of(head):
    found = re.search(rb"(?im)^x-amz-target: *\S+\.(\w+)", head)
    return found.group(1).decode() if found else ""


def items_of(action, asked):
    """(table, partition, sort, whether it is put) of each item that a request names; of a query the partition and no sort."""
    if action == "Query":
        values = asked.get("ExpressionAttributeValues", {})
        yield asked.get("TableName", ""), values.get(":p", {}).get("S", "?"), "", False
        return
    parts = asked.get("TransactItems") or [{action: asked}]
    for part in parts:
        for kind, item in part.items():
            key = item.get("Key") or item.get("Item") or {}
            yield item.get("TableName", ""), key.get("partition", {}).get("S", "?"), key.get("sort", {}).get("S", ""), "Item" in item


def class_of(table, partition, sort):
    """A partition's name with what is an id left out; roots by what lies beside them; the cluster of disk nodes by its table's name."""
    name = partition if SHARD.match(partition) else IDS.sub("*", partition)
    if name.startswith("anchor/"):
        # A volume's root, how far it was counted, and what is rarer.
        name += " " + (sort.split("/")[0] or "all")
    return ("disks " if table == "disks" else "") + name


class TableProxy(CountingProxy):
    """`units`: capacity by (class of partition, "reads" or "writes"). `requests_of`: items that requests named, by (action, class of partition): what a
    prediction that missed is explained by. `done`: how often (model.DRIVERS)."""

    def __init__(self, target):
        self.units, self.requests_of = {}, {}
        self.done = {"commits": 0, "metered": 0, "reports": 0, "visits": 0, "folds": 0, "beats": 0, "passes": 0, "settled": 0}
        # Streams that have left a forwarding record, by name.
        self.streams = set()
        # Bytes of each row that lists of tenants have shown.
        self.tenant_rows = []
        # When the rare pass of the service was last seen at work.
        self.settling = None
        super().__init__(target)

    def carry(self, near_socket):
        """As any, but by one connection to the table for each of the caller's."""
        near_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        near, far = Stream(near_socket), None
        while True:
            head, raw, asked = near.message()
            with self.lock:
                self.requests_in_all += 1
            head, raw = self.forwards(head, raw)
            for again in (False, True):
                try:
                    if far is None:
                        far_socket = socket.create_connection(self.target)
                        far_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        far = Stream(far_socket)
                    far.sock.sendall(head + raw)
                    answer, raw_answer, body = far.message()
                    break
                except OSError:
                    # The table closed a connection that was idle.
                    far = None
                    if again:
                        raise
            self.answered(None, head, asked, body)
            near_socket.sendall(answer + raw_answer)

    requests_in_all = 0

    def forwards(self, head, raw):
        action = action_of(head)
        if action not in READS and action not in WRITES:
            return head, raw
        raw = json.dumps(json.loads(raw) | {"ReturnConsumedCapacity": "TOTAL"}).encode()
        return re.sub(rb"(?i)content-length: *\d+", b"content-length: %d" % len(raw), head), raw

    def answered(self, request, head, asked, body):
        action = action_of(head)
        kind = "reads" if action in READS else "writes" if action in WRITES else None
        if kind is None:
            return
        answer, asked = json.loads(body), json.loads(asked)
        items = list(items_of(action, asked)) or [("", "?", "", False)]
        if action == "TransactWriteItems":
            units = transaction_units(asked)
        else:
            consumed = answer.get("ConsumedCapacity") or []
            units = [sum(one["CapacityUnits"] for one in (consumed if isinstance(consumed, list) else [consumed])) / len(items)] * len(items)
        with self.lock:
            for (table, partition, sort, _), taken in zip(items, units, strict=True):
                name = class_of(table, partition, sort)
                self.units[name, kind] = self.units.get((name, kind), 0) + taken
                self.requests_of[action, name] = self.requests_of.get((action, name), 0) + 1
            if not answer.get("__type"):
                if action == "Query" and items[0][1] == "tenants":
                    self.tenant_rows.extend(map(item_bytes, answer["Items"]))
                self._note(action, asked, items)

    def _note(self, action, asked, items):
        for table, partition, sort, is_put in items:
            if is_put and partition.startswith("anchor/") and sort.startswith("volume/"):
                self.done["commits"] += 1
            elif is_put and partition.startswith("billing/chunks/"):
                self.done["reports" if partition.startswith("billing/chunks/edge/") else "metered"] += 1
            elif is_put and partition == "billing/streams":
                self.streams.add(sort)
            elif action == "GetItem" and sort == "capacity":
                # That of a disk node has the same name, in another table.
                self.done["visits" if table != "disks" else "beats"] += 1
            elif action == "Query" and partition == "billing/pending":
                self.done["folds"] += 1
            elif action == "Query" and partition == "billing/streams" and ":s" not in asked["ExpressionAttributeValues"] and "ExclusiveStartKey" not in asked:
                # The watch looks at all streams first, whichever tenants it visits then.
                self.done["passes"] += 1
            elif action == "Query" and partition.startswith("billing/credits/"):
                # Who closes a month reads its credits; nobody asks for an invoice here.
                self.done["settled"] += 1
            elif action == "Query" and partition.startswith("billing/hours/") and asked.get("Limit") == 1:
                self.settling = self.now()

    @staticmethod
    def now():
        import time

        return time.monotonic()
