"""Who may do what, compared: what `matrix.txt` says with what the evaluator makes of policies.

`matrix.txt` has a section for each thing there is, and in it a line for each role that may do anything to it; `everyone else  nothing` closes
it. So every cell of role, action and resource is written down, and one that is missing, twice or of an unknown word is an error.
"""

import copy
import json
import pathlib

import iam
import roles

HERE = pathlib.Path(__file__).resolve().parent
ADMINISTRATOR = roles.Role("administrator", "CI that applies Terraform, and people with all of IAM", [], principal=roles.ADMINISTRATOR)
NOBODY = roles.Role("without", "a tenant's own disk node, a machine with a disk, a member: no credentials of the cloud", [], principal=f"arn:aws:iam::{roles.OTHER_ACCOUNT}:role/any")
EVERYBODY = [*roles.ROLES, ADMINISTRATOR, NOBODY]
CLOSING = "everyone else"


class Wrong(Exception):
    """The matrix, or what it is asked of, cannot be read."""


class Attached:
    """The policies as they are attached: by role its own and its session's, by bucket the bucket's."""

    def __init__(self):
        self.own = {role.name: role.policies() for role in roles.ROLES}
        self.own |= {ADMINISTRATOR.name: [roles.EVERYTHING], NOBODY.name: []}
        self.session = {role.name: role.session_policy() for role in EVERYBODY if role.session}
        self.bucket = {bucket: roles.bucket_policy(bucket) for bucket in (roles.BUCKET, roles.SECOND, roles.MANAGED)}

    def may(self, role, action, resource, context, secure="true"):
        bucket = resource.removeprefix("arn:aws:s3:::").split("/")[0] if resource.startswith("arn:aws:s3:::") else None
        there = {"aws:PrincipalArn": role.arn(), "aws:SecureTransport": secure, **context}
        return iam.is_allowed(
            self.own[role.name], action, resource, there, self.session.get(role.name), self.bucket.get(bucket), ("AWS", role.arn()),
        )

    def documents(self, role):
        """(where it is, the document) of all that speaks for a role alone."""
        return [*enumerate(self.own[role.name])] + ([("session", self.session[role.name])] if role.name in self.session else [])


def read(text):
    """{(resource, role): verbs}, complete."""
    sections, current = {}, None
    for number, line in enumerate(text.splitlines(), 1):
        line = line.split("#", 1)[0].rstrip()
        if not line:
            continue
        if line.startswith("["):
            current = line.strip("[]")
            if current in sections or current not in roles.RESOURCES:
                raise Wrong(f"line {number}: {current} is twice here, or is nothing that there is")
            sections[current] = {}
            continue
        who, *verbs = [CLOSING, *line[len(CLOSING):].split()] if line.startswith(CLOSING) else line.split()
        known = roles.VERBS[roles.RESOURCES[current][0]]
        if who in sections[current] or who not in [role.name for role in EVERYBODY] + [CLOSING]:
            raise Wrong(f"line {number}: {who} is twice in {current}, or is no role")
        if not verbs or (verbs != ["nothing"] and set(verbs) - set(known)):
            raise Wrong(f"line {number}: {' '.join(verbs)!r} is none of {', '.join(known)}")
        sections[current][who] = set() if verbs == ["nothing"] else set(verbs)
    wanted = {}
    for resource in roles.RESOURCES:
        for role in EVERYBODY:
            section = sections.get(resource, {})
            if role.name not in section and section.get(CLOSING) != set():
                raise Wrong(f"nothing is said of {role.name} and [{resource}]")
            wanted[resource, role.name] = section.get(role.name, set())
    return wanted


def expected():
    return read((HERE / "matrix.txt").read_text())


def found(attached, everybody=EVERYBODY, only=lambda resource: True):
    """{(resource, role): verbs}, by the evaluator; a word whose actions differ is an error."""
    verbs = {(resource, role.name): set() for resource in roles.RESOURCES if only(resource) for role in everybody}
    mixed = []
    for resource, verb, requests in roles.cells():
        if not only(resource):
            continue
        for role in everybody:
            answers = {attached.may(role, *request) for request in requests}
            if len(answers) > 1:
                mixed.append(f"{role.name}: {verb} on [{resource}] is allowed of a part only")
            if True in answers:
                verbs[resource, role.name].add(verb)
    return verbs, mixed


def deviations(attached, wanted, everybody=EVERYBODY, only=lambda resource: True):
    """Where policies differ from the matrix, as sentences."""
    verbs, mixed = found(attached, everybody, only)
    sentences = []
    for (resource, role), may in verbs.items():
        should = wanted[resource, role]
        sentences += [f"{role} may {verb} [{resource}], and must not" for verb in sorted(may - should)]
        sentences += [f"{role} may not {verb} [{resource}], and must" for verb in sorted(should - may)]
    return sentences + mixed


