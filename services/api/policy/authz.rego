# Who may do what: one row for each operation, nothing else is allowed.
#
# Input:
#   operation   "METHOD /path/{with}/{parameters}", one of the rows below
#   params      the path's parameters: tenant, edge, node, …
#   caller      absent at the door; else tenant, principal, role, scopes, as a verified token or certificate says
#
# A row says which roles may (`roles`), which scope a limited API key needs (`scope`), and whether an edge or a node may act
# on itself only (`itself`). `public` rows are doors: what is behind them checks a secret of its own.
package firn.authz

import rego.v1

default allow := false

everyone := {"owner", "admin", "operator", "billing", "reader"}

operators := {"owner", "admin", "operator"}

admins := {"owner", "admin"}

rows := {
	"GET /healthz": {"public": true},
	"GET /.well-known/jwks.json": {"public": true},
	"GET /v1/revocations": {"public": true},
	"GET /v1/revocations/after/{sequence}": {"public": true},
	"POST /v1/signups": {"public": true},
	"POST /v1/signups/{signup}/confirm": {"public": true},
	"POST /v1/recoveries": {"public": true},
	"POST /v1/tenants/{tenant}/recoveries/{recovery}/confirm": {"public": true},
	"POST /v1/tenants/{tenant}/tokens": {"public": true},
	"POST /v1/tenants/{tenant}/members/{member}/confirm": {"public": true},
	"POST /v1/tenants/{tenant}/joins/{lookup}": {"public": true},
	"POST /v1/tenants/{tenant}/nodes/{node}/join": {"public": true},
	"GET /v1/tenants/{tenant}": {"roles": everyone | {"edge"}, "scope": "tenant:read"},
	"PATCH /v1/tenants/{tenant}": {"roles": admins, "scope": "tenant:write"},
	"DELETE /v1/tenants/{tenant}": {"roles": {"owner"}, "scope": "tenant:close"},
	"POST /v1/tenants/{tenant}/tokens/revoke": {"roles": everyone | {"edge", "node"}, "scope": "token:revoke"},
	"GET /v1/tenants/{tenant}/members": {"roles": everyone, "scope": "member:read"},
	"POST /v1/tenants/{tenant}/members": {"roles": admins, "scope": "member:write"},
	"GET /v1/tenants/{tenant}/members/{member}": {"roles": everyone, "scope": "member:read"},
	"PATCH /v1/tenants/{tenant}/members/{member}": {"roles": admins, "scope": "member:write"},
	"DELETE /v1/tenants/{tenant}/members/{member}": {"roles": admins, "scope": "member:write"},
	"GET /v1/tenants/{tenant}/keys": {"roles": admins, "scope": "key:read"},
	"POST /v1/tenants/{tenant}/keys": {"roles": everyone, "scope": "key:write"},
	"GET /v1/tenants/{tenant}/keys/{key}": {"roles": admins, "scope": "key:read"},
	"DELETE /v1/tenants/{tenant}/keys/{key}": {"roles": admins, "scope": "key:write"},
	"GET /v1/tenants/{tenant}/volumes": {"roles": everyone, "scope": "volume:read"},
	"POST /v1/tenants/{tenant}/volumes": {"roles": operators, "scope": "volume:write"},
	"GET /v1/tenants/{tenant}/volumes/{volume}": {"roles": everyone | {"edge"}, "scope": "volume:read"},
	"PATCH /v1/tenants/{tenant}/volumes/{volume}": {"roles": operators, "scope": "volume:write"},
	"DELETE /v1/tenants/{tenant}/volumes/{volume}": {"roles": operators, "scope": "volume:delete"},
	"POST /v1/tenants/{tenant}/volumes/{volume}/undelete": {"roles": operators, "scope": "volume:delete"},
	"POST /v1/tenants/{tenant}/volumes/{volume}/prove": {"roles": operators, "scope": "volume:write"},
	"POST /v1/tenants/{tenant}/volumes/{volume}/erase": {"roles": admins, "scope": "volume:erase"},
	"GET /v1/tenants/{tenant}/volumes/{volume}/members": {"roles": everyone, "scope": "volume:read"},
	"GET /v1/tenants/{tenant}/volumes/{volume}/keyring": {"roles": operators | {"reader", "edge"}, "scope": "keyring:read"},
	"PUT /v1/tenants/{tenant}/volumes/{volume}/keyring": {"roles": operators, "scope": "keyring:write"},
	"GET /v1/tenants/{tenant}/volumes/{volume}/grants": {"roles": everyone, "scope": "grant:read"},
	"POST /v1/tenants/{tenant}/volumes/{volume}/grants": {"roles": admins, "scope": "grant:write"},
	"GET /v1/tenants/{tenant}/volumes/{volume}/grants/{grantee}": {"roles": everyone, "scope": "grant:read"},
	"POST /v1/tenants/{tenant}/volumes/{volume}/grants/{grantee}/approve": {"roles": admins, "scope": "grant:write"},
	"DELETE /v1/tenants/{tenant}/volumes/{volume}/grants/{grantee}": {"roles": operators, "scope": "grant:write"},
	"GET /v1/tenants/{tenant}/granted": {"roles": everyone, "scope": "grant:read"},
	"POST /v1/tenants/{tenant}/granted": {"roles": admins, "scope": "grant:write"},
	"POST /v1/tenants/{tenant}/granted/leave": {"roles": operators, "scope": "grant:write"},
	"GET /v1/tenants/{tenant}/edges": {"roles": everyone, "scope": "edge:read"},
	"POST /v1/tenants/{tenant}/edges": {"roles": operators, "scope": "edge:write"},
	"GET /v1/tenants/{tenant}/edges/{edge}": {"roles": everyone | {"edge"}, "scope": "edge:read", "itself": "edge"},
	"DELETE /v1/tenants/{tenant}/edges/{edge}": {"roles": operators, "scope": "edge:write"},
	"POST /v1/tenants/{tenant}/edges/{edge}/certificate": {"roles": {"edge"}, "scope": "edge:self", "itself": "edge"},
	"POST /v1/tenants/{tenant}/edges/{edge}/token": {"roles": {"edge"}, "scope": "edge:self", "itself": "edge"},
	"GET /v1/tenants/{tenant}/disks": {"roles": everyone, "scope": "disk:read"},
	"POST /v1/tenants/{tenant}/disks": {"roles": operators, "scope": "disk:write"},
	"GET /v1/tenants/{tenant}/disks/{disk}": {"roles": everyone, "scope": "disk:read"},
	"DELETE /v1/tenants/{tenant}/disks/{disk}": {"roles": operators, "scope": "disk:delete"},
	"POST /v1/tenants/{tenant}/disks/{disk}/grow": {"roles": operators, "scope": "disk:write"},
	"POST /v1/tenants/{tenant}/disks/{disk}/attach": {"roles": operators, "scope": "disk:attach"},
	"POST /v1/tenants/{tenant}/disks/{disk}/ticket": {"roles": operators, "scope": "disk:attach"},
	"POST /v1/tenants/{tenant}/disks/{disk}/calls": {"public": true},
	"POST /v1/tenants/{tenant}/disks/{disk}/detach": {"roles": operators, "scope": "disk:attach"},
	"GET /v1/tenants/{tenant}/nodes": {"roles": everyone, "scope": "node:read"},
	"POST /v1/tenants/{tenant}/nodes": {"roles": operators, "scope": "node:write"},
	"GET /v1/tenants/{tenant}/nodes/{node}": {"roles": everyone | {"node"}, "scope": "node:read", "itself": "node"},
	"DELETE /v1/tenants/{tenant}/nodes/{node}": {"roles": operators, "scope": "node:write"},
	"POST /v1/tenants/{tenant}/nodes/{node}/heartbeat": {"roles": {"node"}, "scope": "node:self", "itself": "node"},
	"POST /v1/tenants/{tenant}/nodes/{node}/usage": {"roles": {"node"}, "scope": "node:self", "itself": "node"},
	"POST /v1/tenants/{tenant}/nodes/{node}/certificate": {"roles": {"node"}, "scope": "node:self", "itself": "node"},
	"GET /v1/tenants/{tenant}/operations/{operation}": {"roles": everyone, "scope": "operation:read"},
	"GET /v1/tenants/{tenant}/quota": {"roles": everyone, "scope": "quota:read"},
	"GET /v1/tenants/{tenant}/budget": {"roles": everyone, "scope": "budget:read"},
	"PUT /v1/tenants/{tenant}/budget": {"roles": {"owner", "billing"}, "scope": "budget:write"},
	"POST /v1/usage": {"public": true},
	"POST /v1/support/credits": {"public": true},
	"POST /v1/support/price-books": {"public": true},
	"POST /v1/support/price-books/assign": {"public": true},
	"GET /v1/price-books/{book}": {"public": true},
	"POST /v1/tenants/{tenant}/edges/{edge}/usage": {"roles": {"edge"}, "scope": "edge:self", "itself": "edge"},
	"POST /v1/tenants/{tenant}/edges/{edge}/volumes/{volume}/session": {"roles": {"edge"}, "scope": "edge:self", "itself": "edge"},
	"POST /v1/tenants/{tenant}/edges/{edge}/volumes/{volume}/anchor": {"roles": {"edge"}, "scope": "edge:self", "itself": "edge"},
	"POST /v1/tenants/{tenant}/edges/{edge}/volumes/{volume}/audits": {"roles": {"edge"}, "scope": "edge:self", "itself": "edge"},
	"GET /v1/tenants/{tenant}/volumes/{volume}/audits": {"roles": everyone, "scope": "volume:read"},
	"GET /v1/tenants/{tenant}/usage/{month}": {"roles": everyone, "scope": "usage:read"},
	"GET /v1/tenants/{tenant}/invoices": {"roles": everyone, "scope": "invoice:read"},
	"GET /v1/tenants/{tenant}/invoices/{month}": {"roles": everyone, "scope": "invoice:read"},
	"GET /v1/tenants/{tenant}/invoices/{month}/csv": {"roles": everyone, "scope": "invoice:read"},
	"GET /v1/tenants/{tenant}/forecast": {"roles": everyone, "scope": "usage:read"},
	"GET /v1/tenants/{tenant}/costs/{month}": {"roles": everyone, "scope": "usage:read"},
	"GET /v1/tenants/{tenant}/shared-costs/{month}": {"roles": everyone, "scope": "usage:read"},
	"GET /v1/tenants/{tenant}/prices/{month}": {"roles": everyone, "scope": "invoice:read"},
	"GET /v1/tenants/{tenant}/credits": {"roles": everyone, "scope": "invoice:read"},
	"GET /v1/tenants/{tenant}/alerts/{month}": {"roles": everyone, "scope": "budget:read"},
	"GET /v1/tenants/{tenant}/audit": {"roles": admins | {"reader"}, "scope": "audit:read"},
	"GET /v1/tenants/{tenant}/audit/head": {"roles": admins | {"reader"}, "scope": "audit:read"},
}

row := rows[input.operation]

allow if row.public

allow if {
	input.caller.role in row.roles
	input.caller.tenant == input.params.tenant
	in_scope
	itself
}

in_scope if count(input.caller.scopes) == 0

in_scope if row.scope in input.caller.scopes

# People and programs act on anything of their tenant; an edge or a node on itself.
itself if not input.caller.role in {"edge", "node"}

itself if not row.itself

itself if input.params[row.itself] == input.caller.principal
