# What an administrator sees of a self-hosted Firn in AWS: alarms of the table, and one dashboard. Edges have their own metrics.

locals {
  graph = {
    "Requests of the table" = [for metric in ["ConsumedReadCapacityUnits", "ConsumedWriteCapacityUnits"] : ["AWS/DynamoDB", metric, "TableName", var.table]]
    "Table, time of an answer in ms" = [
      for operation in ["GetItem", "PutItem", "Query", "TransactWriteItems"] : ["AWS/DynamoDB", "SuccessfulRequestLatency", "TableName", var.table, "Operation", operation]
    ]
    "Cleaner: calls and failures"   = [for metric in ["Invocations", "Errors", "Throttles"] : ["AWS/Lambda", metric, "FunctionName", var.cleaner_function]]
    "Cleaner: how long a run takes" = [["AWS/Lambda", "Duration", "FunctionName", var.cleaner_function]]
    "Messages that wait, and dead letters" = [
      for queue in [var.cleaner_function, "${var.cleaner_function}-dead"] : ["AWS/SQS", "ApproximateNumberOfMessagesVisible", "QueueName", queue]
    ]
    "Bytes in the bucket" = [["AWS/S3", "BucketSizeBytes", "BucketName", var.bucket, "StorageType", "StandardStorage"]]
  }
  statistic = { "Bytes in the bucket" = ["Average", 86400], "Table, time of an answer in ms" = ["p99", 300], "Cleaner: how long a run takes" = ["Maximum", 300] }
  titles    = keys(local.graph)
}

resource "aws_cloudwatch_dashboard" "this" {
  dashboard_name = var.name
  dashboard_body = jsonencode({
    widgets = [
      for position, title in local.titles : {
        type   = "metric"
        x      = 12 * (position % 2)
        y      = 6 * floor(position / 2)
        width  = 12
        height = 6
        properties = {
          title   = title
          region  = var.region
          metrics = local.graph[title]
          stat    = try(local.statistic[title][0], "Sum")
          period  = try(tonumber(local.statistic[title][1]), 300)
        }
      }
    ]
  })
}

locals {
  throttled = "AWS throttles the table ${var.table}: checkpoints wait and clients' data stay in the edges' journals. Raise the table's limits."
  failing   = "DynamoDB answers with errors of its own for the table ${var.table}: checkpoints wait, nothing is lost. See AWS's health page."
  alarms = {
    "reads-throttled"  = { metric = "ReadThrottleEvents", operation = null, why = local.throttled }
    "writes-throttled" = { metric = "WriteThrottleEvents", operation = null, why = local.throttled }
    # AWS counts these for each operation; commits of roots are one of the two.
    "puts-failing"         = { metric = "SystemErrors", operation = "PutItem", why = local.failing }
    "transactions-failing" = { metric = "SystemErrors", operation = "TransactWriteItems", why = local.failing }
  }
}

resource "aws_cloudwatch_metric_alarm" "table" {
  for_each            = local.alarms
  alarm_name          = "${var.name}-table-${each.key}"
  alarm_description   = each.value.why
  namespace           = "AWS/DynamoDB"
  metric_name         = each.value.metric
  dimensions          = merge({ TableName = var.table }, each.value.operation == null ? {} : { Operation = each.value.operation })
  statistic           = "Sum"
  period              = 300
  evaluation_periods  = 2
  comparison_operator = "GreaterThanThreshold"
  threshold           = 10
  treat_missing_data  = "notBreaching"
  alarm_actions       = var.alarm_actions
  ok_actions          = var.alarm_actions
}
