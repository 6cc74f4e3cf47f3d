output "alarms" {
  description = "The names of the alarms."
  value       = concat([for alarm in azurerm_monitor_metric_alert.this : alarm.name], [azurerm_monitor_metric_alert.cleaner.name])
}
