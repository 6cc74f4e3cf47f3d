mock_provider "aws" {
  override_data {
    target = data.aws_caller_identity.this
    values = { account_id = "123456789012" }
  }
  override_data {
    target = module.cleaner.data.aws_caller_identity.this
    values = { account_id = "123456789012" }
  }
  override_data {
    target = module.edge.data.aws_caller_identity.this
    values = { account_id = "123456789012" }
  }
  mock_resource "aws_iam_role" {
    defaults = { arn = "arn:aws:iam::123456789012:role/firn-cleaner" }
  }
  mock_resource "aws_sqs_queue" {
    defaults = { arn = "arn:aws:sqs:eu-central-1:123456789012:firn-cleaner" }
  }
  mock_resource "aws_lambda_function_url" {
    defaults = { url_id = "abc123" }
  }
  mock_resource "aws_cloudwatch_event_rule" {
    defaults = { arn = "arn:aws:events:eu-central-1:123456789012:rule/firn-cleaner" }
  }
  mock_resource "aws_lambda_function" {
    defaults = { arn = "arn:aws:lambda:eu-central-1:123456789012:function:firn-cleaner" }
  }
}

variables {
  region          = "eu-central-1"
  cleaner_package = "tests/cleaner.zip"
  edges           = { berlin = { clients = ["192.168.0.0/16"] }, lyon = { clients = ["10.0.0.0/8"], volume = "lyon" } }
}

run "each_office_has_a_configuration" {
  command = apply
  assert {
    condition     = join(" ", keys(output.configurations)) == "berlin lyon" && join(" ", keys(output.users)) == "berlin lyon"
    error_message = "Each office has a configuration and a user."
  }
  assert {
    condition     = strcontains(output.configurations.lyon, "s3://firn-123456789012-eu-central-1/firn?region=eu-central-1") && strcontains(output.configurations.lyon, "name = \"lyon\"")
    error_message = output.configurations.lyon
  }
}

run "with_an_anchor_no_office_has_rights_to_the_table" {
  command = apply
  variables {
    anchor = { package = "tests/anchor.zip", volume = "ten_00000000000000000000000000000001/vol_00000000000000000000000000000002" }
  }
  assert {
    condition     = strcontains(output.configurations.lyon, "anchor = \"lambda://abc123/ten_00000000000000000000000000000001/vol_00000000000000000000000000000002?region=eu-central-1\"") && output.anchor == "lambda://abc123/ten_00000000000000000000000000000001/vol_00000000000000000000000000000002?region=eu-central-1"
    error_message = output.configurations.lyon
  }
  assert {
    condition     = output.cleaner == null
    error_message = "A cleaner that asks an anchor cleans one family, which is not known before the volume was formatted."
  }
}

run "and_once_the_family_is_known_its_cleaner_is_there" {
  command = apply
  variables {
    anchor = { package = "tests/anchor.zip", volume = "ten_00000000000000000000000000000001/vol_00000000000000000000000000000002", family = "0123456789abcdef0123456789abcdef" }
  }
  assert {
    condition     = output.cleaner.function == "firn-cleaner"
    error_message = "The family is given."
  }
}

run "refuses_no_office" {
  command = plan
  variables {
    edges = {}
  }
  expect_failures = [var.edges]
}

run "refuses_a_region_that_is_none" {
  command = plan
  variables {
    region = "Frankfurt"
    name   = "F"
  }
  expect_failures = [var.region, var.name]
}
