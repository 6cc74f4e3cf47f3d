"""The roles of Firn in AWS, the policy files that each has, and everything there is to be reached.

A file is filled as its user fills it: Terraform for self-hosted parts, `firn-api` for sessions, an administrator by `envsubst` for the rest.
"""

import json
import pathlib
import re
from dataclasses import dataclass, field

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ACCOUNT, REGION = "000000000000", "eu-central-1"
OTHER_ACCOUNT = "111111111111"
# Self-hosted: what infra/local makes.
BUCKET, PREFIX, TABLE, CLEANER = "firn-bucket", "firn", "firn", "firn-cleaner"
# A service.
MANAGED, CONTROL, ANCHOR, CLUSTER, SERVICE_CLEANER = "firn-eu", "firn-control", "firn-anchor", "firn-disks", "firn-service-cleaner"
TENANT, OTHER_TENANT = "ten_" + "a" * 32, "ten_" + "b" * 32
VOLUME, OTHER_VOLUME = "vol_" + "1" * 32, "vol_" + "2" * 32
FAMILY = "f" * 32
# The anchor as a function, and its table.
ANCHOR_FUNCTION, ROOTS = "firn-anchor", "firn-roots"
OWN_BUCKET = "acme-files"  # a bucket that a tenant brought
SECOND, SECOND_PREFIX = "firn-second", "copy"  # the second store of an office

VALUES = {
    "ACCOUNT": ACCOUNT, "REGION": REGION, "BUCKET": BUCKET, "PREFIX": PREFIX, "TABLE": TABLE, "NAME": CLEANER,
    "CONTROL_TABLE": CONTROL, "ANCHOR_TABLE": ANCHOR, "CLUSTER_TABLE": CLUSTER, "CLUSTER": "main", "FUNCTION": ANCHOR_FUNCTION,
    "API_ROLE": "firn-api", "EDGES_ROLE": "firn-edges", "TENANTS_ROLE": "firn-storage", "NODE_ROLE": "firn-node", "EXTERNAL_ID": TENANT,
    "SERVICE_ACCOUNT": ACCOUNT, "SUBNETS": json.dumps([f"arn:aws:ec2:{REGION}:{ACCOUNT}:subnet/subnet-{zone}" for zone in (1, 3)]),
    "TRUSTED_SERVICE": "ec2.amazonaws.com", "SECURITY_GROUP": "sg-1", "IMAGE": "ami-1",
    "SECOND_BUCKET": SECOND, "SECOND_PREFIX": SECOND_PREFIX,
    "DELETERS": json.dumps([f"arn:aws:iam::{ACCOUNT}:role/{CLEANER}"]),
}


class Unfilled(Exception):
    """A placeholder without a value."""


def filled(path, values):
    """A policy file with every placeholder filled."""
    def value(found):
        if found[1] not in values:
            raise Unfilled(f"{path}: {found[0]}")
        return values[found[1]]
    return json.loads(re.sub(r"\$\{(\w+)\}", value, (ROOT / path).read_text()))


@dataclass
class Role:
    """Who may act in the cloud, and by which files."""

    name: str
    what: str
    files: list
    # Values of placeholders that are not VALUES.
    values: dict = field(default_factory=dict)
    # A session policy, narrowing the files.
    session: str = None
    principal: str = None

    def policies(self):
        return [filled(path, VALUES | self.values) for path in self.files] or [EVERYTHING]

    def session_policy(self):
        return self.session and filled(self.session, VALUES | self.values)

    def arn(self):
        return self.principal or f"arn:aws:iam::{ACCOUNT}:role/{self.name}"


MANAGED_PLACE = f"{TENANT}/{VOLUME}"
SESSION = {"BUCKET": MANAGED, "UNDER": f"{MANAGED_PLACE}/*"}
API = "services/api/iam/"
BLOCKD = "dataplane-blockd/firn-blockd/iam/"
LAMBDA = "services/cleaner-lambda/"
FUNCTION = "services/anchor-lambda/"
EVERYTHING = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}

