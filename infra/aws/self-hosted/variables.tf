variable "name" {
  description = "The table's name, and what all other names begin with."
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
  description = "The bucket's name; without it, one is made of name, account and region."
  type        = string
  default     = null
}

variable "prefix" {
  description = "What the names of all objects begin with."
  type        = string
  default     = "firn"
}

variable "edges" {
  description = "The offices: for each its volume and the networks whose machines may mount."
  type        = map(object({ volume = optional(string, "main"), clients = list(string) }))
  validation {
    condition     = length(var.edges) > 0
    error_message = "Name at least one office, as { berlin = { clients = [\"192.168.0.0/16\"] } }."
  }
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

variable "anchor" {
  description = "The anchor as a function (docs/anchor.md), so that no edge has rights to the table: `package` is the zip of `scripts/package-lambda --anchor`, `volume` is ten_… and vol_… with 32 hexadecimal digits each, chosen once, `family` what `firn-edge format` prints: the cleaner is made when it is given. Decide before the first `format`: roots are not moved."
  type        = object({ package = string, volume = string, family = optional(string) })
  default     = null
}

variable "second" {
  description = "A second store for all offices (docs/audits.md): a bucket that is there already, better in another region or account, by its name and region. The module bucket makes one; the cleaner's role among its `deleters` lets `firn-cleaner mirror` tidy up."
  type        = object({ bucket = string, region = string, prefix = optional(string, "firn") })
  default     = null
}

variable "undo_days" {
  description = "Days for which deleted objects can be brought back."
  type        = number
  default     = 30
}

variable "object_lock_days" {
  description = "Days for which nobody can delete what was written; 0 for none. Only when the bucket is made."
  type        = number
  default     = 0
}

variable "destroy_data" {
  description = "Whether `terraform destroy` may delete the data: the bucket with all versions, and the table. Set it, apply, and only then destroy."
  type        = bool
  default     = false
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
