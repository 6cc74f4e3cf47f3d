mock_provider "azurerm" {
  mock_resource "azurerm_storage_account" {
    defaults = { id = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/firn/providers/Microsoft.Storage/storageAccounts/firnacme" }
  }
}

variables {
  name           = "firnacme"
  resource_group = "firn"
  location       = "westeurope"
}

run "keeps_versions_and_is_closed" {
  command = apply
  assert {
    condition     = azurerm_storage_account.this.blob_properties[0].versioning_enabled && azurerm_storage_account.this.blob_properties[0].delete_retention_policy[0].days == 14
    error_message = "What was deleted can be brought back."
  }
  assert {
    condition     = !azurerm_storage_account.this.allow_nested_items_to_be_public && !azurerm_storage_account.this.shared_access_key_enabled && azurerm_storage_account.this.https_traffic_only_enabled
    error_message = "Only identities, only by TLS."
  }
  assert {
    condition     = length(azurerm_management_lock.this) == 1
    error_message = "The account is not deleted by a slip."
  }
}

run "gives_addresses_as_firn_reads_them" {
  command = apply
  assert {
    condition     = output.store == "azure://firn?account=firnacme" && output.anchor == "azure-table://firnroots?account=firnacme"
    error_message = "The edge's configuration has these."
  }
}

run "may_be_destroyed_where_somebody_says_so" {
  command = apply
  variables {
    destroy_data = true
  }
  assert {
    condition     = length(azurerm_management_lock.this) == 0
    error_message = "The lock is gone."
  }
}

run "refuses_names_that_azure_has_not" {
  command = plan
  variables {
    name  = "firn-acme"
    table = "firn-roots"
  }
  expect_failures = [var.name, var.table]
}
