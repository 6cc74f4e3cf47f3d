mock_provider "aws" {
  override_data {
    target = data.aws_caller_identity.this
    values = { account_id = "123456789012" }
  }
}

variables {
  bucket  = "nord"
  table   = "firn"
  region  = "eu-central-1"
  clients = ["192.168.0.0/16", "10.1.0.0/16"]
}

run "puts_out_a_whole_configuration" {
  command = plan
  assert {
    condition     = strcontains(output.configuration, "store = \"s3://nord/firn?region=eu-central-1\"") && strcontains(output.configuration, "clients = [\"192.168.0.0/16\",\"10.1.0.0/16\"]")
    error_message = output.configuration
  }
  assert {
    condition     = !strcontains(aws_iam_user_policy.this.policy, "$")
    error_message = "Every placeholder is filled."
  }
}

run "refuses_what_would_break_out_of_the_configuration" {
  command = plan
  variables {
    name            = "a\"b"
    volume          = "main\"\n"
    state_directory = "var/lib"
    export          = "/x\"]"
    clients         = ["anybody"]
  }
  expect_failures = [var.name, var.volume, var.state_directory, var.export, var.clients]
}

run "refuses_an_edge_that_nobody_may_mount" {
  command = plan
  variables {
    clients = []
  }
  expect_failures = [var.clients]
}
