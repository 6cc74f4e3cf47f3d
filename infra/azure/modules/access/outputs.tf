output "edge_role" {
  description = "The id of the edges' role."
  value       = azurerm_role_definition.edge.role_definition_resource_id
}

output "cleaner_role" {
  description = "The id of the cleaner's role."
  value       = azurerm_role_definition.cleaner.role_definition_resource_id
}

output "edge_actions" {
  description = "What the edges' role allows with data."
  value       = azurerm_role_definition.edge.permissions[0].data_actions
}

output "assignments" {
  description = "Who has a role on what."
  value       = keys(azurerm_role_assignment.this)
}