ROLES = [
    Role("edge", "an edge of an office, self-hosted", ["edge-proxy/iam-policy.json"], principal=f"arn:aws:iam::{ACCOUNT}:user/firn-edge"),
    Role("mirror-edge", "the same with a second store", ["edge-proxy/iam-policy.json", "edge-proxy/iam-policy-second.json"], principal=f"arn:aws:iam::{ACCOUNT}:user/firn-edge"),
    Role("recovery", "an administrator who recovers volumes, self-hosted", ["edge-proxy/iam-recover.json"]),
    Role("cleaner", "the cleaner, self-hosted", [LAMBDA + "iam-policy.json"], principal=f"arn:aws:iam::{ACCOUNT}:role/{CLEANER}"),
    Role("mirror-cleaner", "the same, keeping a second store", [LAMBDA + "iam-policy.json", "services/cleaner-standalone/iam-policy-second.json"], principal=f"arn:aws:iam::{ACCOUNT}:role/{CLEANER}"),
    # A session is looked at over a role that may do everything: so it is the session's policy that narrows, whatever a tenant granted.
    Role("edge-session", "an edge that joined a service, for one managed volume", [], SESSION, API + "edge-session.json"),
    Role("reader-session", "an edge that such a volume was granted to for reading", [], SESSION, API + "reader-session.json"),
    Role("writer-session", "an edge that such a volume was granted to for writing, held to the logs that it drew", [], SESSION | {"LOG": f"{MANAGED_PLACE}/{FAMILY}/log/0000000000000007/"}, API + "writer-session.json"),
    Role("tenant-session", "the same for a bucket of its tenant's", [], {"BUCKET": OWN_BUCKET, "UNDER": "files/*"}, API + "edge-session.json"),
    Role("ring-session", "the service, while it puts one key ring", [], {"BUCKET": MANAGED, "OBJECT": f"{MANAGED_PLACE}/{FAMILY}/keyring/0000000000000002"}, API + "ring-session.json"),
    Role("proof-session", "the service, while a tenant proves its bucket", [], {"BUCKET": OWN_BUCKET, "OBJECT": "files/firn-proof/0123"}, API + "proof-session.json"),
    Role("edges-role", "what sessions in managed buckets are sessions of", [API + "edges-role.json"], {"BUCKET": MANAGED}, principal=f"arn:aws:iam::{ACCOUNT}:role/firn-edges"),
    Role("tenant-role", "what a tenant grants the service for its bucket", [API + "tenant-role.json"], {"BUCKET": OWN_BUCKET, "PREFIX": "files"}, principal=f"arn:aws:iam::{OTHER_ACCOUNT}:role/firn-storage"),
    Role("service-cleaner", "the cleaner of managed volumes", [LAMBDA + "iam-policy-service.json"], {"BUCKET": MANAGED, "NAME": SERVICE_CLEANER}, principal=f"arn:aws:iam::{ACCOUNT}:role/{SERVICE_CLEANER}"),
    Role("tenant-cleaner", "the same, held to one tenant's bucket and roots", [LAMBDA + "iam-policy-tenant.json"], {"BUCKET": OWN_BUCKET, "PREFIX": "files", "NAME": "firn-tenant-cleaner", "TENANT": TENANT}),
    Role("anchor", "the anchor as a process of its own", ["services/anchor/iam-policy.json"]),
    Role("anchor-function", "the anchor as a function", [FUNCTION + "iam-policy.json"], {"NAME": ANCHOR_FUNCTION, "TABLE": ROOTS}, principal=f"arn:aws:iam::{ACCOUNT}:role/{ANCHOR_FUNCTION}"),
    Role("anchored-edge", "an edge of an office whose anchor is that function", ["edge-proxy/iam-policy-anchored.json", FUNCTION + "iam-caller.json"], principal=f"arn:aws:iam::{ACCOUNT}:user/firn-edge"),
    Role("anchor-cleaner", "a cleaner whose anchor is that function", [LAMBDA + "iam-policy-anchored.json", FUNCTION + "iam-caller.json"], principal=f"arn:aws:iam::{ACCOUNT}:role/{CLEANER}"),
    Role("api", "the control plane, billing in it", [API + "policy.json"], principal=f"arn:aws:iam::{ACCOUNT}:role/firn-api"),
    Role("node", "a disk node of the pool, and its coordinator", [BLOCKD + "node.json"], principal=f"arn:aws:iam::{ACCOUNT}:role/firn-node"),
    Role("disk-client", "a machine of the operator's that attaches disks", [BLOCKD + "disk-client.json"]),
]
# Somebody of the account who may do everything, as far as IAM goes: CI that applies Terraform, and people.
ADMINISTRATOR = f"arn:aws:iam::{ACCOUNT}:role/admin"

