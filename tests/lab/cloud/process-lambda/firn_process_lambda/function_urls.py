"""Function URLs with the authorisation AWS_IAM, as AWS has them: LocalStack lets everybody in and names nobody.

A request's signature (Signature Version 4) is computed again with the secret of the access key that it names, which LocalStack's IAM
has, or its token service for a role's session; if it is another one, or there is none, the function is not called. Otherwise the function is
told who the user or the session is, where AWS tells it. What their policies allow is not looked at.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
https://docs.aws.amazon.com/lambda/latest/dg/urls-invocation.html
"""

import hashlib
import hmac
import json
import typing
import urllib.parse

from localstack.services.lambda_ import urlrouter
from localstack.services.lambda_.invocation.lambda_models import InvocationResult
from localstack.services.lambda_.invocation.lambda_service import LambdaService
from localstack.services.lambda_.invocation.models import lambda_stores
from moto.iam.models import iam_backends
from moto.sts.models import sts_backends
from rolo.request import restore_payload

ALGORITHM = "AWS4-HMAC-SHA256"


# Stands in an event for which the function must not be called.
REFUSED = "firn-refused"


class Forbidden(Exception):
    """A request that AWS lets nobody's function see."""


class Caller(typing.NamedTuple):
    """A user, or a session of a role."""

    account_id: str
    id: str
    arn: str


def secret_of(key_id):
    """The secret of an access key, and whose it is."""
    for account in list(iam_backends.values()):
        for user in account["aws"].users.values():
            for key in user.access_keys:
                if key.access_key_id == key_id:
                    return key.secret_access_key, Caller(user.account_id, user.id, user.arn)
    for account_id, account in list(sts_backends.items()):
        for backend in list(account.values()):
            for session in backend.assumed_roles:
                if session.access_key_id == key_id:
                    return session.secret_access_key, Caller(account_id, session.user_id, session.arn)
    raise Forbidden("nobody has this access key")


def signature(secret, request, body, scope, names):
    digest = hashlib.sha256(body).hexdigest()
    if request.headers.get("x-amz-content-sha256", digest) != digest:
        raise Forbidden("what was signed is another body")
    headers = "".join(f"{name}:{' '.join(request.headers.get(name, '').split())}\n" for name in names)
    query = sorted(urllib.parse.parse_qsl(request.query_string.decode(), keep_blank_values=True))
    quoted = "&".join(f"{urllib.parse.quote(name, '-_.~')}={urllib.parse.quote(value, '-_.~')}" for name, value in query)
    canonical = "\n".join([request.method, urllib.parse.quote(request.path, "/-_.~"), quoted, headers, ";".join(names), digest])
    text = "\n".join([ALGORITHM, request.headers["x-amz-date"], "/".join(scope), hashlib.sha256(canonical.encode()).hexdigest()])
    key = ("AWS4" + secret).encode()
    for part in [*scope, text]:
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key.hex()


def signer(request):
    """Who signed a request."""
    scheme, _, rest = request.headers.get("Authorization", "").partition(" ")
    fields = dict(part.strip().split("=", 1) for part in rest.split(",") if "=" in part)
    try:
        key_id, *scope = fields["Credential"].split("/")
        names = fields["SignedHeaders"].split(";")
        signed = fields["Signature"]
    except KeyError:
        raise Forbidden("there is no signature") from None
    if scheme != ALGORITHM or scope[2:] != ["lambda", "aws4_request"] or not {"host", "x-amz-date"} <= set(names):
        raise Forbidden("this is no signature of a function's URL")
    secret, user = secret_of(key_id)
    if not hmac.compare_digest(signature(secret, request, restore_payload(request), scope, names), signed):
        raise Forbidden("the signature is another one")
    return key_id, user


def needs_signature(api_id):
    return any(
        url.url_id.lower() == api_id.lower() and url.auth_type == "AWS_IAM"
        for account in list(lambda_stores.values())
        for store in list(account.values())
        for function in list(store.functions.values())
        for url in list(function.function_url_configs.values())
    )


def install():
    untouched, called = urlrouter.event_for_lambda_url, LambdaService.invoke

    def event(api_id, request):
        made = untouched(api_id, request)
        if needs_signature(api_id):
            try:
                key_id, user = signer(request)
            except Forbidden as why:
                return {REFUSED: str(why)}
            made["requestContext"]["authorizer"] = {"iam": {
                "accessKey": key_id, "accountId": user.account_id, "callerId": user.id, "cognitoIdentity": None,
                "principalOrgId": None, "userArn": user.arn, "userId": user.id}}
        return made

    # The router has no other way to answer by itself.
    def invoke(self, *args, **kwargs):
        payload = kwargs.get("payload") or b""
        if payload.startswith(b'{"' + REFUSED.encode()):
            body = json.dumps({"Message": f"Forbidden: {json.loads(payload)[REFUSED]}"})
            answer = json.dumps({"statusCode": 403, "body": body}).encode()
            return InvocationResult(kwargs["request_id"], answer, is_error=False, logs="")
        return called(self, *args, **kwargs)

    urlrouter.event_for_lambda_url = event
    LambdaService.invoke = invoke
