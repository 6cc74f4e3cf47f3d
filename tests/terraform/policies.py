"""An evaluator of IAM's policies, and who may do what to a self-hosted Firn.

Evaluation as AWS documents it: denied unless a statement allows it, and a denial wins over any allowance. It is applied to the policies that
Terraform attached, as its state has them, that of the bucket together with those of the principals. `MATRIX` says
for each principal what it must be able to do and, more important, what it must not. An operator or a placeholder that the evaluator
does not know is an error: it guesses nothing.

    python3 policies.py     tries the evaluator, and each statement left out or widened must be noticed by the matrix
"""

import copy
import fnmatch
import json
import pathlib
import re
import sys

ACCOUNT, REGION, BUCKET, PREFIX, TABLE, CLEANER = "000000000000", "eu-central-1", "firn-bucket", "firn", "firn", "firn-cleaner"
OBJECT = f"arn:aws:s3:::{BUCKET}/"
OWN = f"{OBJECT}{PREFIX}/0123abcd/"
TABLES = f"arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/"
CREATE = {"s3:if-none-match": "*"}

CLEANERS = {f"arn:aws:iam::{ACCOUNT}:role/{CLEANER}"}
EDGES = {f"arn:aws:iam::{ACCOUNT}:user/firn-edge"}
# Somebody of the account who may do everything, as far as IAM goes.
ADMINISTRATORS = {f"arn:aws:iam::{ACCOUNT}:role/admin"}

