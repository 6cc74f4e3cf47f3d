# The storage account: a container of sealed objects with their versions, and the table of roots.

resource "azurerm_storage_account" "this" {
  name                     = var.name
  resource_group_name      = var.resource_group
  location                 = var.location
  account_kind             = "StorageV2"
  account_tier             = "Standard"
  account_replication_type = var.replication
  min_tls_version          = "TLS1_2"
  tags                     = var.tags

  https_traffic_only_enabled       = true
  allow_nested_items_to_be_public  = false
  cross_tenant_replication_enabled = false
  # Offices outside of Azure may have a key or a signature made of it; identities need neither.
  shared_access_key_enabled = var.shared_keys

  blob_properties {
    # What the cleaner deletes, and what anybody overwrites, can be brought back for so long.
    versioning_enabled = true
    delete_retention_policy {
      days = var.undo_days
    }
    container_delete_retention_policy {
      days = var.undo_days
    }
  }
}

resource "azurerm_storage_container" "this" {
  name                  = var.container
  storage_account_id    = azurerm_storage_account.this.id
  container_access_type = "private"
}

resource "azurerm_storage_table" "this" {
  name               = var.table
  storage_account_id = azurerm_storage_account.this.id
}

# Versions that the cleaner's deletions leave behind are paid for until they are deleted, too.
resource "azurerm_storage_management_policy" "this" {
  storage_account_id = azurerm_storage_account.this.id
  rule {
    name    = "old-versions"
    enabled = true
    filters {
      blob_types   = ["blockBlob"]
      prefix_match = [var.container]
    }
    actions {
      version {
        delete_after_days_since_creation = var.undo_days
      }
    }
  }
}

# Nobody deletes the account by a slip.
resource "azurerm_management_lock" "this" {
  count      = var.destroy_data ? 0 : 1
  name       = "roots-and-objects"
  scope      = azurerm_storage_account.this.id
  lock_level = "CanNotDelete"
  notes      = "Without it there are no volumes. To destroy it: apply with destroy_data = true, then destroy."
}
