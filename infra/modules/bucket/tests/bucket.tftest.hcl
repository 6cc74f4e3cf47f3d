mock_provider "aws" {}

variables {
  name     = "nord-firn-data"
  deleters = ["arn:aws:iam::123456789012:role/firn-cleaner"]
}

run "keeps_what_it_has_unless_told" {
  command = plan
  assert {
    condition     = !aws_s3_bucket.this.force_destroy && length(aws_s3_bucket_object_lock_configuration.this) == 0
    error_message = "Data are destroyed only by whoever says so."
  }
  assert {
    condition     = alltrue([for statement in jsondecode(aws_s3_bucket_policy.this.policy).Statement : statement.Effect == "Deny"])
    error_message = "The bucket's policy allows nothing to anybody."
  }
  assert {
    condition     = jsondecode(aws_s3_bucket_policy.this.policy).Statement[1].Condition.ArnNotLike["aws:PrincipalArn"][0] == var.deleters[0]
    error_message = "Only the deleters delete."
  }
}

run "refuses_names_that_no_bucket_has" {
  command = plan
  variables {
    name = "Nord.Data"
  }
  expect_failures = [var.name]
}

run "refuses_to_be_a_bucket_that_nobody_cleans" {
  command = plan
  variables {
    deleters = []
  }
  expect_failures = [var.deleters]
}

run "refuses_everybody_as_deleters" {
  command = plan
  variables {
    deleters = ["*"]
  }
  expect_failures = [var.deleters]
}

run "refuses_days_that_are_none" {
  command = plan
  variables {
    undo_days        = 0
    object_lock_days = -1
  }
  expect_failures = [var.undo_days, var.object_lock_days]
}