# (principals, actions, resources, context, whether it is allowed)
MATRIX = [
    # An edge reads, lists and adds below the prefix.
    (EDGES, ["s3:GetObject"], [OWN + "log/1/2", OWN + "keyring/1"], {}, True),
    (EDGES, ["s3:PutObject"], [OWN + "log/1/2", OWN + "keyring/1"], CREATE, True),
    (EDGES, ["s3:ListBucket"], [OBJECT[:-1]], {"s3:prefix": PREFIX + "/"}, True),
    (EDGES, ["dynamodb:GetItem", "dynamodb:PutItem", "dynamodb:Query", "dynamodb:DeleteItem", "dynamodb:ConditionCheckItem", "dynamodb:DescribeTable"], [TABLES + TABLE], {}, True),
    # It overwrites nothing and deletes nothing, wherever; so a stolen one destroys no history.
    (EDGES, ["s3:PutObject"], [OWN + "log/1/2", OWN + "keyring/1"], {}, False),
    (EDGES, ["s3:DeleteObject", "s3:DeleteObjectVersion", "s3:PutObjectAcl", "s3:PutObjectRetention", "s3:BypassGovernanceRetention", "s3:GetObjectVersion"], [OWN + "log/1/2"], CREATE, False),
    (EDGES, ["s3:DeleteBucket", "s3:PutBucketPolicy", "s3:DeleteBucketPolicy", "s3:PutBucketVersioning", "s3:PutLifecycleConfiguration"], [OBJECT[:-1]], {}, False),
    (EDGES, ["dynamodb:DeleteTable", "dynamodb:UpdateTable", "dynamodb:UpdateContinuousBackups", "dynamodb:Scan"], [TABLES + TABLE], {}, False),
    # Nor does it see what lies beside its prefix, another bucket or another table.
    (EDGES, ["s3:GetObject", "s3:PutObject"], [OBJECT + "other/log/1", OBJECT + "firn2/log/1", "arn:aws:s3:::other/firn/log/1"], CREATE, False),
    (EDGES, ["s3:ListBucket"], [OBJECT[:-1]], {}, False),
    (EDGES, ["s3:ListBucket"], [OBJECT[:-1]], {"s3:prefix": "other/"}, False),
    (EDGES, ["dynamodb:GetItem", "dynamodb:PutItem"], [TABLES + "other"], {}, False),
    (EDGES, ["lambda:InvokeFunction", "iam:CreateAccessKey", "sts:AssumeRole"], ["*"], {}, False),
    # The cleaner moves and deletes segments, and keeps from key rings.
    (CLEANERS, ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:DeleteObjectVersion"], [OWN + "log/1/2", OWN + "forward/1"], {}, True),
    (CLEANERS, ["s3:ListBucket", "s3:ListBucketVersions"], [OBJECT[:-1]], {"s3:prefix": PREFIX + "/"}, True),
    (CLEANERS, ["s3:GetBucketVersioning"], [OBJECT[:-1]], {}, True),
    (CLEANERS, ["dynamodb:GetItem", "dynamodb:PutItem", "dynamodb:Query", "dynamodb:DeleteItem", "dynamodb:ConditionCheckItem", "dynamodb:DescribeTable"], [TABLES + TABLE], {}, True),
    (CLEANERS, ["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"], [f"arn:aws:sqs:{REGION}:{ACCOUNT}:{CLEANER}"], {}, True),
    (CLEANERS, ["sqs:SendMessage"], [f"arn:aws:sqs:{REGION}:{ACCOUNT}:{CLEANER}-dead"], {}, True),
    (CLEANERS, ["logs:CreateLogStream", "logs:PutLogEvents"], [f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:/aws/lambda/{CLEANER}:log-stream:1"], {}, True),
    (CLEANERS, ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:DeleteObjectVersion"], [OWN + "keyring/1", OBJECT + "other/0123abcd/log/1", "arn:aws:s3:::other/firn/0123abcd/log/1", OWN + "keyring/log/1", OWN + "log/keyring/1"], {}, None),
    (CLEANERS, ["s3:ListBucket", "s3:ListBucketVersions"], [OBJECT[:-1]], {}, False),
    (CLEANERS, ["s3:DeleteBucket", "s3:PutBucketPolicy", "s3:PutBucketVersioning", "s3:PutLifecycleConfiguration"], [OBJECT[:-1]], {}, False),
    (CLEANERS, ["dynamodb:DeleteTable", "dynamodb:UpdateTable", "dynamodb:Scan"], [TABLES + TABLE], {}, False),
    (CLEANERS, ["dynamodb:GetItem", "dynamodb:PutItem"], [TABLES + "other"], {}, False),
    (CLEANERS, ["sqs:SendMessage", "sqs:PurgeQueue"], [f"arn:aws:sqs:{REGION}:{ACCOUNT}:{CLEANER}"], {}, False),
    (CLEANERS, ["lambda:UpdateFunctionCode", "iam:PutRolePolicy", "sts:AssumeRole"], ["*"], {}, False),
    # Others: even an administrator deletes no object unless the bucket's policy is changed first; nobody comes by plain HTTP.
    (ADMINISTRATORS, ["s3:DeleteObject", "s3:DeleteObjectVersion"], [OWN + "log/1/2", OWN + "keyring/1"], {}, False),
    (ADMINISTRATORS, ["s3:GetObject", "s3:PutObject", "s3:PutBucketPolicy"], [OWN + "log/1/2"], {}, True),
    (ADMINISTRATORS | CLEANERS | EDGES, ["s3:GetObject", "s3:PutObject"], [OWN + "log/1/2"], {"aws:SecureTransport": "false", **CREATE}, False),
]


def listed(value):
    return value if isinstance(value, list) else [value]


def like(pattern, text):
    # IAM knows * and ? only; brackets are themselves.
    return fnmatch.fnmatchcase(text, pattern.replace("[", "[[]"))


def meets(condition, context):
    for operator, keys in condition.items():
        for key, wanted in keys.items():
            found, wanted = context.get(key), [str(one) for one in listed(wanted)]
            if operator == "StringLike":
                holds = found is not None and any(like(one, found) for one in wanted)
            elif operator == "ArnNotLike":
                # Negated operators hold for a key that is not there.
                holds = found is None or not any(like(one, found) for one in wanted)
            elif operator == "Bool":
                holds = found is not None and found in wanted
            elif operator == "Null":
                holds = (found is None) == (wanted == ["true"])
            else:
                raise ValueError(f"the evaluator does not know the operator {operator}")
            if not holds:
                return False
    return True


def statements(policies):
    for policy in policies:
        for statement in policy["Statement"]:
            unknown = set(statement) - {"Sid", "Effect", "Action", "Resource", "Condition", "Principal"}
            if unknown or statement["Effect"] not in ("Allow", "Deny"):
                raise ValueError(f"the evaluator does not know {unknown or statement['Effect']}")
            if statement.get("Principal", "*") != "*":
                raise ValueError(f"the evaluator does not know the principal {statement['Principal']}")
            yield statement


def is_allowed(policies, action, resource, context):
    allowed = False
    for statement in statements(policies):
        applies = (
            any(like(one.lower(), action.lower()) for one in listed(statement["Action"]))
            and any(like(one, resource) for one in listed(statement["Resource"]))
            and meets(statement.get("Condition", {}), context)
        )
        if applies and statement["Effect"] == "Deny":
            return False
        allowed = allowed or applies
    return allowed


def deviations(attached, of_bucket):
    """Where the policies differ from the matrix, as sentences."""
    found = []
    for principals, actions, resources, context, wanted in MATRIX:
        for principal in principals:
            if principal not in attached:
                found.append(f"{principal} has no policy")
                continue
            for action in actions:
                for resource in resources:
                    there = {"aws:PrincipalArn": principal, "aws:SecureTransport": "true", **context}
                    is_s3 = resource.startswith("arn:aws:s3:::" + BUCKET)
                    policies = attached[principal] + ([of_bucket] if is_s3 else [])
                    may = is_allowed(policies, action, resource, there)
                    # None: reading is nobody's harm here, all else is denied.
                    if may != bool(wanted) and not (wanted is None and action == "s3:GetObject"):
                        found.append(f"{principal} {'may' if may else 'may not'} {action} on {resource} with {context}")
    return found


def of_state(resources):
    """The policies by principal, and that of the bucket, from Terraform's state."""
    attached, of_bucket = {arn: [{"Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}] for arn in ADMINISTRATORS}, None
    for resource in resources:
        for instance in resource["instances"] if resource["mode"] == "managed" else []:
            values = instance["attributes"]
            match resource["type"]:
                case "aws_iam_role_policy" | "aws_iam_user_policy":
                    kind = "role" if "role" in values else "user"
                    attached.setdefault(f"arn:aws:iam::{ACCOUNT}:{kind}/{values[kind]}", []).append(json.loads(values["policy"]))
                case "aws_s3_bucket_policy":
                    of_bucket = json.loads(values["policy"])
    return attached, of_bucket


def examine(resources, check):
    """Tries the matrix on what Terraform has attached, and the matrix itself on what it should not have."""
    attached, of_bucket = of_state(resources)
    examine_policies(attached, of_bucket, check)


def examine_policies(attached, of_bucket, check):
    text = json.dumps([attached, of_bucket], default=list)
    check("no placeholder is left in a policy", not re.search(r"\$\{|\b(BUCKET|PREFIX|REGION|ACCOUNT|TABLE|NAME)\b", text), text)
    found = deviations(attached, of_bucket)
    cells = sum(len(principals) * len(actions) * len(resources) for principals, actions, resources, _, _ in MATRIX)
    check(f"who may do what is as the matrix says, in {cells} cells", not found, "\n".join(found))
    for sentence, missed in unnoticed(attached, of_bucket):
        check(sentence, not missed, missed)


def unnoticed(attached, of_bucket):
    """The matrix must notice each statement that is missing or reaches further than it should."""
    dropped, widened = [], []
    everything = [(principal, number) for principal in attached if principal not in ADMINISTRATORS for number in range(len(attached[principal]))]
    for principal, number in everything + [(None, 0)]:
        policy = of_bucket if principal is None else attached[principal][number]
        for index, statement in enumerate(policy["Statement"]):
            for change, missed in ((lambda s: s.pop(index), dropped), (lambda s: s[index].update(Action="*", Resource="*", Condition={}), widened)):
                others, bucket = copy.deepcopy(attached), copy.deepcopy(of_bucket)
                changed = bucket if principal is None else others[principal][number]
                change(changed["Statement"])
                if not deviations(others, bucket):
                    missed.append(f"{principal or 'the bucket'}: {statement['Sid']}")
    # Denials of what is not allowed anyhow are a second lock: leaving them out changes nothing, and is to be listed here to be so.
    second = {f"{arn}: {sid}" for arn in EDGES for sid in ("DestroyNothing",)}
    yield "every statement that is left out is noticed", [one for one in dropped if one not in second]
    yield "every statement that is widened to everything is noticed", widened


def from_files():
    """The product's policies, filled as Terraform does."""
    values = {"ACCOUNT": ACCOUNT, "BUCKET": BUCKET, "NAME": CLEANER, "PREFIX": PREFIX, "REGION": REGION, "TABLE": TABLE, "DELETERS": json.dumps(sorted(CLEANERS))}
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    read = lambda path: json.loads(re.sub(r"\$\{(\w+)\}", lambda found: values[found[1]], (root / path).read_text()))
    attached = {arn: [{"Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}] for arn in ADMINISTRATORS}
    attached |= {arn: [read("services/cleaner-lambda/iam-policy.json")] for arn in CLEANERS}
    attached |= {arn: [read("edge-proxy/iam-policy.json")] for arn in EDGES}
    return attached, read("infra/modules/bucket/bucket-policy.json")


if __name__ == "__main__":
    attached, of_bucket = from_files()
    failures = deviations(attached, of_bucket) + [one for _, missed in unnoticed(attached, of_bucket) for one in missed]
    print("\n".join(failures) or "the policies are as the matrix says, and every change of them is noticed")
    sys.exit(bool(failures))
