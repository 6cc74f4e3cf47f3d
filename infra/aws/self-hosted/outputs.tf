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
  description = "The cleaner's function and its queues; nothing before an anchor's family is known."
  value       = one([for cleaner in module.cleaner : { function = cleaner.function_name, queue = cleaner.queue_url, dead_letters = cleaner.dead_letters_url }])
}

output "dashboard" {
  description = "The name of the dashboard in CloudWatch."
  value       = module.monitoring.dashboard
}

output "anchor" {
  description = "The anchor's address, as the edges' configurations have it; nothing without an anchor."
  value       = try(local.anchored.address, null)
}
