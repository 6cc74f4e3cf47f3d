mock_provider "aws" {
  override_data {
    target = data.aws_caller_identity.this
    values = { account_id = "123456789012" }
  }
  mock_resource "aws_iam_role" {
    defaults = { arn = "arn:aws:iam::123456789012:role/firn-cleaner" }
  }
  mock_resource "aws_sqs_queue" {
    defaults = { arn = "arn:aws:sqs:eu-central-1:123456789012:firn-cleaner" }
  }
  mock_resource "aws_cloudwatch_event_rule" {
    defaults = { arn = "arn:aws:events:eu-central-1:123456789012:rule/firn-cleaner" }
  }
  mock_resource "aws_lambda_function" {
    defaults = { arn = "arn:aws:lambda:eu-central-1:123456789012:function:firn-cleaner" }
  }
}

variables {
  package = "tests/cleaner.zip"
  bucket  = "nord"
  table   = "firn"
  region  = "eu-central-1"
}

run "has_time_for_a_run_and_its_messages_for_six" {
  command = plan
  variables {
    run_seconds = 100
    settings    = { FIRN_CLEANER_GRACE_SECONDS = "7200" }
  }
  assert {
    condition     = aws_lambda_function.this.timeout == 110 && aws_sqs_queue.work.visibility_timeout_seconds == 660
    error_message = "The function gets ten seconds more, the queue six times that."
  }
  assert {
    condition = aws_lambda_function.this.environment[0].variables == tomap({
      FIRN_CLEANER_GRACE_SECONDS = "7200"
      FIRN_CLEANER_RUN_SECONDS   = "100"
      FIRN_CLEANER_STORE         = "s3://nord/firn?region=eu-central-1"
      FIRN_CLEANER_TABLE         = "dynamodb://firn?region=eu-central-1"
    })
    error_message = "These are its settings."
  }
}

run "attaches_the_policy_that_the_product_ships" {
  command = plan
  assert {
    condition     = !strcontains(aws_iam_role_policy.this.policy, "$") && strcontains(aws_iam_role_policy.this.policy, "arn:aws:dynamodb:eu-central-1:123456789012:table/firn\"")
    error_message = "Every placeholder is filled."
  }
}

run "refuses_a_package_that_is_not_there" {
  command = plan
  variables {
    package = "nowhere.zip"
  }
  # Its hash cannot be had either.
  expect_failures = [var.package]
}

run "refuses_what_lambda_and_the_cleaner_do_not_know" {
  command = plan
  variables {
    architecture = "riscv"
    run_seconds  = 841
    schedule     = "every now and then"
    log_days     = 31
    settings     = { FIRN_CLEANER_STORE = "s3://elsewhere" }
    name         = "cleaner of firn"
  }
  expect_failures = [var.architecture, var.run_seconds, var.schedule, var.log_days, var.settings, var.name]
}

run "asks_an_anchor_and_has_no_rights_to_the_table" {
  command = plan
  variables {
    anchor = { function = "firn-anchor", address = "lambda://abc123/ten_00000000000000000000000000000001/vol_00000000000000000000000000000002?region=eu-central-1", family = "0123456789abcdef0123456789abcdef" }
  }
  assert {
    condition = aws_lambda_function.this.environment[0].variables == tomap({
      FIRN_CLEANER_ANCHOR      = "lambda://abc123/ten_00000000000000000000000000000001/vol_00000000000000000000000000000002?region=eu-central-1"
      FIRN_CLEANER_FAMILIES    = "0123456789abcdef0123456789abcdef"
      FIRN_CLEANER_RUN_SECONDS = "50"
      FIRN_CLEANER_STORE       = "s3://nord/firn?region=eu-central-1"
    })
    error_message = "These are its settings."
  }
  assert {
    condition     = !strcontains(aws_iam_role_policy.this.policy, "dynamodb") && strcontains(aws_iam_role_policy.anchor[0].policy, "InvokedViaFunctionUrl")
    error_message = "It may ask the function by its URL, and nothing of the table."
  }
}

run "refuses_an_anchor_without_a_family" {
  command = plan
  variables {
    anchor = { function = "firn-anchor", address = "lambda://abc123/ten_00000000000000000000000000000001/vol_00000000000000000000000000000002?region=eu-central-1", family = "" }
  }
  expect_failures = [var.anchor]
}

run "cleans_all_managed_volumes_of_a_service" {
  command = plan
  variables {
    of_service = true
    table      = "firn-anchor"
  }
  assert {
    condition = aws_lambda_function.this.environment[0].variables == tomap({
      FIRN_CLEANER_ROOTS       = "service"
      FIRN_CLEANER_RUN_SECONDS = "50"
      FIRN_CLEANER_STORE       = "s3://nord?region=eu-central-1"
      FIRN_CLEANER_TABLE       = "dynamodb://firn-anchor?region=eu-central-1"
    })
    error_message = "These are its settings."
  }
  assert {
    condition     = !strcontains(aws_iam_role_policy.this.policy, "$") && strcontains(aws_iam_role_policy.this.policy, "anchor/*")
    error_message = "Its rows are those of roots."
  }
}
