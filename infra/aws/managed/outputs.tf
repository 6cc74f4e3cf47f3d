output "arguments" {
  description = "What `firn-api serve` takes beside its listeners, names and files: `terraform output -json arguments | jq -r '.[]'`."
  value       = concat(module.api.arguments, module.pool.arguments)
  depends_on  = [module.bucket]
}

output "instance_profile" {
  description = "The instance profile of machines that run firn-api; nothing if they are tasks of ECS."
  value       = module.api.instance_profile
}

output "role" {
  description = "The role that firn-api acts in."
  value       = module.api.role_arn
}

output "cluster_table" {
  description = "The cluster's table, for `firn-blockd init`."
  value       = module.pool.table_url
}

output "bucket" {
  description = "The bucket of managed volumes."
  value       = module.bucket.name
}

output "cleaner" {
  description = "The cleaner's function and its queues."
  value       = { function = module.cleaner.function_name, queue = module.cleaner.queue_url, dead_letters = module.cleaner.dead_letters_url }
}
