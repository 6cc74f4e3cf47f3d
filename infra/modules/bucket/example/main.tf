module "bucket" {
  source    = "../"
  name      = "nord-firn-data"
  deleters  = ["arn:aws:iam::123456789012:role/firn-cleaner"]
  undo_days = 14
}
