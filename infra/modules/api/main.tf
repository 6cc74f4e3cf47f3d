# What the control plane needs in AWS: its tables, its role, and the role of the sessions that it gives edges.
#
# The program runs where its operator lets programs run, from its package or its image (decision 0173); this puts out the arguments that it
# takes there. The master secret is in no state file: `firn-api new-secret` makes it on the machine.

data "aws_caller_identity" "this" {}

locals {
  product  = "${path.module}/../../../services/api/iam"
  role     = "${var.name}-api"
  edges    = "${var.name}-edges"
  endpoint = var.dynamodb_endpoint == "" ? "" : "&endpoint=${var.dynamodb_endpoint}"
}

module "control_table" {
  source                 = "../table"
  name                   = "${var.name}-control"
  deletion_protection    = var.deletion_protection
  point_in_time_recovery = var.point_in_time_recovery
  tags                   = var.tags
}

module "anchor_table" {
  source                 = "../table"
  name                   = "${var.name}-anchor"
  deletion_protection    = var.deletion_protection
  point_in_time_recovery = var.point_in_time_recovery
  tags                   = var.tags
}

resource "aws_iam_role" "this" {
  name               = local.role
  assume_role_policy = templatefile("${local.product}/trust.json", { TRUSTED_SERVICE = var.trusted_service })
  tags               = var.tags
}

resource "aws_iam_role_policy" "this" {
  name = "api"
  role = aws_iam_role.this.name
  policy = templatefile("${local.product}/policy.json", {
    ACCOUNT        = data.aws_caller_identity.this.account_id
    ANCHOR_TABLE   = module.anchor_table.name
    CLUSTER        = var.cluster.name
    CLUSTER_TABLE  = var.cluster.table
    CONTROL_TABLE  = module.control_table.name
    EDGES_ROLE     = local.edges
    IMAGE          = var.cluster.image
    NODE_ROLE      = var.cluster.node_role
    REGION         = var.region
    SECURITY_GROUP = var.cluster.security_group
    SUBNETS        = jsonencode([for subnet in var.cluster.subnets : "arn:aws:ec2:${var.region}:${data.aws_caller_identity.this.account_id}:subnet/${subnet}"])
    TENANTS_ROLE   = var.tenants_role
  })
}

# Of the machine, where the program runs on one of EC2.
resource "aws_iam_instance_profile" "this" {
  count = var.trusted_service == "ec2.amazonaws.com" ? 1 : 0
  name  = local.role
  role  = aws_iam_role.this.name
}

# What edges' sessions are sessions of, each narrowed to one volume.
resource "aws_iam_role" "edges" {
  name = local.edges
  assume_role_policy = templatefile("${local.product}/edges-trust.json", {
    ACCOUNT  = data.aws_caller_identity.this.account_id
    API_ROLE = aws_iam_role.this.name
  })
  tags = var.tags
}

resource "aws_iam_role_policy" "edges" {
  name   = "edges"
  role   = aws_iam_role.edges.name
  policy = templatefile("${local.product}/edges-role.json", { BUCKET = var.bucket })
}
