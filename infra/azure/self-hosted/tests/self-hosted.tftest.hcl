mock_provider "azurerm" {
  mock_resource "azurerm_storage_account" {
    defaults = {
      id                 = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/firn/providers/Microsoft.Storage/storageAccounts/firnacme"
      primary_access_key = "AAAA"
    }
  }
  mock_resource "azurerm_storage_container" {
    defaults = {
      id = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/firn/providers/Microsoft.Storage/storageAccounts/firnacme/blobServices/default/containers/firn"
    }
  }
  mock_resource "azurerm_storage_table" {
    defaults = {
      id = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/firn/providers/Microsoft.Storage/storageAccounts/firnacme/tableServices/default/tables/firnroots"
    }
  }
  mock_resource "azurerm_service_plan" {
    defaults = {
      id = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/firn/providers/Microsoft.Web/serverFarms/firnacme-cleaner"
    }
  }
  mock_resource "azurerm_linux_function_app" {
    defaults = {
      id = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/firn/providers/Microsoft.Web/sites/firnacme-cleaner"
    }
  }
  mock_resource "azurerm_role_definition" {
    defaults = {
      role_definition_resource_id = "/subscriptions/00000000-0000-0000-0000-000000000000/providers/Microsoft.Authorization/roleDefinitions/33333333-3333-3333-3333-333333333333"
    }
  }
}

variables {
  subscription    = "00000000-0000-0000-0000-000000000000"
  location        = "westeurope"
  account         = "firnacme"
  cleaner_package = "cleaner.zip"
  edges           = { berlin = "11111111-1111-1111-1111-111111111111" }
}

run "an_edge_is_told_container_and_table" {
  command = apply
  assert {
    condition     = output.store == "azure://firn?account=firnacme" && output.anchor == "azure-table://firnroots?account=firnacme"
    error_message = "The addresses as firn reads them."
  }
}

run "an_edge_cannot_overwrite_or_delete" {
  command = apply
  assert {
    condition = alltrue([
      for action in module.access.edge_actions : !endswith(action, "/delete") && !endswith(action, "blobs/write") && !endswith(action, "*")
    ]) && length(module.access.edge_actions) > 0
    error_message = "An edge adds objects and changes roots, no more."
  }
  assert {
    condition     = toset(module.access.assignments) == toset(["berlin-container", "berlin-table", "cleaner-container", "cleaner-table"])
    error_message = "Each identity has its role on container and table, and on nothing else."
  }
}

run "refuses_names_that_azure_has_not" {
  command = plan
  variables {
    account = "firn-acme"
  }
  expect_failures = [var.account]
}
