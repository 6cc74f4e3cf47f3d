output "store" {
  description = "What edges have as volume.store."
  value       = module.storage.store
}

output "anchor" {
  description = "What edges have as volume.anchor."
  value       = module.storage.anchor
}

output "cleaner" {
  description = "The object id of the cleaner's identity."
  value       = module.cleaner.identity
}

output "alarms" {
  description = "The names of the alarms."
  value       = module.monitoring.alarms
}
