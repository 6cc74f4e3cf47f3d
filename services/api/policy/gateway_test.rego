# What Envoy asks, and what it is answered.
package firn.gateway_test

import rego.v1

import data.firn.gateway

ours := "ten_11111111111111111111111111111111"

edge := "edg_33333333333333333333333333333333"

nobody(method, path) := {"attributes": {"request": {"http": {"method": method, "path": path}}}}

asks(method, path, claims) := object.union(nobody(method, path), {"attributes": {"metadataContext": {"filterMetadata": {"envoy.filters.http.jwt_authn": {"jwt_payload": claims}}}}})

owner := {"tid": ours, "sub": "mem_1", "role": "owner"}

volumes := concat("", ["/v1/tenants/", ours, "/volumes"])

test_a_door_is_open if {
	gateway.decision == {"allowed": true} with input as nobody("GET", "/healthz")
}

test_a_path_is_matched_to_its_row_and_its_parameters if {
	request := asks("GET", concat("", [volumes, "/vol_1/keyring?x=1"]), owner)
	gateway.operation == "GET /v1/tenants/{tenant}/volumes/{volume}/keyring" with input as request
	gateway.params == {"tenant": ours, "volume": "vol_1"} with input as request
	gateway.allowed with input as request
}

test_fixed_segments_win_over_parameters if {
	request := asks("GET", concat("", ["/v1/tenants/", ours, "/audit/head"]), owner)
	gateway.operation == "GET /v1/tenants/{tenant}/audit/head" with input as request
	gateway.operation == "GET /b/fixed" with input as nobody("GET", "/b/fixed")
		with data.firn.authz.rows as {"GET /b/{any}": {}, "GET /b/fixed": {}}
}

test_nobody_is_asked_for_a_token if {
	decision := gateway.decision with input as nobody("GET", volumes)
	decision.http_status == 401
	json.unmarshal(decision.body).code == "not_authenticated"
}

test_a_role_that_may_not_is_told_so if {
	reader := object.union(owner, {"role": "reader"})
	decision := gateway.decision with input as asks("POST", volumes, reader)
	decision.http_status == 403
	json.unmarshal(decision.body).code == "not_allowed"
}

test_scopes_hold_at_the_gateway if {
	limited := object.union(owner, {"scopes": ["disk:read"]})
	not gateway.allowed with input as asks("GET", volumes, limited)
}

test_what_is_no_operation_is_nothing if {
	refused("/")
	refused("/v1")
	refused("/v1/tenants//volumes")
	refused("/healthz/")
	refused("/v1/tenants/a/volumes/b/c/d")
}

refused(path) if {
	decision := gateway.decision with input as asks("GET", path, owner)
	decision.http_status == 404
}

test_an_edge_reaches_itself if {
	it := {"tid": ours, "sub": edge, "role": "edge"}
	path := concat("", ["/v1/tenants/", ours, "/edges/", edge, "/usage"])
	gateway.allowed with input as asks("POST", path, it)
	not gateway.allowed with input as asks("POST", concat("", ["/v1/tenants/", ours, "/edges/edg_4/usage"]), it)
}