# Files that are no principal's: what they are for, and how they are filled.
OF_RESOURCES = {"infra/modules/bucket/bucket-policy.json": "buckets"}
TRUSTS = {
    FUNCTION + "iam-trust.json": {"Service": {"lambda.amazonaws.com"}, "AWS": set(), "context": {}},
    LAMBDA + "iam-trust.json": {"Service": {"lambda.amazonaws.com"}, "AWS": set(), "context": {}},
    BLOCKD + "node-trust.json": {"Service": {"ec2.amazonaws.com"}, "AWS": set(), "context": {}},
    API + "trust.json": {"Service": {"ec2.amazonaws.com"}, "AWS": set(), "context": {}},
    API + "edges-trust.json": {"Service": set(), "AWS": {"api"}, "context": {}},
    API + "tenant-trust.json": {"Service": set(), "AWS": {"api"}, "context": {"sts:ExternalId": TENANT}},
}


def bucket_policy(bucket):
    """The bucket's own policy; a tenant's bucket has what the tenant gave it, of which nothing is taken for granted."""
    cleaners = {BUCKET: CLEANER, SECOND: CLEANER, MANAGED: SERVICE_CLEANER}
    if bucket not in cleaners:
        return None
    deleters = json.dumps([f"arn:aws:iam::{ACCOUNT}:role/{cleaners[bucket]}"])
    return filled("infra/modules/bucket/bucket-policy.json", VALUES | {"BUCKET": bucket, "DELETERS": deleters})


def objects(*keys):
    return [f"arn:aws:s3:::{key}" for key in keys]


def table(name, *partitions):
    arn = f"arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/{name}"
    return [(arn, {"dynamodb:LeadingKeys": [partition]}) for partition in partitions] or [(arn, {})]


def under(bucket, *prefixes):
    return [(f"arn:aws:s3:::{bucket}", {} if prefix is None else {"s3:prefix": prefix}) for prefix in prefixes]


