module "monitoring" {
  source         = "../"
  name           = "firn"
  resource_group = "firn"
  account_id     = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/firn/providers/Microsoft.Storage/storageAccounts/firnacme"
  cleaner_id     = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/firn/providers/Microsoft.Web/sites/firnacme-cleaner"
}
