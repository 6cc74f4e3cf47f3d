mock_provider "aws" {}

run "has_the_keys_that_firn_expects_and_is_protected" {
  command = plan
  variables {
    name = "firn"
  }
  assert {
    condition     = aws_dynamodb_table.this.hash_key == "partition" && aws_dynamodb_table.this.range_key == "sort"
    error_message = "firn refuses a table with other keys."
  }
  assert {
    condition     = aws_dynamodb_table.this.deletion_protection_enabled && aws_dynamodb_table.this.point_in_time_recovery[0].enabled
    error_message = "Roots are protected unless somebody says otherwise."
  }
  assert {
    condition     = aws_dynamodb_table.this.billing_mode == "PAY_PER_REQUEST"
    error_message = "An idle volume costs nothing."
  }
}

run "refuses_names_that_no_table_has" {
  command = plan
  variables {
    name = "a b"
  }
  expect_failures = [var.name]
}
