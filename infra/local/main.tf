# The same modules as aws/self-hosted, against LocalStack and DynamoDB Local on this machine. Nothing here costs money or leaves it.
#
# tests/terraform/run applies, uses, changes and destroys it.

provider "aws" {
  region                      = var.region
  access_key                  = "firntest"
  secret_key                  = "firntest"
  s3_use_path_style           = true
  skip_credentials_validation = true
  skip_metadata_api_check     = true
  skip_region_validation      = true

  endpoints {
    cloudwatch       = var.endpoint
    cloudwatchevents = var.endpoint
    cloudwatchlogs   = var.endpoint
    dynamodb         = var.dynamodb_endpoint
    iam              = var.endpoint
    lambda           = var.endpoint
    s3               = var.endpoint
    sqs              = var.endpoint
    sts              = var.endpoint
  }
}

locals {
  bucket = "${var.name}-bucket"
  table  = coalesce(var.table, var.name)
  # By their names, since the bucket and the anchor's function name who may do what before these are made.
  user         = "arn:aws:iam::${data.aws_caller_identity.this.account_id}:user/${var.name}-edge"
  cleaner_role = "arn:aws:iam::${data.aws_caller_identity.this.account_id}:role/${var.name}-cleaner"
  anchored     = var.anchor == null ? null : { function = module.anchor[0].function_name, address = module.anchor[0].addresses[var.anchor.volume] }
}

data "aws_caller_identity" "this" {}

module "bucket" {
  source       = "../modules/bucket"
  name         = local.bucket
  deleters     = [local.cleaner_role]
  destroy_data = var.destroy_data
}

module "table" {
  source              = "../modules/table"
  name                = local.table
  deletion_protection = !var.destroy_data
  # DynamoDB Local has none.
  point_in_time_recovery = false
}

module "anchor" {
  source            = "../modules/anchor"
  count             = var.anchor == null ? 0 : 1
  name              = "${var.name}-anchor"
  package           = var.anchor.package
  architecture      = var.cleaner_architecture
  table             = module.table.name
  region            = var.region
  endpoint          = var.endpoint
  dynamodb_endpoint = var.dynamodb_endpoint
  callers = [
    { name = local.user, volume = var.anchor.volume, role = "edge" },
    { name = local.cleaner_role, volume = var.anchor.volume, role = "cleaner" },
  ]
}

# A cleaner that asks an anchor cleans one family, which exists once the volume was formatted.
module "cleaner" {
  source            = "../modules/cleaner"
  count             = var.anchor == null || try(var.anchor.family, null) != null ? 1 : 0
  anchor            = var.anchor == null ? null : merge(local.anchored, { family = var.anchor.family })
  name              = "${var.name}-cleaner"
  package           = var.cleaner_package
  architecture      = var.cleaner_architecture
  bucket            = local.bucket
  table             = local.table
  region            = var.region
  s3_endpoint       = var.endpoint
  dynamodb_endpoint = var.dynamodb_endpoint
  settings          = var.cleaner_settings
}

module "edge" {
  source            = "../modules/edge"
  name              = "${var.name}-edge"
  bucket            = local.bucket
  table             = module.table.name
  anchor            = local.anchored
  region            = var.region
  s3_endpoint       = var.endpoint
  dynamodb_endpoint = var.dynamodb_endpoint
  state_directory   = var.state_directory
  clients           = var.clients
}

module "monitoring" {
  source           = "../modules/monitoring"
  name             = var.name
  bucket           = local.bucket
  table            = module.table.name
  cleaner_function = "${var.name}-cleaner"
  region           = var.region
}
