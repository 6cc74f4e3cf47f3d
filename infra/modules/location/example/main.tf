module "location" {
  source = "../"
  bucket = "nord-firn-data"
  table  = "firn"
  region = "eu-central-1"
}

output "store" {
  description = "volume.store of firn-edge.toml"
  value       = module.location.store
}
