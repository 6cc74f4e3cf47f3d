output "id" {
  description = "The function app's id."
  value       = azurerm_linux_function_app.this.id
}

output "identity" {
  description = "The object id of the function app's identity."
  value       = azurerm_linux_function_app.this.identity[0].principal_id
}

output "own_account_id" {
  description = "The id of the function app's own storage account, where its queues are."
  value       = azurerm_storage_account.this.id
}
