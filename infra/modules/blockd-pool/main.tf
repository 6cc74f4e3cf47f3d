# What the pool of disk nodes needs in AWS: the cluster's table, the nodes' role, and the group in which they find each other.
#
# The machines themselves are started and ended by firn-api, which gives each its secret for an hour, where a disk does not fit, evenly over the
# subnets (decision 0173): this puts out the arguments that make it do so, and what its policy names.

data "aws_caller_identity" "this" {}

locals {
  product = "${path.module}/../../../dataplane-blockd/firn-blockd/iam"
  role    = "${var.name}-node"
  domains = sort(keys(var.subnets))
  url     = "dynamodb://${module.table.name}?region=${var.region}${var.dynamodb_endpoint == "" ? "" : "&endpoint=${var.dynamodb_endpoint}"}"
}

module "table" {
  source                 = "../table"
  name                   = "${var.name}-disks"
  deletion_protection    = var.deletion_protection
  point_in_time_recovery = var.point_in_time_recovery
  tags                   = var.tags
}

resource "aws_iam_role" "node" {
  name               = local.role
  assume_role_policy = file("${local.product}/node-trust.json")
  tags               = var.tags
}

resource "aws_iam_role_policy" "node" {
  name = "node"
  role = aws_iam_role.node.name
  policy = templatefile("${local.product}/node.json", {
    ACCOUNT       = data.aws_caller_identity.this.account_id
    CLUSTER       = var.cluster
    CLUSTER_TABLE = module.table.name
    REGION        = var.region
  })
}

resource "aws_iam_instance_profile" "node" {
  name = local.role
  role = aws_iam_role.node.name
}

resource "aws_security_group" "node" {
  #checkov:skip=CKV2_AWS_5:firn-api gives it to the machines that it starts.
  name        = local.role
  description = "Disk nodes of Firn and what attaches disks"
  vpc_id      = var.vpc
  tags        = var.tags

  ingress {
    description = "Nodes, which copy from each other"
    protocol    = "tcp"
    from_port   = 7300
    to_port     = 7300
    self        = true
  }

  ingress {
    description = "Machines that attach disks, and the control plane"
    protocol    = "tcp"
    from_port   = 7300
    to_port     = 7300
    cidr_blocks = var.clients
  }

  egress {
    description = "Nodes, which copy from each other"
    protocol    = "tcp"
    from_port   = 7300
    to_port     = 7300
    self        = true
  }

  egress {
    description = "The control plane, and the table of the cluster"
    protocol    = "tcp"
    from_port   = var.service_port
    to_port     = var.service_port
    cidr_blocks = ["0.0.0.0/0"]
  }

  dynamic "egress" {
    for_each = var.service_port == 443 ? [] : [443]
    content {
      description = "The table of the cluster"
      protocol    = "tcp"
      from_port   = egress.value
      to_port     = egress.value
      cidr_blocks = ["0.0.0.0/0"]
    }
  }
}
