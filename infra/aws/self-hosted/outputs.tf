output "configurations" {
  description = "firn-edge.toml for each office: `terraform output -json configurations | jq -r .berlin`."
  value       = { for office, edge in module.edge : office => edge.configuration }
  depends_on  = [module.bucket]
}

output "users" {
  description = "The user of each office, for `aws iam create-access-key --user-name …`."
  value       = { for office, edge in module.edge : office => edge.user }
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

output "dashboard" {
  description = "The name of the dashboard in CloudWatch."
  value       = module.monitoring.dashboard
}
