mock_provider "aws" {
  override_data {
    target = data.aws_caller_identity.this
    values = { account_id = "123456789012" }
  }
  mock_resource "aws_security_group" {
    defaults = { id = "sg-1" }
  }
}

variables {
  region   = "eu-central-1"
  vpc      = "vpc-1"
  subnets  = { b = "subnet-2", a = "subnet-1" }
  clients  = ["10.0.0.0/8"]
  image    = "ami-1"
  node_gib = 2
}

run "without_a_tenant_disks_are_placed_and_no_machine_is_started" {
  command = apply
  assert {
    condition     = join(" ", output.arguments) == "--cluster main --cluster-table dynamodb://firn-disks?region=eu-central-1"
    error_message = join(" ", output.arguments)
  }
}

run "with_a_tenant_machines_are_started_in_each_domain" {
  command = apply
  variables {
    tenant = "ten_00000000000000000000000000000001"
  }
  assert {
    condition     = endswith(join(" ", output.arguments), "--pool-min 3 --pool-max 10 --pool-node-bytes 2147483648 --ec2-image ami-1 --ec2-type i4i.xlarge --ec2-profile firn-node --ec2-security-group sg-1 --ec2-region eu-central-1 --pool-domain a --ec2-subnet a=subnet-1 --pool-domain b --ec2-subnet b=subnet-2")
    error_message = join(" ", output.arguments)
  }
}

run "a_node_reaches_the_table_of_its_cluster_only" {
  command = plan
  assert {
    condition     = !strcontains(aws_iam_role_policy.node.policy, "$") && strcontains(aws_iam_role_policy.node.policy, "blockd/main/*")
    error_message = "Every placeholder is filled."
  }
}

run "refuses_what_would_widen_it" {
  command = plan
  variables {
    cluster   = "*"
    clients   = ["0.0.0.0/0"]
    subnets   = { a = "*" }
    tenant    = "all"
    image     = "*"
    min_nodes = 1
  }
  expect_failures = [var.cluster, var.clients, var.subnets, var.tenant, var.image, var.min_nodes]
}
