module "cleaner" {
  source         = "../"
  name           = "firnacme-cleaner"
  own_account    = "firnacmecleaner"
  resource_group = "firn"
  location       = "westeurope"
  package        = "cleaner.zip"
  store          = "azure://firn?account=firnacme"
  anchor         = "azure-table://firnroots?account=firnacme"
}
