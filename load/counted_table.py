"""A proxy before DynamoDB that counts: requests and the capacity that the table says they took, by partition; and, from what the requests are about, how often
the service did what its costs depend on (model.DRIVERS)."""

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
    """`units`: capacity by (class of partition, "reads" or "writes"). `requests_of`: requests by action. `done`: how often (model.DRIVERS)."""

    def __init__(self, target):
        self.units, self.requests_of = {}, {}
        self.done = {"commits": 0, "metered": 0, "reports": 0, "visits": 0, "folds": 0, "beats": 0}
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
        consumed = answer.get("ConsumedCapacity") or []
        units = sum(one["CapacityUnits"] for one in (consumed if isinstance(consumed, list) else [consumed]))
        items = list(items_of(action, asked)) or [("", "?", "", False)]
        with self.lock:
            self.requests_of[action] = self.requests_of.get(action, 0) + 1
            for table, partition, sort, _ in items:
                key = class_of(table, partition, sort), kind
                self.units[key] = self.units.get(key, 0) + units / len(items)
            if not answer.get("__type"):
                self._note(action, asked, items)

    def _note(self, action, asked, items):
        for table, partition, sort, is_put in items:
            if is_put and partition.startswith("anchor/") and sort.startswith("volume/"):
                self.done["commits"] += 1
            elif is_put and partition.startswith("billing/chunks/"):
                self.done["reports" if partition.startswith("billing/chunks/edge/") else "metered"] += 1
            elif action == "GetItem" and sort == "capacity":
                # That of a disk node has the same name, in another table.
                self.done["visits" if table != "disks" else "beats"] += 1
            elif action == "Query" and partition == "billing/pending":
                self.done["folds"] += 1
            elif action == "Query" and partition.startswith("billing/hours/") and asked.get("Limit") == 1:
                self.settling = self.now()

    @staticmethod
    def now():
        import time

        return time.monotonic()
