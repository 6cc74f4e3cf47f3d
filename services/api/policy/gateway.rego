# The same decision at the gateway: turns what Envoy asks (ext_authz over gRPC) into the question of authz.rego and answers
# with its decision; a refusal carries the service's own problem document.
#
# The path is matched to one of the rows segment by segment. Envoy has normalised it before (no dots, no doubled or escaped
# slashes); whatever still does not match a row is refused here as it would be by the router. The claims come from Envoy's
# jwt_authn filter, which has verified signature, issuer, audience and time; a header cannot set them.
package firn.gateway

import rego.v1

import data.firn.authz

request := input.attributes.request.http

segments := split(split(request.path, "?")[0], "/")

# A row's pattern matches if every segment is the same, or a parameter stands for one that is not empty.
matches contains operation if {
	some operation, _ in authz.rows
	[method, pattern] := split(operation, " ")
	method == request.method
	parts := split(pattern, "/")
	count(parts) == count(segments)
	every index, part in parts {
		fits(part, segments[index])
	}
}

fits(part, segment) if part == segment

fits(part, segment) if {
	startswith(part, "{")
	segment != ""
}

# Fixed segments win over parameters, as in the router: of several patterns the one with the fewest parameters.
operation := chosen if {
	fewest := min({parameters(candidate) | some candidate in matches})
	some chosen in matches
	parameters(chosen) == fewest
}

parameters(pattern) := count(split(pattern, "{"))

params[name] := segments[index] if {
	[_, pattern] := split(operation, " ")
	some index, part in split(pattern, "/")
	startswith(part, "{")
	name := trim(part, "{}")
}

claims := input.attributes.metadataContext.filterMetadata["envoy.filters.http.jwt_authn"].jwt_payload

question["operation"] := operation

question["params"] := params

question["caller"] := {
	"tenant": claims.tid,
	"principal": claims.sub,
	"role": claims.role,
	"scopes": object.get(claims, "scopes", []),
}

default allowed := false

allowed if authz.allow with input as question

default code := "no_such_operation"

code := "not_authenticated" if {
	operation
	not claims
}

code := "not_allowed" if {
	operation
	claims
}

status := {"no_such_operation": 404, "not_authenticated": 401, "not_allowed": 403}

title := {
	"no_such_operation": "There is no such operation.",
	"not_authenticated": "This operation needs a token or a client certificate.",
	"not_allowed": "The role does not allow this operation.",
}

decision := {"allowed": true} if allowed

decision := {
	"allowed": false,
	"http_status": status[code],
	"headers": {"content-type": "application/problem+json", "cache-control": "no-store"},
	"body": json.marshal({
		"type": concat("", ["https://firn.dev/errors#", code]),
		"title": title[code],
		"status": status[code],
		"code": code,
		"detail": "refused by the gateway's policy; nothing was looked up",
	}),
} if {
	not allowed
}
