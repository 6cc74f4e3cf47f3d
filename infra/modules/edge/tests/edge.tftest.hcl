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

run "asks_an_anchor_and_has_no_rights_to_the_table" {
  command = plan
  variables {
    anchor = { function = "firn-anchor", address = "lambda://abc123/ten_00000000000000000000000000000001/vol_00000000000000000000000000000002?region=eu-central-1" }
  }
  assert {
    condition     = strcontains(output.configuration, "\nanchor = \"lambda://abc123/ten_00000000000000000000000000000001/vol_00000000000000000000000000000002?region=eu-central-1\"\nstate_directory") && !strcontains(output.configuration, "table =")
    error_message = output.configuration
  }
  assert {
    condition     = !strcontains(aws_iam_user_policy.this.policy, "dynamodb") && strcontains(aws_iam_user_policy.anchor[0].policy, "arn:aws:lambda:eu-central-1:123456789012:function:firn-anchor\"")
    error_message = "It may ask the function, and nothing of the table."
  }
}

run "refuses_an_anchor_that_is_none" {
  command = plan
  variables {
    anchor = { function = "firn-anchor", address = "lambda://abc123/main\"\n" }
  }
  expect_failures = [var.anchor]
}

run "mirrors_into_a_second_store_that_it_may_read_and_add_to" {
  command = plan
  variables {
    second = { bucket = "sued", region = "eu-south-1" }
  }
  assert {
    condition     = strcontains(output.configuration, "\n[second]\nstore = \"s3://sued/firn?region=eu-south-1\"\n")
    error_message = output.configuration
  }
  assert {
    condition     = strcontains(aws_iam_user_policy.second[0].policy, "arn:aws:s3:::sued/firn/*") && !strcontains(aws_iam_user_policy.second[0].policy, "Delete") && !strcontains(aws_iam_user_policy.second[0].policy, "$")
    error_message = "It may read and add, and every placeholder is filled."
  }
}

run "refuses_a_second_store_that_is_none" {
  command = plan
  variables {
    second = { bucket = "sued\"\n", region = "south" }
  }
  expect_failures = [var.second]
}
