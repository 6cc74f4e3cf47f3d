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
  description = "The cleaner's function and its queues."
  value       = { function = module.cleaner.function_name, queue = module.cleaner.queue_url, dead_letters = module.cleaner.dead_letters_url }
}
