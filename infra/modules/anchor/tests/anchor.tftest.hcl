mock_provider "aws" {
  override_data {
    target = data.aws_caller_identity.this
    values = { account_id = "123456789012" }
  }
  mock_resource "aws_iam_role" {
    defaults = { arn = "arn:aws:iam::123456789012:role/firn-anchor" }
  }
  mock_resource "aws_lambda_function_url" {
    defaults = { url_id = "abc123" }
  }
}

variables {
  package = "tests/anchor.zip"
  table   = "roots"
  region  = "eu-central-1"
  callers = [
    { name = "arn:aws:iam::123456789012:user/firn-berlin", volume = "ten_00000000000000000000000000000001/vol_00000000000000000000000000000002", role = "edge" },
    { name = "arn:aws:iam::123456789012:role/firn-cleaner", volume = "ten_00000000000000000000000000000001/vol_00000000000000000000000000000002", role = "cleaner" },
  ]
}

run "puts_out_the_line_that_an_edge_takes" {
  command = apply
  assert {
    condition     = output.addresses == { "ten_00000000000000000000000000000001/vol_00000000000000000000000000000002" = "lambda://abc123/ten_00000000000000000000000000000001/vol_00000000000000000000000000000002?region=eu-central-1" }
    error_message = jsonencode(output.addresses)
  }
}

run "lets_in_only_whom_aws_checked_and_who_was_granted_something" {
  command = plan
  assert {
    condition     = aws_lambda_function_url.this.authorization_type == "AWS_IAM"
    error_message = "A URL that asks for no signature lets nobody in, since nobody is named then; it costs money all the same."
  }
  assert {
    condition = aws_lambda_function.this.environment[0].variables == tomap({
      FIRN_ANCHOR_GRANTS = jsonencode(var.callers)
      FIRN_ANCHOR_TABLE  = "dynamodb://roots?region=eu-central-1"
    })
    error_message = "These are its settings."
  }
}

run "attaches_the_policy_that_the_product_ships" {
  command = plan
  assert {
    condition     = !strcontains(aws_iam_role_policy.this.policy, "$") && strcontains(aws_iam_role_policy.this.policy, "arn:aws:dynamodb:eu-central-1:123456789012:table/roots\"")
    error_message = "Every placeholder is filled."
  }
}

run "refuses_callers_that_are_none" {
  command = plan
  variables {
    callers = [{ name = "arn:aws:iam::123456789012:root", volume = "ten_00000000000000000000000000000001/vol_00000000000000000000000000000002", role = "edge" }]
  }
  expect_failures = [var.callers]
}

run "refuses_volumes_and_roles_that_are_none" {
  command = plan
  variables {
    callers = [{ name = "arn:aws:iam::123456789012:user/firn-berlin", volume = "main", role = "owner" }]
  }
  expect_failures = [var.callers]
}

run "refuses_an_anchor_that_nobody_may_ask" {
  command = plan
  variables {
    callers = []
  }
  expect_failures = [var.callers]
}

run "refuses_more_callers_than_lambda_takes_settings" {
  command = plan
  variables {
    callers = [for number in ["01", "02", "03", "04", "05", "06", "07", "08", "09", "10", "11", "12", "13", "14", "15", "16", "17", "18", "19", "20", "21", "22", "23", "24", "25", "26"] : { name = "arn:aws:iam::123456789012:user/firn-${number}", volume = "ten_00000000000000000000000000000001/vol_00000000000000000000000000000002", role = "edge" }]
  }
  expect_failures = [var.callers]
}

run "refuses_what_lambda_does_not_know" {
  command = plan
  variables {
    architecture = "riscv"
    memory_mib   = 64
    log_days     = 31
    name         = "the anchor"
    region       = "Frankfurt"
  }
  expect_failures = [var.architecture, var.memory_mib, var.log_days, var.name, var.region]
}
