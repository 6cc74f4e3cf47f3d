module "cleaner" {
  source   = "../"
  package  = "${path.module}/cleaner.zip" # scripts/package-lambda cleaner.zip
  bucket   = "nord-firn-data"
  table    = "firn"
  region   = "eu-central-1"
  settings = { FIRN_CLEANER_GRACE_SECONDS = "7200" }
}
