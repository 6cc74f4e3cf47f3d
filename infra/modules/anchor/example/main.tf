module "anchor" {
  source  = "../"
  package = "${path.module}/anchor.zip" # scripts/package-lambda --anchor anchor.zip
  table   = "firn"
  region  = "eu-central-1"
  callers = [
    { name = "arn:aws:iam::123456789012:user/firn-berlin", volume = "ten_00000000000000000000000000000001/vol_00000000000000000000000000000001", role = "edge" },
    { name = "arn:aws:iam::123456789012:role/firn-cleaner", volume = "ten_00000000000000000000000000000001/vol_00000000000000000000000000000001", role = "cleaner" },
  ]
}
