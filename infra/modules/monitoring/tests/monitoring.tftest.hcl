mock_provider "aws" {}

variables {
  bucket           = "nord"
  table            = "firn"
  cleaner_function = "firn-cleaner"
  region           = "eu-central-1"
}

run "shows_every_part" {
  command = plan
  assert {
    condition     = length(jsondecode(aws_cloudwatch_dashboard.this.dashboard_body).widgets) == 6
    error_message = "One graph for each."
  }
  assert {
    condition = alltrue([
      for service in ["AWS/DynamoDB", "AWS/Lambda", "AWS/SQS", "AWS/S3"] : strcontains(aws_cloudwatch_dashboard.this.dashboard_body, service)
    ])
    error_message = "A service is missing."
  }
}

run "refuses_names_that_no_dashboard_has" {
  command = plan
  variables {
    name = "firn of nord"
  }
  expect_failures = [var.name]
}
