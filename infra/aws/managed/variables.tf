variable "name" {
  description = "What all names begin with."
  type        = string
  default     = "firn"
  validation {
    condition     = can(regex("^[a-z0-9-]{3,24}$", var.name))
    error_message = "The name has 3 to 24 lower-case letters, digits and hyphens, since bucket names are made from it."
  }
}

variable "region" {
  description = "The AWS region; the nearest to the offices."
  type        = string
  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", var.region))
    error_message = "Write a region as eu-central-1."
  }
}

variable "bucket" {
  description = "The name of the bucket of managed volumes; without it, one is made of name, account and region."
  type        = string
  default     = null
}

variable "nodes" {
  description = "The pool of disk nodes: its network and a subnet for each failure domain, the networks of machines that attach disks, the machines' image (with firn-blockd and ca-certificates) and type, the GiB of its disk that each uses, how many there may be, and the port of the control plane."
  type = object({
    vpc           = string, subnets = map(string), clients = list(string), image = string, gib = number
    instance_type = optional(string, "i4i.xlarge"), min = optional(number, 3), max = optional(number, 10), service_port = optional(number, 443)
  })
}

variable "pool_tenant" {
  description = "The tenant in whose name the pool's nodes are, once you have signed it up; before, no machine is started."
  type        = string
  default     = null
}

variable "tenants_role" {
  description = "What tenants call the roles that they grant for buckets of their own."
  type        = string
  default     = "firn-storage"
}

variable "spread_ledger" {
  description = "Whether the ledger spreads what all tenants share over shards: for some thousand offices and more, once every instance runs a release that can; there is no way back."
  type        = bool
  default     = false
}

variable "trusted_service" {
  description = "Where firn-api runs: ec2.amazonaws.com, or ecs-tasks.amazonaws.com."
  type        = string
  default     = "ec2.amazonaws.com"
}

variable "cleaner_package" {
  description = "The path of the zip that scripts/package-lambda makes."
  type        = string
}

variable "cleaner_architecture" {
  description = "The processor that the zip was made for: x86_64 or arm64."
  type        = string
  default     = "x86_64"
}

variable "cleaner_schedule" {
  description = "How often the cleaner is called, as EventBridge writes it."
  type        = string
  default     = "rate(15 minutes)"
}

variable "undo_days" {
  description = "Days for which deleted objects can be brought back."
  type        = number
  default     = 30
}

variable "destroy_data" {
  description = "Whether `terraform destroy` may delete the data: the bucket with all versions, and the tables. Set it, apply, and only then destroy."
  type        = bool
  default     = false
}

variable "point_in_time_recovery" {
  description = "Whether the tables can be restored to any second of the last 35 days. DynamoDB Local has none."
  type        = bool
  default     = true
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

variable "alarm_actions" {
  description = "ARNs of what hears of alarms, such as a topic of SNS with your address."
  type        = list(string)
  default     = []
}

variable "tags" {
  description = "Tags of all that can have some."
  type        = map(string)
  default     = {}
}
