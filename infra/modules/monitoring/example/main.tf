module "monitoring" {
  source           = "../"
  bucket           = "nord-firn-data"
  table            = "firn"
  cleaner_function = "firn-cleaner"
  region           = "eu-central-1"
}
