# A control plane in an account of yours: its tables and roles, the bucket of managed volumes with its cleaner, and the pool of disk nodes.
#
# The programs run from packages or images (docs/self-hosting.md, "A service of your own"); `arguments` is what firn-api takes there.

provider "aws" {
  region = var.region
}

data "aws_caller_identity" "this" {}

locals {
  # The same wherever it stands: account ids make bucket names unique.
  bucket  = coalesce(var.bucket, "${var.name}-volumes-${data.aws_caller_identity.this.account_id}-${var.region}")
  cleaner = "${var.name}-service-cleaner"
}

module "bucket" {
  source       = "../../modules/bucket"
  name         = local.bucket
  deleters     = ["arn:aws:iam::${data.aws_caller_identity.this.account_id}:role/${local.cleaner}"]
  undo_days    = var.undo_days
  destroy_data = var.destroy_data
  tags         = var.tags
}

module "pool" {
  source                 = "../../modules/blockd-pool"
  name                   = var.name
  region                 = var.region
  vpc                    = var.nodes.vpc
  subnets                = var.nodes.subnets
  clients                = var.nodes.clients
  image                  = var.nodes.image
  instance_type          = var.nodes.instance_type
  node_gib               = var.nodes.gib
  min_nodes              = var.nodes.min
  max_nodes              = var.nodes.max
  service_port           = var.nodes.service_port
  tenant                 = var.pool_tenant
  deletion_protection    = !var.destroy_data
  point_in_time_recovery = var.point_in_time_recovery
  dynamodb_endpoint      = var.dynamodb_endpoint
  tags                   = var.tags
}

module "api" {
  source                 = "../../modules/api"
  name                   = var.name
  region                 = var.region
  bucket                 = local.bucket
  spread_ledger          = var.spread_ledger
  cluster                = module.pool.cluster
  tenants_role           = var.tenants_role
  trusted_service        = var.trusted_service
  deletion_protection    = !var.destroy_data
  point_in_time_recovery = var.point_in_time_recovery
  dynamodb_endpoint      = var.dynamodb_endpoint
  tags                   = var.tags
}

module "cleaner" {
  source            = "../../modules/cleaner"
  name              = local.cleaner
  of_service        = true
  package           = var.cleaner_package
  architecture      = var.cleaner_architecture
  bucket            = local.bucket
  table             = module.api.anchor_table
  region            = var.region
  s3_endpoint       = var.s3_endpoint
  dynamodb_endpoint = var.dynamodb_endpoint
  schedule          = var.cleaner_schedule
  alarm_actions     = var.alarm_actions
  tags              = var.tags
}

module "monitoring" {
  source           = "../../modules/monitoring"
  for_each         = { control = module.api.control_table, anchor = module.api.anchor_table }
  name             = "${var.name}-${each.key}"
  bucket           = local.bucket
  table            = each.value
  cleaner_function = local.cleaner
  region           = var.region
  alarm_actions    = var.alarm_actions
}
