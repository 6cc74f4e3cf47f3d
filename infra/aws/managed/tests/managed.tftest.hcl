mock_provider "aws" {
  mock_data "aws_caller_identity" {
    defaults = { account_id = "123456789012" }
  }
  mock_resource "aws_iam_role" {
    defaults = { arn = "arn:aws:iam::123456789012:role/firn-edges" }
  }
  mock_resource "aws_security_group" {
    defaults = { id = "sg-1" }
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
  region          = "eu-central-1"
  cleaner_package = "tests/cleaner.zip"
  nodes           = { vpc = "vpc-1", subnets = { eu-central-1a = "subnet-1" }, clients = ["10.0.0.0/8"], image = "ami-1", gib = 800 }
}

run "puts_out_what_the_program_takes" {
  command = apply
  assert {
    condition     = strcontains(join(" ", output.arguments), "--anchor-table dynamodb://firn-anchor?region=eu-central-1 --edge-role arn:aws:iam::123456789012:role/firn-edges --managed-bucket eu-central-1=firn-volumes-123456789012-eu-central-1 --sts-region eu-central-1 --cluster main --cluster-table dynamodb://firn-disks?region=eu-central-1")
    error_message = join(" ", output.arguments)
  }
  assert {
    condition     = !contains(output.arguments, "--pool-tenant")
    error_message = "Machines are started once there is a tenant for them."
  }
}

run "starts_machines_for_the_tenant_that_is_given" {
  command = apply
  variables {
    pool_tenant = "ten_00000000000000000000000000000001"
  }
  assert {
    condition     = contains(output.arguments, "--pool-tenant") && contains(output.arguments, "eu-central-1a=subnet-1")
    error_message = join(" ", output.arguments)
  }
}

run "refuses_a_region_that_is_none" {
  command = plan
  variables {
    region = "Frankfurt"
    name   = "F"
  }
  expect_failures = [var.region, var.name]
}
