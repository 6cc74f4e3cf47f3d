# Firn in a subscription of your own: a storage account with container and table, the cleaner, and an identity's rights for each office. No
# service of anybody else is needed, and nothing of AWS.

provider "azurerm" {
  features {}
  subscription_id     = var.subscription
  storage_use_azuread = true
}

resource "azurerm_resource_group" "this" {
  name     = var.name
  location = var.location
  tags     = var.tags
}

module "storage" {
  source         = "../modules/storage"
  name           = var.account
  resource_group = azurerm_resource_group.this.name
  location       = var.location
  replication    = var.replication
  undo_days      = var.undo_days
  shared_keys    = var.shared_keys
  destroy_data   = var.destroy_data
  tags           = var.tags
}

module "cleaner" {
  source         = "../modules/cleaner"
  name           = "${var.account}-cleaner"
  own_account    = coalesce(var.cleaner_account, substr("${var.account}cleaner", 0, 24))
  resource_group = azurerm_resource_group.this.name
  location       = var.location
  package        = var.cleaner_package
  store          = module.storage.store
  anchor         = module.storage.anchor
  settings       = var.cleaner_settings
  tags           = var.tags
}

module "access" {
  source       = "../modules/access"
  name         = var.account
  account_id   = module.storage.id
  container_id = module.storage.container_id
  table_id     = module.storage.table_id
  edges        = var.edges
  cleaner      = module.cleaner.identity
}

module "monitoring" {
  source         = "../modules/monitoring"
  name           = var.name
  resource_group = azurerm_resource_group.this.name
  account_id     = module.storage.id
  cleaner_id     = module.cleaner.id
  action_groups  = var.action_groups
  tags           = var.tags
}
