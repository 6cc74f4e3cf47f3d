variable "bucket" {
  description = "The bucket's name."
  type        = string
}

variable "prefix" {
  description = "What the names of all objects begin with, without a slash at its end."
  type        = string
  default     = "firn"
  validation {
    condition     = can(regex("^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$", var.prefix)) && !contains(split("/", var.prefix), "keyring")
    error_message = "A prefix has parts of letters, digits and . _ - characters with one slash between them, none of them `keyring`; other characters could widen a policy."
  }
}

variable "table" {
  description = "The table's name."
  type        = string
}

variable "region" {
  description = "The region of bucket and table."
  type        = string
  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", var.region)) && !can(regex("^(cn|us-gov)-", var.region))
    error_message = "Write a region as eu-central-1; those of China and GovCloud have other ARNs, which firn's policies do not name."
  }
}

variable "s3_endpoint" {
  description = "The address of an S3 emulator; empty for AWS."
  type        = string
  default     = ""
}

variable "dynamodb_endpoint" {
  description = "The address of a DynamoDB emulator; empty for AWS."
  type        = string
  default     = ""
}
