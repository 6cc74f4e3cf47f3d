# What the policy must say, by example. The whole table is in docs/authorization.md, and both engines are held to it, case by
# case, by tests/engines.rs.
package firn.authz_test

import rego.v1

import data.firn.authz

ours := "ten_11111111111111111111111111111111"

theirs := "ten_22222222222222222222222222222222"

edge := "edg_33333333333333333333333333333333"

other_edge := "edg_44444444444444444444444444444444"

ask(operation, params, role, scopes) := {
	"operation": operation,
	"params": params,
	"caller": {"tenant": ours, "principal": edge, "role": role, "scopes": scopes},
}

test_doors_are_open_to_nobody_in_particular if {
	authz.allow with input as {"operation": "GET /healthz", "params": {}}
}

test_nobody_goes_anywhere_else if {
	not authz.allow with input as {"operation": "GET /v1/tenants/{tenant}/volumes", "params": {"tenant": ours}}
}

test_what_has_no_row_is_denied if {
	not authz.allow with input as ask("GET /v1/tenants/{tenant}/secrets", {"tenant": ours}, "owner", [])
	not authz.allow with input as {}
}

test_a_role_may_what_its_row_says_in_its_own_tenant_only if {
	authz.allow with input as ask("DELETE /v1/tenants/{tenant}", {"tenant": ours}, "owner", [])
	not authz.allow with input as ask("DELETE /v1/tenants/{tenant}", {"tenant": ours}, "admin", [])
	not authz.allow with input as ask("DELETE /v1/tenants/{tenant}", {"tenant": theirs}, "owner", [])
}

test_a_scope_limits if {
	list := "GET /v1/tenants/{tenant}/volumes"
	authz.allow with input as ask(list, {"tenant": ours}, "owner", ["volume:read"])
	not authz.allow with input as ask(list, {"tenant": ours}, "owner", ["volume:write"])
}

test_an_edge_acts_on_itself_only if {
	usage := "POST /v1/tenants/{tenant}/edges/{edge}/usage"
	authz.allow with input as ask(usage, {"tenant": ours, "edge": edge}, "edge", [])
	not authz.allow with input as ask(usage, {"tenant": ours, "edge": other_edge}, "edge", [])
	not authz.allow with input as ask(usage, {"tenant": ours, "edge": edge}, "owner", [])
}

test_operators_let_machines_attach_disks_and_readers_do_not if {
	every what in ["ticket", "detach"] {
		operation := concat("", ["POST /v1/tenants/{tenant}/disks/{disk}/", what])
		params := {"tenant": ours, "disk": "dsk_55555555555555555555555555555555"}
		authz.allow with input as ask(operation, params, "operator", [])
		authz.allow with input as ask(operation, params, "operator", ["disk:attach"])
		not authz.allow with input as ask(operation, params, "operator", ["disk:write"])
		not authz.allow with input as ask(operation, params, "reader", [])
		not authz.allow with input as ask(operation, params, "edge", [])
		not authz.allow with input as ask(operation, object.union(params, {"tenant": theirs}), "operator", [])
	}
}

# What a machine may do with the disk that it was let in for, the service finds out by its certificate.
test_a_machines_calls_are_a_door if {
	calls := "POST /v1/tenants/{tenant}/disks/{disk}/calls"
	authz.allow with input as {"operation": calls, "params": {"tenant": ours, "disk": "dsk_55555555555555555555555555555555"}}
}

test_every_row_is_a_door_or_names_roles_and_a_scope if {
	every operation, row in authz.rows {
		count(split(operation, " ")) == 2
		is_whole(row)
	}
}

test_a_row_that_is_neither_is_noticed if {
	not is_whole({})
	not is_whole({"public": true, "roles": {"owner"}})
	not is_whole({"roles": {"owner"}})
}

is_whole(row) if {
	row.public
	not row.roles
	not row.scope
}

is_whole(row) if {
	not row.public
	count(row.roles) > 0
	row.scope != ""
}
