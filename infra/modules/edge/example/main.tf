module "edge" {
  source  = "../"
  name    = "firn-berlin"
  bucket  = "nord-firn-data"
  table   = "firn"
  region  = "eu-central-1"
  clients = ["192.168.0.0/16"]
}

output "configuration" {
  description = "firn-edge.toml"
  value       = module.edge.configuration
}
