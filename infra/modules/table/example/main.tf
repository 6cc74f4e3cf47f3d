module "table" {
  source = "../"
  name   = "firn"
}
