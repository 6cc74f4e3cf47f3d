output "store" {
  description = "The store, as in `volume.store` of firn-edge.toml and FIRN_CLEANER_STORE."
  value       = "s3://${var.bucket}/${var.prefix}?region=${var.region}${local.endpoints.s3}"
}

output "bucket" {
  description = "The whole bucket, in which a service's volumes have a place each."
  value       = "s3://${var.bucket}?region=${var.region}${local.endpoints.s3}"
}

output "table" {
  description = "The table, as in `volume.table` of firn-edge.toml and FIRN_CLEANER_TABLE."
  value       = "dynamodb://${var.table}?region=${var.region}${local.endpoints.dynamodb}"
}

output "prefix" {
  description = "The prefix, checked."
  value       = var.prefix
}

output "region" {
  description = "The region, checked."
  value       = var.region
}
