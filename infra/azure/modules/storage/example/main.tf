module "storage" {
  source         = "../"
  name           = "firnacme"
  resource_group = "firn"
  location       = "westeurope"
}
