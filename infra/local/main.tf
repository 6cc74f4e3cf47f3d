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
}

module "bucket" {
  source       = "../modules/bucket"
  name         = local.bucket
  deleters     = [module.cleaner.role_arn]
  destroy_data = var.destroy_data
}

module "table" {
  source              = "../modules/table"
  name                = var.name
  deletion_protection = !var.destroy_data
  # DynamoDB Local has none.
  point_in_time_recovery = false
}

module "cleaner" {
  source            = "../modules/cleaner"
  name              = "${var.name}-cleaner"
  package           = var.cleaner_package
  architecture      = var.cleaner_architecture
  bucket            = local.bucket
  table             = var.name
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
  cleaner_function = module.cleaner.function_name
  region           = var.region
}
