# Who may do what with container and table: a role for edges and one for the cleaner, and who has them.
#
# An edge adds objects and cannot overwrite or delete one; it changes roots and cannot remove one. Azure's own roles allow more.

locals {
  see = ["Microsoft.Storage/storageAccounts/blobServices/containers/read"]
  edge = [
    "Microsoft.Storage/storageAccounts/blobServices/containers/blobs/read",
    "Microsoft.Storage/storageAccounts/blobServices/containers/blobs/add/action",
    "Microsoft.Storage/storageAccounts/tableServices/tables/entities/read",
    "Microsoft.Storage/storageAccounts/tableServices/tables/entities/add/action",
    "Microsoft.Storage/storageAccounts/tableServices/tables/entities/update/action",
  ]
  cleaner = concat(local.edge, [
    "Microsoft.Storage/storageAccounts/blobServices/containers/blobs/delete",
    "Microsoft.Storage/storageAccounts/tableServices/tables/entities/delete",
  ])
}

resource "azurerm_role_definition" "edge" {
  name              = "${var.name}-edge"
  scope             = var.account_id
  description       = "Firn's edges: read and add objects, read, add and change roots."
  assignable_scopes = [var.account_id]
  permissions {
    actions      = local.see
    data_actions = local.edge
  }
}

resource "azurerm_role_definition" "cleaner" {
  name              = "${var.name}-cleaner"
  scope             = var.account_id
  description       = "Firn's cleaner: the edge's rights, and to delete objects and what it noted of them."
  assignable_scopes = [var.account_id]
  permissions {
    actions      = local.see
    data_actions = local.cleaner
  }
}

locals {
  scopes = { container = var.container_id, table = var.table_id }
  holders = merge(
    { for office, principal in var.edges : office => { principal = principal, role = azurerm_role_definition.edge.role_definition_resource_id } },
    { " cleaner" = { principal = var.cleaner, role = azurerm_role_definition.cleaner.role_definition_resource_id } },
  )
  assignments = merge([
    for holder, of in local.holders : {
      for what, scope in local.scopes : "${trimspace(holder)}-${what}" => { scope = scope, principal = of.principal, role = of.role }
    }
  ]...)
}

resource "azurerm_role_assignment" "this" {
  for_each           = local.assignments
  scope              = each.value.scope
  role_definition_id = each.value.role
  principal_id       = each.value.principal
}