CREATE = {"s3:if-none-match": "*"}
# What is done, by kind of what it is done to. A word stands for all its actions: they are allowed alike or denied alike.
VERBS = {
    "object": {
        "read": (["s3:GetObject"], {}),
        "add": (["s3:PutObject"], CREATE),
        "overwrite": (["s3:PutObject"], {}),
        "delete": (["s3:DeleteObject"], {}),
        "destroy": (["s3:DeleteObjectVersion"], {}),
        "read-old": (["s3:GetObjectVersion"], {}),
        "open": (["s3:PutObjectAcl", "s3:PutObjectRetention", "s3:PutObjectLegalHold", "s3:BypassGovernanceRetention", "s3:PutObjectTagging", "s3:RestoreObject", "s3:ReplicateObject"], CREATE),
    },
    "listing": {"list": (["s3:ListBucket"], {}), "list-old": (["s3:ListBucketVersions"], {}), "list-uploads": (["s3:ListBucketMultipartUploads"], {})},
    "bucket": {
        "versioning?": (["s3:GetBucketVersioning"], {}),
        "configure": (["s3:DeleteBucket", "s3:PutBucketPolicy", "s3:DeleteBucketPolicy", "s3:PutBucketVersioning", "s3:PutLifecycleConfiguration", "s3:PutBucketAcl", "s3:PutReplicationConfiguration", "s3:PutBucketPublicAccessBlock"], {}),
    },
    "rows": {
        "get": (["dynamodb:GetItem"], {}),
        "query": (["dynamodb:Query"], {}),
        "check": (["dynamodb:ConditionCheckItem"], {}),
        "put": (["dynamodb:PutItem"], {}),
        "delete": (["dynamodb:DeleteItem"], {}),
        "others": (["dynamodb:UpdateItem", "dynamodb:BatchGetItem", "dynamodb:BatchWriteItem", "dynamodb:PartiQLSelect", "dynamodb:PartiQLInsert", "dynamodb:PartiQLUpdate", "dynamodb:PartiQLDelete"], {}),
    },
    "table": {
        "describe": (["dynamodb:DescribeTable"], {}),
        "scan": (["dynamodb:Scan", "dynamodb:PartiQLSelect", "dynamodb:GetRecords", "dynamodb:ExportTableToPointInTime"], {}),
        # Without a key in the request, which a condition on keys must not take for one that fits.
        "get-any": (["dynamodb:GetItem", "dynamodb:Query"], {}),
        "check-any": (["dynamodb:ConditionCheckItem"], {}),
        "put-any": (["dynamodb:PutItem"], {}),
        "delete-any": (["dynamodb:DeleteItem"], {}),
        "others-any": (["dynamodb:BatchGetItem", "dynamodb:BatchWriteItem", "dynamodb:UpdateItem"], {}),
        "configure": (["dynamodb:CreateTable", "dynamodb:DeleteTable", "dynamodb:UpdateTable", "dynamodb:UpdateContinuousBackups", "dynamodb:UpdateTimeToLive", "dynamodb:PutResourcePolicy", "dynamodb:CreateBackup", "dynamodb:RestoreTableFromBackup"], {}),
    },
    "queue": {
        "receive": (["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes", "sqs:ChangeMessageVisibility"], {}),
        "send": (["sqs:SendMessage"], {}),
        "configure": (["sqs:PurgeQueue", "sqs:DeleteQueue", "sqs:SetQueueAttributes", "sqs:AddPermission"], {}),
    },
    "log": {"write": (["logs:CreateLogStream", "logs:PutLogEvents"], {}), "read": (["logs:GetLogEvents", "logs:FilterLogEvents", "logs:DeleteLogStream"], {})},
    "function": {
        "call": (["lambda:InvokeFunction"], {}),
        "call-by-url": (["lambda:InvokeFunctionUrl", "lambda:InvokeFunction"], {"lambda:InvokedViaFunctionUrl": "true"}),
        "configure": (["lambda:UpdateFunctionCode", "lambda:UpdateFunctionConfiguration", "lambda:AddPermission", "lambda:GetFunction", "lambda:UpdateFunctionUrlConfig"], {"lambda:InvokedViaFunctionUrl": "true"}),
    },
    "role": {"assume": (["sts:AssumeRole"], {}), "configure": (["iam:PutRolePolicy", "iam:AttachRolePolicy", "iam:UpdateAssumeRolePolicy", "iam:DeleteRolePolicy"], {})},
    "passing": {"to-ec2": (["iam:PassRole"], {"iam:PassedToService": "ec2.amazonaws.com"}), "to-lambda": (["iam:PassRole"], {"iam:PassedToService": "lambda.amazonaws.com"}), "configure": (["iam:PutRolePolicy", "iam:UpdateAssumeRolePolicy"], {"iam:PassedToService": "ec2.amazonaws.com"})},
    "launch": {
        "start": (["ec2:RunInstances"], {"aws:RequestTag/firn:node": "nod_1"}),
        "start-untagged": (["ec2:RunInstances"], {}),
        "tag": (["ec2:CreateTags"], {"ec2:CreateAction": "RunInstances"}),
        "otherwise": (["ec2:CreateFleet", "ec2:RequestSpotInstances", "ec2:DeleteTags"], {"aws:RequestTag/firn:node": "nod_1", "ec2:CreateAction": "RunInstances"}),
    },
    "part": {"use": (["ec2:RunInstances"], {"aws:RequestTag/firn:node": "nod_1"}), "tag": (["ec2:CreateTags"], {"ec2:CreateAction": "RunInstances"}), "configure": (["ec2:CreateTags", "ec2:ModifyImageAttribute", "ec2:AuthorizeSecurityGroupIngress", "ec2:ModifySubnetAttribute"], {})},
    "machine": {
        "retag": (["ec2:CreateTags"], {}),
        "end": (["ec2:TerminateInstances"], {}),
        "enter": (["ec2:ModifyInstanceAttribute", "ec2:GetConsoleOutput", "ssm:StartSession", "ec2-instance-connect:SendSSHPublicKey", "ec2:CreateSnapshot"], {}),
    },
    "account": {
        "find-machines": (["ec2:DescribeInstances"], {}),
        "anything": (["iam:CreateAccessKey", "iam:CreateUser", "iam:CreateRole", "kms:Decrypt", "secretsmanager:GetSecretValue", "s3:ListAllMyBuckets", "s3:CreateBucket", "dynamodb:ListTables", "organizations:LeaveOrganization", "cloudtrail:StopLogging", "sts:GetFederationToken"], {}),
    },
}


