variable "name" {
  description = "What the names of tables and roles begin with."
  type        = string
  default     = "firn"
  validation {
    condition     = can(regex("^[A-Za-z0-9_-]{1,48}$", var.name))
    error_message = "A name has at most 48 letters, digits and _ - characters, since names with endings are made from it."
  }
}

variable "bucket" {
  description = "The bucket in which managed volumes lie."
  type        = string
}

variable "cluster" {
  description = "The cluster of disk nodes, as the module blockd-pool puts it out."
  type        = object({ name = string, table = string, node_role = string, security_group = string, image = string, subnets = list(string) })
}

variable "tenants_role" {
  description = "What tenants call the roles that they grant for buckets of their own."
  type        = string
  default     = "firn-storage"
  validation {
    condition     = can(regex("^[A-Za-z0-9+=,.@_-]{1,64}$", var.tenants_role))
    error_message = "A role's name has at most 64 letters, digits and + = , . @ _ - characters; a pattern would let the service assume others."
  }
}

variable "trusted_service" {
  description = "Where the program runs: ec2.amazonaws.com, or ecs-tasks.amazonaws.com."
  type        = string
  default     = "ec2.amazonaws.com"
  validation {
    condition     = contains(["ec2.amazonaws.com", "ecs-tasks.amazonaws.com"], var.trusted_service)
    error_message = "The role is for machines of EC2 or tasks of ECS."
  }
}

variable "spread_ledger" {
  description = "Whether the ledger spreads what all tenants share over shards: for some thousand offices and more, once every instance runs a release that can; there is no way back."
  type        = bool
  default     = false
}

variable "region" {
  description = "The region of all that, which is the provider's."
  type        = string
  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", var.region)) && !can(regex("^(cn|us-gov)-", var.region))
    error_message = "Write a region as eu-central-1; those of China and GovCloud have other ARNs, which firn's policies do not name."
  }
}

variable "deletion_protection" {
  description = "Whether AWS refuses to delete the tables. To destroy, set this to false, apply, and only then destroy."
  type        = bool
  default     = true
}

variable "point_in_time_recovery" {
  description = "Whether the tables can be restored to any second of the last 35 days. DynamoDB Local has none."
  type        = bool
  default     = true
}

variable "dynamodb_endpoint" {
  description = "The address of a DynamoDB emulator; empty for AWS."
  type        = string
  default     = ""
}

variable "tags" {
  description = "Tags of all that can have some."
  type        = map(string)
  default     = {}
}

