# The cleaner as a Lambda function: called by a schedule and by a queue, with the policy that the product ships for it.
#
# A call that failed three times, and a message that failed five times, end in the queue of dead letters, which has an alarm.

data "aws_caller_identity" "this" {}

module "location" {
  source            = "../location"
  bucket            = var.bucket
  prefix            = var.prefix
  table             = var.table
  region            = var.region
  s3_endpoint       = var.s3_endpoint
  dynamodb_endpoint = var.dynamodb_endpoint
}

locals {
  product         = "${path.module}/../../../services/cleaner-lambda"
  timeout_seconds = var.run_seconds + 10
  policy          = var.of_service ? "iam-policy-service" : var.anchor == null ? "iam-policy" : "iam-policy-anchored"
  roots = var.of_service ? { FIRN_CLEANER_TABLE = module.location.table, FIRN_CLEANER_ROOTS = "service" } : var.anchor == null ? { FIRN_CLEANER_TABLE = module.location.table } : {
    FIRN_CLEANER_ANCHOR   = var.anchor.address
    FIRN_CLEANER_FAMILIES = var.anchor.family
  }
}

resource "aws_iam_role" "this" {
  name               = var.name
  assume_role_policy = file("${local.product}/iam-trust.json")
  tags               = var.tags
}

resource "aws_iam_role_policy" "this" {
  name = "cleaner"
  role = aws_iam_role.this.name
  policy = templatefile("${local.product}/${local.policy}.json", {
    ACCOUNT      = data.aws_caller_identity.this.account_id
    ANCHOR_TABLE = var.table
    BUCKET       = var.bucket
    NAME         = var.name
    PREFIX       = module.location.prefix
    REGION       = module.location.region
    TABLE        = var.table
  })
}

# Instead of rights to the table, the right to ask the anchor's function.
resource "aws_iam_role_policy" "anchor" {
  count = var.anchor == null ? 0 : 1
  name  = "anchor"
  role  = aws_iam_role.this.name
  policy = templatefile("${path.module}/../../../services/anchor-lambda/iam-caller.json", {
    ACCOUNT  = data.aws_caller_identity.this.account_id
    FUNCTION = var.anchor.function
    REGION   = module.location.region
  })
}

# What the function may write to; it may not make it.
resource "aws_cloudwatch_log_group" "this" {
  name              = "/aws/lambda/${var.name}"
  retention_in_days = var.log_days
  tags              = var.tags
}

resource "aws_sqs_queue" "dead" {
  name                      = "${var.name}-dead"
  message_retention_seconds = 1209600 # 14 days, the longest: somebody must look
  tags                      = var.tags
}

resource "aws_sqs_queue" "work" {
  name                       = var.name
  visibility_timeout_seconds = 6 * local.timeout_seconds # what AWS asks for, so that no message comes twice meanwhile
  redrive_policy             = jsonencode({ deadLetterTargetArn = aws_sqs_queue.dead.arn, maxReceiveCount = 5 })
  tags                       = var.tags
}

resource "aws_lambda_function" "this" {
  function_name    = var.name
  role             = aws_iam_role.this.arn
  runtime          = "provided.al2023"
  handler          = "bootstrap"
  architectures    = [var.architecture]
  filename         = var.package
  source_code_hash = filebase64sha256(var.package)
  timeout          = local.timeout_seconds
  memory_size      = var.memory_mib
  tags             = var.tags

  environment {
    variables = merge(var.settings, local.roots, {
      FIRN_CLEANER_STORE       = var.of_service ? module.location.bucket : module.location.store
      FIRN_CLEANER_RUN_SECONDS = tostring(var.run_seconds)
    })
  }

  dead_letter_config {
    target_arn = aws_sqs_queue.dead.arn
  }

  depends_on = [aws_iam_role_policy.this, aws_iam_role_policy.anchor, aws_cloudwatch_log_group.this]
}

resource "aws_lambda_event_source_mapping" "work" {
  event_source_arn        = aws_sqs_queue.work.arn
  function_name           = aws_lambda_function.this.arn
  batch_size              = 1
  function_response_types = ["ReportBatchItemFailures"]
}

resource "aws_cloudwatch_event_rule" "schedule" {
  name                = var.name
  description         = "Calls the cleaner of firn"
  schedule_expression = var.schedule
}

resource "aws_lambda_permission" "schedule" {
  statement_id  = "schedule"
  action        = "lambda:InvokeFunction"
  function_name = aws_lambda_function.this.function_name
  principal     = "events.amazonaws.com"
  source_arn    = aws_cloudwatch_event_rule.schedule.arn
}

resource "aws_cloudwatch_event_target" "schedule" {
  rule       = aws_cloudwatch_event_rule.schedule.name
  target_id  = "cleaner"
  arn        = aws_lambda_function.this.arn
  depends_on = [aws_lambda_permission.schedule]
}