def family(bucket, place, *keys):
    return objects(*(f"{bucket}/{place}/{FAMILY}/{key}" for key in keys))


def kinds(bucket, place, own):
    """An own place's objects, by kind."""
    return {
        f"{own}: segments": ("object", family(bucket, place, "log/1/2", "log/ffff/0")),
        f"{own}: forwarding records": ("object", family(bucket, place, "forward/1")),
        f"{own}: key rings": ("object", family(bucket, place, "keyring/0000000000000002")),
        f"{own}: audit reports": ("object", family(bucket, place, f"audits/{'1' * 32}/fffffffffffffffe")),
        f"{own}: other names": ("object", family(bucket, place, "else/1")),
        f"{own}: names like key rings": ("object", family(bucket, place, "log/keyring/1", "keyring/log/1")),
    }


def function(place, name):
    """What belongs to a function, which bears its name."""
    return {
        f"{place}: cleaner's queue": ("queue", [f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"]),
        f"{place}: cleaner's dead letters": ("queue", [f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}-dead"]),
        f"{place}: cleaner's log": ("log", [f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:/aws/lambda/{name}:log-stream:1"]),
        f"{place}: cleaner's function": ("function", [f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{name}"]),
    }


def role_arn(name, account=ACCOUNT):
    return f"arn:aws:iam::{account}:role/{name}"


def ec2(what, account=ACCOUNT):
    return f"arn:aws:ec2:{REGION}:{account}:{what}"


# name: (kind, [resource or (resource, context)]).
RESOURCES = (
    kinds(BUCKET, PREFIX, "office")
    | {
        "office: listing below the prefix": ("listing", under(BUCKET, f"{PREFIX}/", f"{PREFIX}/{FAMILY}/log/")),
        "office: listing beside it": ("listing", under(BUCKET, None, "", "other/", "firn2/", "fir")),
        "office: objects beside it": ("object", objects(f"{BUCKET}/other/log/1", f"{BUCKET}/firn2/log/1", f"{BUCKET}/other/{FAMILY}/log/1")),
        "office: bucket": ("bucket", under(BUCKET, None)),
        "office: rows of the roots": ("rows", table(TABLE, FAMILY, "e" * 32)),
        "office: table": ("table", table(TABLE)),
    }
    | function("office", CLEANER)
    | kinds(SECOND, SECOND_PREFIX, "second store")
    | {
        "second store: tombstones": ("object", family(SECOND, SECOND_PREFIX, "tombstone/log/1/2")),
        "second store: parities": ("object", objects(f"{SECOND}/{SECOND_PREFIX}/parity/{FAMILY}/1/2/group")),
        "second store: nonces": ("object", objects(f"{SECOND}/{SECOND_PREFIX}/probe/0123")),
        "second store: listing below the prefix": ("listing", under(SECOND, f"{SECOND_PREFIX}/", f"{SECOND_PREFIX}/{FAMILY}/log/")),
        "second store: listing beside it": ("listing", under(SECOND, None, "", "other/")),
        "second store: objects beside it": ("object", objects(f"{SECOND}/other/log/1", f"{SECOND}/copy2/log/1")),
        "second store: bucket": ("bucket", under(SECOND, None)),
    }
    | kinds(MANAGED, MANAGED_PLACE, "managed volume")
    | {
        "managed volume: log of a grantee's writer": ("object", family(MANAGED, MANAGED_PLACE, "log/0000000000000007/0000000000000001")),
        "managed volume: names like that log": ("object", family(MANAGED, MANAGED_PLACE, "log/00000000000000070/1", "else/log/0000000000000007/1")),
    }
    | {
        "managed volume: the ring being put": ("object", family(MANAGED, MANAGED_PLACE, "keyring/0000000000000002")),
        "managed volume: listing": ("listing", under(MANAGED, f"{MANAGED_PLACE}/", f"{MANAGED_PLACE}/{FAMILY}/log/")),
        "managed bucket: listing above and beside": ("listing", under(MANAGED, None, "", f"{TENANT}/", f"{TENANT}/{VOLUME}0/", f"{OTHER_TENANT}/{OTHER_VOLUME}/")),
        "managed bucket: segments of the tenant's other volume": ("object", family(MANAGED, f"{TENANT}/{OTHER_VOLUME}", "log/1/2")),
        "managed bucket: segments of another tenant": ("object", family(MANAGED, f"{OTHER_TENANT}/{OTHER_VOLUME}", "log/1/2") + family(MANAGED, f"{MANAGED_PLACE}0", "log/1/2")),
        "managed bucket: key rings of others": ("object", family(MANAGED, f"{TENANT}/{OTHER_VOLUME}", "keyring/0000000000000001") + family(MANAGED, f"{OTHER_TENANT}/{OTHER_VOLUME}", "keyring/0000000000000001")),
        "managed bucket": ("bucket", under(MANAGED, None)),
    }
    | function("managed bucket", SERVICE_CLEANER)
    | kinds(OWN_BUCKET, "files", "tenant's bucket")
    | function("tenant's bucket", "firn-tenant-cleaner")
    | {
        "tenant's bucket: the proof of control": ("object", objects(f"{OWN_BUCKET}/files/firn-proof/0123")),
        "tenant's bucket: other proofs": ("object", objects(f"{OWN_BUCKET}/files/firn-proof/4567")),
        "tenant's bucket: listing below the place": ("listing", under(OWN_BUCKET, "files/", f"files/{FAMILY}/log/")),
        "tenant's bucket: listing beside it": ("listing", under(OWN_BUCKET, None, "", "letters/")),
        "tenant's bucket: what else is in it": ("object", objects(f"{OWN_BUCKET}/letters/1", f"{OWN_BUCKET}/files2/{FAMILY}/else/1")),
        "tenant's bucket": ("bucket", under(OWN_BUCKET, None)),
        "another bucket: objects": ("object", objects(f"other/{PREFIX}/{FAMILY}/log/1/2", f"other/{MANAGED_PLACE}/{FAMILY}/log/1/2")),
        "another bucket: listing": ("listing", under("other", None, f"{PREFIX}/", f"{SECOND_PREFIX}/", f"{MANAGED_PLACE}/", "files/")),
        "control plane: rows of tenants": ("rows", table(CONTROL, f"tenant/{TENANT}", f"tenant/{OTHER_TENANT}", "tenants")),
        "control plane: rows of the service": ("rows", table(CONTROL, "service", "signup", "open-sagas", "revocations")),
        "control plane: rows of the ledger": ("rows", table(CONTROL, "billing/tenants", f"billing/{TENANT}")),
        "control plane: rows named like roots": ("rows", table(CONTROL, f"anchor/{TENANT}/{VOLUME}", "blockd/main/disks")),
        "control plane: table": ("table", table(CONTROL)),
        "anchor: rows of a tenant's volume": ("rows", table(ANCHOR, f"anchor/{TENANT}/{VOLUME}", f"anchor/{TENANT}/{OTHER_VOLUME}")),
        "anchor: rows of another tenant's": ("rows", table(ANCHOR, f"anchor/{OTHER_TENANT}/{OTHER_VOLUME}", f"anchor/{TENANT}0/{VOLUME}")),
        "anchor: rows of no volume": ("rows", table(ANCHOR, "service", f"tenant/{TENANT}")),
        "anchor: several volumes in one request": ("rows", [(table(ANCHOR)[0][0], {"dynamodb:LeadingKeys": [f"anchor/{TENANT}/{VOLUME}", f"anchor/{OTHER_TENANT}/{OTHER_VOLUME}"]})]),
        "anchor: table": ("table", table(ANCHOR)),
        "cluster: rows": ("rows", table(CLUSTER, "blockd/main/cluster", "blockd/main/nodes", "blockd/main/rows/3", "blockd/main/disks", "blockd/main/names/ab")),
        "cluster: rows of no cluster, or another": ("rows", table(CLUSTER, "service", "blockd/other/disks", "blockd/main2/disks")),
        "cluster: table": ("table", table(CLUSTER)),
        "anchor function: function": ("function", [f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:firn-anchor"]),
        "anchor function: log": ("log", [f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:/aws/lambda/firn-anchor:log-stream:1"]),
        "anchor function: rows of the roots": ("rows", table(ROOTS, f"anchor/{TENANT}/{VOLUME}")),
        "anchor function: table": ("table", table(ROOTS)),
        "other functions": ("function", [f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:other"]),
        "other tables: rows": ("rows", table("firn-other", FAMILY, f"anchor/{TENANT}/{VOLUME}", "blockd/main/disks") + table("firn2", FAMILY)),
        "other tables": ("table", table("firn-other") + table("firn2") + [(f"arn:aws:dynamodb:us-east-1:{ACCOUNT}:table/{TABLE}", {})]),
        "other queues": ("queue", [f"arn:aws:sqs:{REGION}:{ACCOUNT}:other"]),
        "other logs": ("log", [f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:/aws/lambda/other:log-stream:1"]),
        "role of edges": ("role", [role_arn("firn-edges")]),
        "role that tenants grant": ("role", [role_arn("firn-storage", OTHER_ACCOUNT)]),
        "other roles": ("role", [role_arn("admin"), role_arn("firn-node"), role_arn("admin", OTHER_ACCOUNT)]),
        "role of nodes, given to a machine": ("passing", [role_arn("firn-node")]),
        "other roles, given to a machine": ("passing", [role_arn("admin"), role_arn("firn-api"), role_arn("firn-node", OTHER_ACCOUNT)]),
        "a new machine": ("launch", [ec2("instance/*")]),
        "parts of new machines": ("part", [ec2("subnet/subnet-1"), ec2("subnet/subnet-3"), ec2("security-group/sg-1"), ec2("image/ami-1", "")]),
        "disks and interfaces of new machines": ("part", [ec2("volume/vol-1"), ec2("network-interface/eni-1")]),
        "other subnets, groups and images": ("part", [ec2("subnet/subnet-2"), ec2("security-group/sg-2"), ec2("image/ami-2", ""), ec2("subnet/subnet-1", OTHER_ACCOUNT)]),
        "a node's machine": ("machine", [(ec2("instance/i-1"), {"aws:ResourceTag/firn:node": "nod_1"})]),
        "other machines": ("machine", [(ec2("instance/i-2"), {}), (ec2("instance/i-3"), {"aws:ResourceTag/firn:node": "mine"})]),
        "machines in other regions": ("machine", [(f"arn:aws:ec2:us-east-1:{ACCOUNT}:instance/i-1", {"aws:ResourceTag/firn:node": "nod_1"})]),
        "the account": ("account", ["*"]),
    }
)


def cells():
    """(resource's name, verb, [(action, resource, context)])."""
    for name, (kind, places) in RESOURCES.items():
        for verb, (actions, more) in VERBS[kind].items():
            pairs = [place if isinstance(place, tuple) else (place, {}) for place in places]
            yield name, verb, [(action, arn, context | more) for action in actions for arn, context in pairs]
