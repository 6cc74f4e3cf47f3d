mock_provider "aws" {
  override_data {
    target = data.aws_caller_identity.this
    values = { account_id = "123456789012" }
  }
  mock_resource "aws_iam_role" {
    defaults = { arn = "arn:aws:iam::123456789012:role/firn-edges" }
  }
}

variables {
  bucket  = "nord"
  region  = "eu-central-1"
  cluster = { name = "main", table = "firn-disks", node_role = "firn-node", security_group = "sg-1", image = "ami-1", subnets = ["subnet-1", "subnet-2"] }
}

run "puts_out_the_arguments_that_the_program_takes" {
  command = apply
  assert {
    condition     = join(" ", output.arguments) == "--table dynamodb://firn-control?region=eu-central-1 --anchor-table dynamodb://firn-anchor?region=eu-central-1 --edge-role arn:aws:iam::123456789012:role/firn-edges --managed-bucket eu-central-1=nord --sts-region eu-central-1"
    error_message = join(" ", output.arguments)
  }
}

run "spreads_the_ledger_if_that_is_said" {
  command = apply
  variables {
    spread_ledger = true
  }
  assert {
    condition     = endswith(join(" ", output.arguments), " --spread-ledger")
    error_message = join(" ", output.arguments)
  }
}

run "attaches_the_policies_that_the_product_ships" {
  command = plan
  assert {
    condition     = !strcontains(aws_iam_role_policy.this.policy, "$") && strcontains(aws_iam_role_policy.this.policy, "[\"arn:aws:ec2:eu-central-1:123456789012:subnet/subnet-1\",\"arn:aws:ec2:eu-central-1:123456789012:subnet/subnet-2\"]")
    error_message = "Every placeholder is filled, and every subnet is named."
  }
  assert {
    condition     = jsondecode(aws_iam_role.this.assume_role_policy).Statement[0].Principal.Service == "ec2.amazonaws.com" && length(aws_iam_instance_profile.this) == 1
    error_message = "It is a machine's role."
  }
}

run "is_a_task_of_ecs_if_that_is_said" {
  command = plan
  variables {
    trusted_service = "ecs-tasks.amazonaws.com"
  }
  assert {
    condition     = jsondecode(aws_iam_role.this.assume_role_policy).Statement[0].Principal.Service == "ecs-tasks.amazonaws.com" && length(aws_iam_instance_profile.this) == 0
    error_message = "It is a task's role."
  }
}

run "refuses_what_would_widen_it" {
  command = plan
  variables {
    tenants_role    = "*"
    trusted_service = "lambda.amazonaws.com"
    name            = "a b"
    region          = "Frankfurt"
  }
  expect_failures = [var.tenants_role, var.trusted_service, var.name, var.region]
}
