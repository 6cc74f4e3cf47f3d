"""The matrix of roles (tests/policies), on the policies that Terraform attached, as its state or a plan has them.

What is attached must be the product's own file with every placeholder filled, and nothing else; who may then do what is judged by the same
evaluator and the same matrix as the files.
"""

import copy
import json
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "policies"))
import matrix  # noqa: E402
import roles  # noqa: E402

# The trees that modules read the product's policies from, and their own.
SOURCES = ("infra", "services/cleaner-lambda", "services/anchor-lambda", "services/api/iam", "dataplane-blockd/firn-blockd/iam", "edge-proxy")
# What a self-hosted installation has: with its roots in a table that everybody reaches, and with an anchor that alone does.
ON_TABLE = ("edge", "cleaner")
ANCHORED = ("anchored-edge", "anchor-cleaner", "anchor-function")
# What a control plane has; its bucket is another one.
MANAGED = ("api", "edges-role", "node", "service-cleaner")
TRUST = {
    "api": "services/api/iam/trust.json", "edges-role": "services/api/iam/edges-trust.json", "node": "dataplane-blockd/firn-blockd/iam/node-trust.json",
    "service-cleaner": "services/cleaner-lambda/iam-trust.json", "cleaner": "services/cleaner-lambda/iam-trust.json", "anchor-cleaner": "services/cleaner-lambda/iam-trust.json", "anchor-function": "services/anchor-lambda/iam-trust.json",
}


def by_name(name):
    return next(role for role in matrix.EVERYBODY if role.name == name)


def of_state(resources):
    """(the policies by principal, that of the bucket, trust policies by role) from Terraform's state."""
    attached, of_bucket, trusts = {}, None, {}
    for resource in resources:
        for instance in resource["instances"] if resource["mode"] == "managed" else []:
            found = one(resource["type"], instance["attributes"])
            for principal, policy in found.get("own", {}).items():
                attached.setdefault(principal, []).append(policy)
            of_bucket = found.get("bucket", of_bucket)
            trusts |= found.get("trust", {})
    return attached, of_bucket, trusts


def of_plan(plan):
    """The same from `show -json` of a plan; what a plan cannot know yet is left out."""
    resources = [
        {"mode": "managed", "type": change["type"], "instances": [{"attributes": change["change"]["after"]}]}
        for change in plan["resource_changes"] if change["mode"] == "managed" and change["change"]["after"]
    ]
    return of_state(resources)


def one(kind, values):
    if kind in ("aws_iam_role_policy", "aws_iam_user_policy", "aws_iam_group_policy") and values.get("policy"):
        holder = kind.removeprefix("aws_iam_").removesuffix("_policy")
        return {"own": {f"arn:aws:iam::{roles.ACCOUNT}:{holder}/{values[holder]}": json.loads(values["policy"])}}
    if kind == "aws_s3_bucket_policy" and values.get("policy"):
        return {"bucket": json.loads(values["policy"])}
    if kind == "aws_iam_role":
        return {"trust": {values["name"]: json.loads(values["assume_role_policy"])}}
    if kind in ("aws_iam_policy", "aws_iam_role_policy_attachment", "aws_iam_user_policy_attachment", "aws_dynamodb_resource_policy", "aws_lambda_layer_version_permission"):
        raise ValueError(f"{kind} gives rights that this does not look at")
    return {}


def ordered(documents):
    """A principal's policies, in an order that their texts alone decide."""
    return sorted(documents, key=lambda document: json.dumps(document, sort_keys=True))


def statements(documents):
    return documents[0]["Statement"] if len(documents) == 1 else [one for document in documents for one in document["Statement"]]


def examine(resources, check, names=ON_TABLE):
    """Holds what Terraform has attached against the product's files and the matrix, and the matrix against planted holes."""
    own, of_bucket, trusts = of_state(resources)
    examine_policies(own, of_bucket, trusts, check, names)


def examine_plan(plan, files, check):
    """What a plan would attach: `files` is {principal: [(file, values of its placeholders)]}."""
    own = {principal: ordered(documents) for principal, documents in of_plan(plan)[0].items()}
    wanted = {principal: ordered(roles.filled(path, values) for path, values in pairs) for principal, pairs in files.items()}
    check("what would be attached in an account is the product's own files, filled", own == wanted, json.dumps([own, wanted], indent=1))


