# An edge in an office: a user of its own with the policy that the product ships, and its configuration.
#
# The access key is made outside of Terraform (`aws iam create-access-key --user-name NAME`), so that its secret is in no state file.

data "aws_caller_identity" "this" {}

module "location" {
  source            = "../location"
  bucket            = var.bucket
  prefix            = var.prefix
  table             = var.table
  region            = var.region
  s3_endpoint       = var.s3_endpoint
  dynamodb_endpoint = var.dynamodb_endpoint
}

resource "aws_iam_user" "this" {
  name = var.name
  tags = var.tags
}

resource "aws_iam_user_policy" "this" {
  name = "edge"
  user = aws_iam_user.this.name
  policy = templatefile("${path.module}/../../../edge-proxy/${var.anchor == null ? "iam-policy" : "iam-policy-anchored"}.json", {
    ACCOUNT = data.aws_caller_identity.this.account_id
    BUCKET  = var.bucket
    PREFIX  = module.location.prefix
    REGION  = module.location.region
    TABLE   = var.table
  })
}

resource "aws_iam_user_policy" "second" {
  count = var.second == null ? 0 : 1
  name  = "second"
  user  = aws_iam_user.this.name
  policy = templatefile("${path.module}/../../../edge-proxy/iam-policy-second.json", {
    SECOND_BUCKET = var.second.bucket
    SECOND_PREFIX = var.second.prefix
  })
}

# Instead of rights to the table, the right to ask the anchor's function.
resource "aws_iam_user_policy" "anchor" {
  count = var.anchor == null ? 0 : 1
  name  = "anchor"
  user  = aws_iam_user.this.name
  policy = templatefile("${path.module}/../../../services/anchor-lambda/iam-caller.json", {
    ACCOUNT  = data.aws_caller_identity.this.account_id
    FUNCTION = var.anchor.function
    REGION   = module.location.region
  })
}
