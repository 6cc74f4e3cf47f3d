module "access" {
  source       = "../"
  name         = "firn"
  account_id   = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/firn/providers/Microsoft.Storage/storageAccounts/firnacme"
  container_id = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/firn/providers/Microsoft.Storage/storageAccounts/firnacme/blobServices/default/containers/firn"
  table_id     = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/firn/providers/Microsoft.Storage/storageAccounts/firnacme/tableServices/default/tables/firnroots"
  edges        = { berlin = "11111111-1111-1111-1111-111111111111" }
  cleaner      = "22222222-2222-2222-2222-222222222222"
}
