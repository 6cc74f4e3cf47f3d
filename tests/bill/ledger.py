"""What the customer is charged by the service's own word, and what it is held against: the tuples in the table of roots (docs/formats.md)."""

import base64
import datetime
import struct


def month():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m")


def usage(world):
    """All of the month: {(meter, resource, standing): quantity}."""
    found, cursor = {}, ""
    while cursor is not None:
        page = world.customer.asks(f"usage/{month()}?limit=100{cursor}")
        for hour in page["items"]:
            for entry in hour["entries"]:
                key = entry["meter"], entry["resource"], entry["standing"]
                found[key] = found.get(key, 0) + int(entry["quantity"])
        cursor = f"&cursor={page['next_cursor']}" if page.get("next_cursor") else None
    return found


def charged(world, meter, resource=None, standing="observed"):
    return sum(quantity for (of, what, by), quantity in usage(world).items() if of == meter and by == standing and resource in (None, what))


def commits_in_table(world, volume):
    """By docs/formats.md: the last eight bytes of a volume's tuple. A sum over the volume and its clones."""
    items = world.items("roots", f"anchor/{world.place_of(volume)}")
    tuples = [base64.b64decode(item["value"]["B"]) for item in items if item["sort"]["S"].startswith("volume/")]
    assert tuples and all(value[1:2] == b"V" for value in tuples), items
    return sum(struct.unpack_from("<Q", value, len(value) - 8)[0] for value in tuples)


def account_in_table(world, volume):
    """Requests, byte-milliseconds, bytes of the last listing."""
    items = world.items("roots", f"anchor/{world.place_of(volume)}")
    value = next(base64.b64decode(item["value"]["B"]) for item in items if item["sort"]["S"] == "cleaner-account")
    requests, high, low, listed = struct.unpack_from("<QQQQ", value, 3)
    return requests, high << 64 | low, listed
