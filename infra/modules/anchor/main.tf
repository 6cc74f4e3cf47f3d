# The anchor as a Lambda function behind its URL: no machine to keep, and no edge has rights to the table of roots.
#
# AWS checks each caller's signature before the function is called and says who it is (docs/anchor.md, decision 0105). Callers need the
# product's policy for them, services/anchor-lambda/iam-caller.json; the modules edge and cleaner attach it.

data "aws_caller_identity" "this" {}

locals {
  product  = "${path.module}/../../../services/anchor-lambda"
  grants   = jsonencode([for caller in var.callers : { name = caller.name, role = caller.role, volume = caller.volume }])
  endpoint = { for service, url in { lambda = var.endpoint, dynamodb = var.dynamodb_endpoint } : service => url == "" ? "" : "&endpoint=${url}" }
}

resource "aws_iam_role" "this" {
  name               = var.name
  assume_role_policy = file("${local.product}/iam-trust.json")
  tags               = var.tags
}

resource "aws_iam_role_policy" "this" {
  name = "anchor"
  role = aws_iam_role.this.name
  policy = templatefile("${local.product}/iam-policy.json", {
    ACCOUNT = data.aws_caller_identity.this.account_id
    NAME    = var.name
    REGION  = var.region
    TABLE   = var.table
  })
}

# What the function may write to; it may not make it.
resource "aws_cloudwatch_log_group" "this" {
  name              = "/aws/lambda/${var.name}"
  retention_in_days = var.log_days
  tags              = var.tags
}

resource "aws_lambda_function" "this" {
  #checkov:skip=CKV_AWS_116:Every call is synchronous: the caller hears of a failure itself and asks again, and nothing is ever put aside.
  function_name    = var.name
  role             = aws_iam_role.this.arn
  runtime          = "provided.al2023"
  handler          = "bootstrap"
  architectures    = [var.architecture]
  filename         = var.package
  source_code_hash = filebase64sha256(var.package)
  timeout          = 20 # what a caller waits for an answer at most
  memory_size      = var.memory_mib
  tags             = var.tags

  environment {
    variables = {
      FIRN_ANCHOR_GRANTS = local.grants
      FIRN_ANCHOR_TABLE  = "dynamodb://${var.table}?region=${var.region}${local.endpoint.dynamodb}"
    }
  }

  depends_on = [aws_iam_role_policy.this, aws_cloudwatch_log_group.this]
}

# Without a signature that AWS knows nobody gets through, and by a policy of the caller's own only.
resource "aws_lambda_function_url" "this" {
  function_name      = aws_lambda_function.this.function_name
  authorization_type = "AWS_IAM"
}
