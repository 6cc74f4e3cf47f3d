output "id" {
  description = "The storage account's id."
  value       = azurerm_storage_account.this.id
}

output "name" {
  description = "The storage account's name."
  value       = azurerm_storage_account.this.name
}

output "container_id" {
  description = "The container's id, as the scope of roles."
  value       = azurerm_storage_container.this.id
}

output "table_id" {
  description = "The table's id, as the scope of roles."
  value       = azurerm_storage_table.this.id
}

output "store" {
  description = "The container's address as Firn's programs write it."
  value       = "azure://${azurerm_storage_container.this.name}?account=${azurerm_storage_account.this.name}"
}

output "anchor" {
  description = "The table's address as Firn's programs write it."
  value       = "azure-table://${azurerm_storage_table.this.name}?account=${azurerm_storage_account.this.name}"
}