def in_the_clear(attached, everybody=EVERYBODY):
    """Requests to buckets of ours that are let in by plain HTTP."""
    let_in, asked = [], 0
    for resource, verb, requests in roles.cells():
        for role in everybody:
            for action, arn, context in requests:
                if any(arn == f"arn:aws:s3:::{bucket}" or arn.startswith(f"arn:aws:s3:::{bucket}/") for bucket in attached.bucket):
                    asked += 1
                    if attached.may(role, action, arn, context, secure="false"):
                        let_in.append(f"{role.name}: {action} on {arn}")
    return let_in, asked


def trusted():
    """Where a role's trust policy lets in somebody else, or somebody less, than roles.TRUSTS says."""
    sentences = []
    for path, (wanted) in roles.TRUSTS.items():
        document = roles.filled(path, roles.VALUES)
        services = {"lambda.amazonaws.com", "ec2.amazonaws.com", "events.amazonaws.com", "sns.amazonaws.com"}
        askers = [("Service", service, service in wanted["Service"]) for service in services]
        askers += [("AWS", role.arn(), role.name in wanted["AWS"]) for role in EVERYBODY]
        for kind, name, should in askers:
            if iam.trusts(document, (kind, name), wanted["context"]) != should:
                sentences.append(f"{path}: {name} {'is kept out' if should else 'is let in'}")
            for missing in wanted["context"]:
                for value in (None, "somebody else's"):
                    other = {key: one for key, one in wanted["context"].items() if key != missing} | ({} if value is None else {missing: value})
                    if iam.trusts(document, (kind, name), other):
                        sentences.append(f"{path}: {name} is let in with {missing} = {value}")
    return sentences


# Statements that deny what nothing allows, or is denied elsewhere too: a second lock. Leaving one out changes nothing, and it is listed to be so.
SECOND_LOCKS = {
    "edge": {"DestroyNothing"},
    "mirror-edge": {"DestroyNothing"},
    "recovery": {"DestroyNothing"},
    "anchored-edge": {"DestroyNothing"},
    "edge-session": {"deny s3:Delete*"},
    "tenant-session": {"deny s3:Delete*"},
}


def name_of(statement):
    return statement.get("Sid") or f"{statement['Effect'].lower()} {iam.listed(statement['Action'])[0]}"


def unnoticed(attached, wanted, everybody):
    """Statements that may be left out, or widened to everything, without the matrix noticing."""
    changes = {
        "left out": lambda statements, index: statements.pop(index),
        "widened to all actions": lambda statements, index: statements[index].update(Action="*"),
        "widened to all resources": lambda statements, index: statements[index].update(Resource="*"),
        "freed of its conditions": lambda statements, index: statements[index].pop("Condition", None),
    }
    missed, tried = [], 0
    for role in everybody:
        for place, document in attached.documents(role):
            for index, statement in enumerate(document["Statement"]):
                for what, change in changes.items():
                    changed = copy.deepcopy(document)
                    change(changed["Statement"], index)
                    if changed == document or (statement["Effect"] == "Deny" and name_of(statement) in SECOND_LOCKS.get(role.name, ())):
                        continue
                    other = copy.copy(attached)
                    other.own, other.session = dict(attached.own), dict(attached.session)
                    if place == "session":
                        other.session[role.name] = changed
                    else:
                        other.own[role.name] = [changed if at == place else one for at, one in enumerate(attached.own[role.name])]
                    tried += 1
                    if not deviations(other, wanted, [role]):
                        missed.append(f"{role.name}: {name_of(statement)} {what}")
    return missed, tried


def text(verbs):
    """The matrix as `matrix.txt` is written."""
    lines = []
    for resource in roles.RESOURCES:
        lines.append(f"[{resource}]")
        for role in EVERYBODY:
            may = [verb for verb in roles.VERBS[roles.RESOURCES[resource][0]] if verb in verbs[resource, role.name]]
            if may:
                lines.append(f"{role.name:<16}{' '.join(may)}")
        lines += [f"{CLOSING:<16}nothing", ""]
    return "\n".join(lines)


def shipped():
    """Every file of the tree that is a policy."""
    import subprocess

    names = subprocess.run(["git", "-C", roles.ROOT, "ls-files", "-co", "--exclude-standard", "*.json"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    return {name for name in names if (roles.ROOT / name).exists() and '"Statement"' in (roles.ROOT / name).read_text(errors="replace")}


def known():
    """Every policy file that a role, a trust or a resource has."""
    return {path for role in roles.ROLES for path in [*role.files, *([role.session] if role.session else [])]} | set(roles.TRUSTS) | set(roles.OF_RESOURCES)
