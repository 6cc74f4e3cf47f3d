output "configuration" {
  description = "firn-edge.toml: `terraform output -raw configuration > firn-edge.toml`."
  value       = module.edge.configuration
  depends_on  = [module.bucket]
}

output "bucket" {
  description = "The bucket."
  value       = module.bucket.name
}

output "table" {
  description = "The table."
  value       = module.table.name
}

output "cleaner" {
  description = "The cleaner's function and its queues; nothing before an anchor's family is known."
  value       = one([for cleaner in module.cleaner : { function = cleaner.function_name, queue = cleaner.queue_url, dead_letters = cleaner.dead_letters_url }])
}

output "anchor" {
  description = "The anchor's address, as the edges' configurations have it; nothing without an anchor."
  value       = try(local.anchored.address, null)
}
