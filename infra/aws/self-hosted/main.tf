# Firn in an account of your own: a bucket, a table, the cleaner, and an office or more. No service of anybody else is needed.

provider "aws" {
  region = var.region
}

data "aws_caller_identity" "this" {}

locals {
  # The same wherever it stands: account ids make bucket names unique.
  bucket = coalesce(var.bucket, "${var.name}-${data.aws_caller_identity.this.account_id}-${var.region}")
  # By their names, since the bucket and the anchor's function name who may do what before these are made.
  users        = { for office, edge in var.edges : office => "arn:aws:iam::${data.aws_caller_identity.this.account_id}:user/${var.name}-${office}" }
  cleaner_role = "arn:aws:iam::${data.aws_caller_identity.this.account_id}:role/${var.name}-cleaner"
  anchored     = var.anchor == null ? null : { function = module.anchor[0].function_name, address = module.anchor[0].addresses[var.anchor.volume] }
}

module "bucket" {
  source           = "../../modules/bucket"
  name             = local.bucket
  deleters         = [local.cleaner_role]
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

module "anchor" {
  source        = "../../modules/anchor"
  count         = var.anchor == null ? 0 : 1
  name          = "${var.name}-anchor"
  package       = var.anchor.package
  architecture  = var.cleaner_architecture
  table         = module.table.name
  region        = var.region
  alarm_actions = var.alarm_actions
  tags          = var.tags
  callers = concat(
    [for office in keys(var.edges) : { name = local.users[office], volume = var.anchor.volume, role = "edge" }],
    [{ name = local.cleaner_role, volume = var.anchor.volume, role = "cleaner" }],
  )
}

# A cleaner that asks an anchor cleans one family, which exists once the volume was formatted.
module "cleaner" {
  source        = "../../modules/cleaner"
  count         = var.anchor == null || try(var.anchor.family, null) != null ? 1 : 0
  anchor        = var.anchor == null ? null : merge(local.anchored, { family = var.anchor.family })
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
  anchor   = local.anchored
  second   = var.second
  region   = var.region
  tags     = var.tags
}

moved {
  from = module.cleaner
  to   = module.cleaner[0]
}

module "monitoring" {
  source           = "../../modules/monitoring"
  name             = var.name
  bucket           = local.bucket
  table            = module.table.name
  cleaner_function = "${var.name}-cleaner"
  region           = var.region
  alarm_actions    = var.alarm_actions
}