def examine_policies(own, of_bucket, trusts, check, names=ON_TABLE):
    own = {principal: ordered(documents) for principal, documents in own.items()}
    text = json.dumps([own, of_bucket, trusts])
    check("no placeholder is left in a policy", not re.search(r"\$\{|\b(BUCKET|PREFIX|REGION|ACCOUNT|TABLE|NAME|DELETERS|FUNCTION)\b", text), text)
    files = {by_name(name).arn(): ordered(by_name(name).policies()) for name in names}
    check("what is attached is the product's own files, filled, and nothing else", own == files, json.dumps([own, files], indent=1))
    bucket = roles.MANAGED if names == MANAGED else roles.BUCKET
    check("so is the bucket's policy", of_bucket == roles.bucket_policy(bucket), json.dumps(of_bucket))
    trusted = {by_name(name).arn().rsplit("/", 1)[1]: roles.filled(TRUST[name], roles.VALUES) for name in names if name in TRUST}
    check("and who may be " + " and ".join(sorted(trusted)), trusts == trusted, json.dumps(trusts))
    if own.keys() != files.keys() or of_bucket is None:
        return
    attached, wanted = matrix.Attached(), matrix.expected()
    attached.own |= {name: own[by_name(name).arn()] for name in names}
    attached.bucket = {bucket: of_bucket}
    # Of the other buckets nothing was rendered here.
    only = lambda resource: not resource.startswith(("office" if names == MANAGED else "managed", "second store"))  # noqa: E731
    everybody = [by_name(name) for name in (*names, "administrator", "without")]
    found = matrix.deviations(attached, wanted, everybody, only)
    cells = sum(1 for resource, _, _ in roles.cells() if only(resource)) * len(everybody)
    check(f"who may do what is as the matrix says, in {cells} cells of what was rendered", not found, "\n".join(found))
    let_in, asked = matrix.in_the_clear(attached, everybody)
    check(f"nothing is let in by plain HTTP, in {asked} requests", asked and not let_in, "\n".join(let_in))
    for what, name, change in PLANTED:
        if name not in names:
            continue
        other = copy.copy(attached)
        other.own = attached.own | {name: copy.deepcopy(attached.own[name])}
        change(statements(other.own[name]))
        check(f"rendered so, it would be found: {what}", matrix.deviations(other, wanted, [by_name(name)], only), "the matrix takes it for right")


def said(statements, sid):
    return next(one for one in statements if one["Sid"] == sid)


# A variable that is filled with too little or too much, as a module may.
PLANTED = [
    ("an edge with an empty prefix", "edge", lambda s: s[0].update(Resource=f"arn:aws:s3:::{roles.BUCKET}/*")),
    ("an edge with every table", "edge", lambda s: s[-1].update(Resource=f"arn:aws:dynamodb:{roles.REGION}:{roles.ACCOUNT}:table/*")),
    ("an edge with a table of its region's only", "edge", lambda s: s[-1].update(Resource=f"arn:aws:dynamodb:us-east-1:{roles.ACCOUNT}:table/{roles.TABLE}")),
    ("a cleaner with another's queue", "cleaner", lambda s: s[-3].update(Resource=f"arn:aws:sqs:{roles.REGION}:{roles.ACCOUNT}:*")),
    ("a cleaner of the whole bucket", "cleaner", lambda s: s[0].pop("Condition")),
    ("an anchor with every table", "anchor-function", lambda s: s[0].update(Resource=f"arn:aws:dynamodb:{roles.REGION}:{roles.ACCOUNT}:table/*")),
    ("an edge that asks every function", "anchored-edge", lambda s: said(s, "AskTheAnchor").update(Resource=f"arn:aws:lambda:{roles.REGION}:{roles.ACCOUNT}:function:*")),
    ("an edge that calls the anchor past its URL, and says who it is", "anchored-edge", lambda s: said(s, "ByItsUrlOnly").pop("Condition")),
    ("a cleaner that does so", "anchor-cleaner", lambda s: said(s, "ByItsUrlOnly").pop("Condition")),
    ("an edge that has the table beside the anchor", "anchored-edge", lambda s: said(s, "ReadSealedObjects").update(Action=["s3:GetObject", "dynamodb:GetItem"], Resource="*")),
    ("a service that starts machines in every subnet", "api", lambda s: said(s, "InTheirSubnets").update(Resource="*")),
    ("a service with the first subnet only", "api", lambda s: said(s, "InTheirSubnets").update(Resource=said(s, "InTheirSubnets")["Resource"][:1])),
    ("a service that assumes every role", "api", lambda s: said(s, "GiveEdgesSessions").update(Resource="*")),
    ("sessions in every bucket", "edges-role", lambda s: said(s, "ReadAndAddSealedObjects").update(Resource="arn:aws:s3:::*")),
    ("nodes with the control plane's table", "node", lambda s: said(s, "BeatAndReadRows").update(Resource=f"arn:aws:dynamodb:{roles.REGION}:{roles.ACCOUNT}:table/*", Condition={})),
    ("a service's cleaner with another's queue", "service-cleaner", lambda s: said(s, "TakeMessages").update(Resource="*")),
    ("a cleaner with a second statement by hand", "cleaner", lambda s: s.append({"Effect": "Allow", "Action": "s3:*", "Resource": "*"})),
]


def from_files(names):
    """What Terraform makes of the files, as far as they alone say."""
    own = {by_name(name).arn(): by_name(name).policies() for name in names}
    trusts = {by_name(name).arn().rsplit("/", 1)[1]: roles.filled(TRUST[name], roles.VALUES) for name in names if name in TRUST}
    return own, roles.bucket_policy(roles.MANAGED if names == MANAGED else roles.BUCKET), trusts
