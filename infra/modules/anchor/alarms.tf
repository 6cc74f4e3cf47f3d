# Alarms that a human must see: while the anchor answers nobody, commits wait in the edges' journals until these are full.

locals {
  alarms = {
    errors    = { metric = "Errors", threshold = 3, description = "The anchor's function fails again and again; its log group ${aws_cloudwatch_log_group.this.name} says why. Commits wait in the edges' journals, nothing is lost." }
    throttles = { metric = "Throttles", threshold = 3, description = "AWS throttles the anchor's function: commits wait in the edges' journals. Raise the account's limit of functions that run at once." }
  }
}

resource "aws_cloudwatch_metric_alarm" "this" {
  for_each            = local.alarms
  alarm_name          = "${var.name}-${each.key}"
  alarm_description   = each.value.description
  namespace           = "AWS/Lambda"
  metric_name         = each.value.metric
  dimensions          = { FunctionName = aws_lambda_function.this.function_name }
  statistic           = "Sum"
  period              = 300
  evaluation_periods  = 1
  comparison_operator = "GreaterThanOrEqualToThreshold"
  threshold           = each.value.threshold
  treat_missing_data  = "notBreaching"
  alarm_actions       = var.alarm_actions
  ok_actions          = var.alarm_actions
}
