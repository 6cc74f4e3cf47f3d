# The cleaner as a Linux function app with an identity of its own, on a timer and from a queue.
#
# Its own storage account holds what the Functions host needs and the queues; it has nothing of Firn's data.

resource "azurerm_storage_account" "this" {
  name                     = var.own_account
  resource_group_name      = var.resource_group
  location                 = var.location
  account_kind             = "StorageV2"
  account_tier             = "Standard"
  account_replication_type = "LRS"
  min_tls_version          = "TLS1_2"
  tags                     = var.tags

  https_traffic_only_enabled       = true
  allow_nested_items_to_be_public  = false
  cross_tenant_replication_enabled = false
}

resource "azurerm_storage_queue" "this" {
  for_each           = toset(["firn-cleaner", "firn-cleaner-poison"])
  name               = each.key
  storage_account_id = azurerm_storage_account.this.id
}

resource "azurerm_service_plan" "this" {
  name                = var.name
  resource_group_name = var.resource_group
  location            = var.location
  os_type             = "Linux"
  sku_name            = "Y1"
  tags                = var.tags
}

resource "azurerm_application_insights" "this" {
  name                = var.name
  resource_group_name = var.resource_group
  location            = var.location
  application_type    = "other"
  retention_in_days   = 30
  tags                = var.tags
}

resource "azurerm_linux_function_app" "this" {
  name                       = var.name
  resource_group_name        = var.resource_group
  location                   = var.location
  service_plan_id            = azurerm_service_plan.this.id
  storage_account_name       = azurerm_storage_account.this.name
  storage_account_access_key = azurerm_storage_account.this.primary_access_key
  zip_deploy_file            = var.package
  https_only                 = true
  # Only the timer and the queue call it.
  public_network_access_enabled = var.publishes_from_outside
  tags                          = var.tags

  identity {
    type = "SystemAssigned"
  }

  site_config {
    minimum_tls_version                    = "1.2"
    ftps_state                             = "Disabled"
    application_insights_connection_string = azurerm_application_insights.this.connection_string
    application_stack {
      use_custom_runtime = true
    }
  }

  app_settings = merge(var.settings, {
    FIRN_CLEANER_STORE  = var.store
    FIRN_CLEANER_ANCHOR = var.anchor
  })
}
