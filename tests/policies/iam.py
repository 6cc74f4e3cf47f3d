"""An evaluator of IAM's policies that denies by default.

Evaluation as AWS documents it: a request is denied unless a statement of the principal's policies allows it, a denial anywhere wins over any
allowance, and a session may do only what both its role and its session policy allow. A policy of a resource may deny here, and no more, but
for a role's trust, which alone says who assumes it. It guesses nothing: an operator, an element, a principal or a placeholder that it does
not know is a `Unknown`, which fails whatever asked.
"""

import functools
import re

ELEMENTS = {"Sid", "Effect", "Action", "Resource", "Condition", "Principal"}
# IAM's operators that the product uses, without the prefix for sets of values and without IfExists, which it does not use.
TEXT = {
    "StringEquals": (False, False), "StringNotEquals": (True, False), "StringLike": (False, True), "StringNotLike": (True, True),
    "ArnEquals": (False, True), "ArnLike": (False, True), "ArnNotEquals": (True, True), "ArnNotLike": (True, True),
}


class Unknown(Exception):
    """What the evaluator does not judge."""


def listed(value):
    return value if isinstance(value, list) else [value]


@functools.cache
def like(pattern, text):
    """Whether the text meets a pattern of IAM, which knows * and ? only."""
    if "${" in pattern:
        raise Unknown(f"the placeholder in {pattern}")
    parts = (".*" if one == "*" else "." if one == "?" else re.escape(one) for one in pattern)
    return re.fullmatch("".join(parts), text, re.DOTALL) is not None


def holds(operator, wanted, found):
    """One operator on one key. `found` is None without the key, a text, or a list of texts for a key of many values."""
    wanted = [str(one) for one in listed(wanted)]
    quantifier, _, plain = operator.rpartition(":")
    if operator == "Null":
        if wanted not in (["true"], ["false"]):
            raise Unknown(f"Null: {wanted}")
        return (found is None) == (wanted == ["true"])
    if operator == "Bool":
        if any(one not in ("true", "false") for one in wanted):
            raise Unknown(f"Bool: {wanted}")
        return found is not None and found in wanted
    if plain not in TEXT:
        raise Unknown(f"the operator {operator}")
    negated, patterned = TEXT[plain]

    def meets(value):
        met = any(like(one, value) if patterned else one == value for one in wanted)
        return met != negated

    if quantifier == "ForAllValues":
        # Also without the key: whoever uses it must not allow what has no such key, or ask for the key by Null.
        return all(meets(value) for value in listed([] if found is None else found))
    if quantifier == "ForAnyValue":
        return found is not None and any(meets(value) for value in listed(found))
    if quantifier:
        raise Unknown(f"the operator {operator}")
    if isinstance(found, list):
        raise Unknown(f"{operator} on a key of many values")
    return negated if found is None else meets(found)


def conditions_hold(statement, context):
    # Every condition is looked at, so that an unknown operator is found whatever stands beside it.
    return all([holds(operator, wanted, context.get(key)) for operator, keys in statement.get("Condition", {}).items() for key, wanted in keys.items()])


def statements(document):
    if document.get("Version") != "2012-10-17" or set(document) - {"Version", "Statement"}:
        raise Unknown(f"a policy of version {document.get('Version')} with {sorted(document)}")
    for statement in document["Statement"]:
        if set(statement) - ELEMENTS or statement.get("Effect") not in ("Allow", "Deny") or "Action" not in statement:
            raise Unknown(f"the statement {statement}")
        yield statement


def is_principal(principal, asking):
    """`asking` is (kind, name): ("AWS", arn) or ("Service", name)."""
    if principal == "*":
        return True
    if not isinstance(principal, dict) or set(principal) - {"AWS", "Service"}:
        raise Unknown(f"the principal {principal}")
    kind, name = asking
    # Names of principals are no patterns, but for one that stands for all.
    return any(one in ("*", name) for one in listed(principal.get(kind, [])))


def effects(document, action, resource, context, asking=None):
    """The effects of all statements that apply."""
    found = set()
    for statement in statements(document):
        if ("Principal" in statement) != (asking is not None):
            raise Unknown(f"a principal in a principal's policy, or none in a resource's: {statement}")
        applies = [
            any([like(one.lower(), action.lower()) for one in listed(statement["Action"])]),
            # A trust policy names no resource: it is the role's own.
            "Resource" not in statement or any([like(one, resource) for one in listed(statement["Resource"])]),
            conditions_hold(statement, context),
            asking is None or is_principal(statement["Principal"], asking),
        ]
        if all(applies):
            found.add(statement["Effect"])
    return found


def is_allowed(policies, action, resource, context, session=None, of_resource=None, asking=("AWS", "")):
    """Whether a principal with these policies may do it; with `session`, only what that allows too."""
    own = set().union(*(effects(policy, action, resource, context) for policy in policies))
    narrowed = {"Allow"} if session is None else effects(session, action, resource, context)
    there = set() if of_resource is None else effects(of_resource, action, resource, context, asking)
    if "Allow" in there:
        raise Unknown("a resource's policy that allows")
    return "Deny" not in own | narrowed | there and "Allow" in own and "Allow" in narrowed


def trusts(trust, asking, context):
    """Whether a role may be assumed by a principal, as far as its trust policy goes."""
    found = effects(trust, "sts:AssumeRole", "", context, asking)
    return "Allow" in found and "Deny" not in found
