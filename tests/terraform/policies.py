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

# What a self-hosted installation has.
ATTACHED = ("edge", "cleaner")


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


def examine(resources, check):
    """Holds what Terraform has attached against the product's files and the matrix, and the matrix against planted holes."""
    own, of_bucket, trusts = of_state(resources)
    examine_policies(own, of_bucket, trusts, check)


def examine_plan(plan, files, check):
    """What a plan would attach: `files` is {principal: (file, values of its placeholders)}."""
    own, _, _ = of_plan(plan)
    wanted = {principal: [roles.filled(path, values)] for principal, (path, values) in files.items()}
    check("what would be attached in an account is the product's own files, filled", own == wanted, json.dumps([own, wanted], indent=1))


def examine_policies(own, of_bucket, trusts, check):
    text = json.dumps([own, of_bucket, trusts])
    check("no placeholder is left in a policy", not re.search(r"\$\{|\b(BUCKET|PREFIX|REGION|ACCOUNT|TABLE|NAME|DELETERS)\b", text), text)
    files = {by_name(name).arn(): by_name(name).policies() for name in ATTACHED}
    check("what is attached is the product's own files, filled, and nothing else", own == files, json.dumps([own, files], indent=1))
    check("so is the bucket's policy", of_bucket == roles.bucket_policy(roles.BUCKET), json.dumps(of_bucket))
    check("and who may be the cleaner", trusts == {roles.CLEANER: roles.filled("services/cleaner-lambda/iam-trust.json", {})}, json.dumps(trusts))
    if own.keys() != files.keys() or of_bucket is None:
        return
    attached, wanted = matrix.Attached(), matrix.expected()
    attached.own |= {name: own[by_name(name).arn()] for name in ATTACHED}
    attached.bucket = {roles.BUCKET: of_bucket}
    # Of the other buckets nothing was rendered here.
    only = lambda resource: not resource.startswith("managed")  # noqa: E731
    everybody = [by_name(name) for name in (*ATTACHED, "administrator", "without")]
    found = matrix.deviations(attached, wanted, everybody, only)
    cells = sum(1 for resource, _, _ in roles.cells() if only(resource)) * len(everybody)
    check(f"who may do what is as the matrix says, in {cells} cells of what was rendered", not found, "\n".join(found))
    let_in, asked = matrix.in_the_clear(attached, everybody)
    check(f"nothing is let in by plain HTTP, in {asked} requests", asked and not let_in, "\n".join(let_in))
    for what, name, change in PLANTED:
        other = copy.copy(attached)
        other.own = attached.own | {name: copy.deepcopy(attached.own[name])}
        change(other.own[name][0]["Statement"])
        check(f"rendered so, it would be found: {what}", matrix.deviations(other, wanted, [by_name(name)], only), "the matrix takes it for right")


# A variable that is filled with too little or too much, as a module may.
PLANTED = [
    ("an edge with an empty prefix", "edge", lambda s: s[0].update(Resource=f"arn:aws:s3:::{roles.BUCKET}/*")),
    ("an edge with every table", "edge", lambda s: s[-1].update(Resource=f"arn:aws:dynamodb:{roles.REGION}:{roles.ACCOUNT}:table/*")),
    ("an edge with a table of its region's only", "edge", lambda s: s[-1].update(Resource=f"arn:aws:dynamodb:us-east-1:{roles.ACCOUNT}:table/{roles.TABLE}")),
    ("a cleaner with another's queue", "cleaner", lambda s: s[-3].update(Resource=f"arn:aws:sqs:{roles.REGION}:{roles.ACCOUNT}:*")),
    ("a cleaner of the whole bucket", "cleaner", lambda s: s[0].pop("Condition")),
    ("a cleaner with a second statement by hand", "cleaner", lambda s: s.append({"Effect": "Allow", "Action": "s3:*", "Resource": "*"})),
]


def from_files():
    """What Terraform makes of the files, as far as they alone say."""
    own = {by_name(name).arn(): by_name(name).policies() for name in ATTACHED}
    return own, roles.bucket_policy(roles.BUCKET), {roles.CLEANER: roles.filled("services/cleaner-lambda/iam-trust.json", {})}
