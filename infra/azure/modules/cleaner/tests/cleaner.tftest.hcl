mock_provider "azurerm" {}

variables {
  name           = "firnacme-cleaner"
  own_account    = "firnacmecleaner"
  resource_group = "firn"
  location       = "westeurope"
  package        = "cleaner.zip"
  store          = "azure://firn?account=firnacme"
  anchor         = "azure-table://firnroots?account=firnacme"
  settings       = { FIRN_CLEANER_RUN_SECONDS = "100" }
}

run "cleans_by_an_identity_of_its_own_and_asks_azure_alone" {
  command = apply
  override_resource {
    target = azurerm_storage_account.this
    values = { id = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/firn/providers/Microsoft.Storage/storageAccounts/firnacmecleaner" }
  }
  override_resource {
    target = azurerm_service_plan.this
    values = { id = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/firn/providers/Microsoft.Web/serverFarms/firnacme-cleaner" }
  }
  assert {
    condition     = azurerm_linux_function_app.this.identity[0].type == "SystemAssigned" && azurerm_linux_function_app.this.site_config[0].application_stack[0].use_custom_runtime
    error_message = "A custom handler with an identity."
  }
  assert {
    condition     = azurerm_linux_function_app.this.app_settings == tomap({ FIRN_CLEANER_ANCHOR = var.anchor, FIRN_CLEANER_RUN_SECONDS = "100", FIRN_CLEANER_STORE = var.store })
    error_message = "No key of an account and nothing of AWS among the settings."
  }
  assert {
    condition     = toset(keys(azurerm_storage_queue.this)) == toset(["firn-cleaner", "firn-cleaner-poison"])
    error_message = "The queue that the handler is bound to, and where failed messages go."
  }
}
