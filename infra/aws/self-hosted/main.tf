# Firn in an account of your own: a bucket, a table, the cleaner, and an office or more. No service of anybody else is needed.

provider "aws" {
  region = var.region
}

data "aws_caller_identity" "this" {}

locals {
  # The same wherever it stands: account ids make bucket names unique.
  bucket = coalesce(var.bucket, "${var.name}-${data.aws_caller_identity.this.account_id}-${var.region}")
}

module "bucket" {
  source           = "../../modules/bucket"
  name             = local.bucket
  deleters         = [module.cleaner.role_arn]
  undo_days        = var.undo_days
  object_lock_days = var.object_lock_days
  destroy_data     = var.destroy_data
  tags             = var.tags
}

module "table" {
  source              = "../../modules/table"
  name                = var.name
  deletion_protection = !var.destroy_data
  tags                = var.tags
}

module "cleaner" {
  source        = "../../modules/cleaner"
  name          = "${var.name}-cleaner"
  package       = var.cleaner_package
  architecture  = var.cleaner_architecture
  bucket        = local.bucket
  prefix        = var.prefix
  table         = var.name
  region        = var.region
  schedule      = var.cleaner_schedule
  alarm_actions = var.alarm_actions
  tags          = var.tags
}

module "edge" {
  source   = "../../modules/edge"
  for_each = var.edges
  name     = "${var.name}-${each.key}"
  volume   = each.value.volume
  clients  = each.value.clients
  bucket   = local.bucket
  prefix   = var.prefix
  table    = module.table.name
  region   = var.region
  tags     = var.tags
}

module "monitoring" {
  source           = "../../modules/monitoring"
  name             = var.name
  bucket           = local.bucket
  table            = module.table.name
  cleaner_function = module.cleaner.function_name
  region           = var.region
  alarm_actions    = var.alarm_actions
}
