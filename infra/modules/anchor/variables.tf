variable "name" {
  description = "The name of the function, its role and its alarms."
  type        = string
  default     = "firn-anchor"
  validation {
    condition     = can(regex("^[A-Za-z0-9_-]{1,56}$", var.name))
    error_message = "A name has at most 56 letters, digits and _ - characters, since names with endings are made from it."
  }
}

variable "package" {
  description = "The path of the zip that `scripts/package-lambda --anchor` makes."
  type        = string
  validation {
    condition     = endswith(var.package, ".zip") && fileexists(var.package)
    error_message = "There is no such zip; make it with scripts/package-lambda --anchor FILE.zip."
  }
}

variable "architecture" {
  description = "The processor that the zip was made for: x86_64, or arm64 (cheaper by the millisecond)."
  type        = string
  default     = "x86_64"
  validation {
    condition     = contains(["x86_64", "arm64"], var.architecture)
    error_message = "Lambda runs x86_64 and arm64."
  }
}

variable "table" {
  description = "The name of the table of roots, in which nothing else should be."
  type        = string
}

variable "region" {
  description = "The region of function and table, which is the provider's."
  type        = string
  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", var.region)) && !can(regex("^(cn|us-gov)-", var.region))
    error_message = "Write a region as eu-central-1; those of China and GovCloud have other ARNs, which firn's policies do not name."
  }
}

variable "callers" {
  description = "Who reaches which volume: the ARN of a user or a role, `ten_…/vol_…` as you choose it once, and `edge`, `cleaner` or `observer`. Some 25 fit; a second function on the same table takes more."
  type        = list(object({ name = string, volume = string, role = string }))
  validation {
    condition     = length(var.callers) > 0 && alltrue([for caller in var.callers : can(regex("^arn:aws:iam::[0-9]{12}:(user|role)/[A-Za-z0-9+=,.@_/-]+$", caller.name))])
    error_message = "Name at least one caller, as arn:aws:iam::ACCOUNT:user/NAME or arn:aws:iam::ACCOUNT:role/NAME."
  }
  validation {
    condition     = alltrue([for caller in var.callers : can(regex("^ten_[0-9a-f]{32}/vol_[0-9a-f]{32}$", caller.volume)) && contains(["edge", "cleaner", "observer"], caller.role)])
    error_message = "A volume is ten_ and vol_ with 32 hexadecimal digits each and a slash between them; a role is edge, cleaner or observer."
  }
  validation {
    condition     = length(jsonencode(var.callers)) <= 3800
    error_message = "Lambda takes 4 KiB of settings: some 25 callers. Make a second function on the same table for the others."
  }
}

variable "endpoint" {
  description = "The address of a Lambda emulator, where callers find the function; empty for AWS."
  type        = string
  default     = ""
}

variable "dynamodb_endpoint" {
  description = "The address of a DynamoDB emulator; empty for AWS."
  type        = string
  default     = ""
}

variable "memory_mib" {
  description = "Memory of the function, with which its processor grows."
  type        = number
  default     = 256
  validation {
    condition     = var.memory_mib >= 128 && var.memory_mib <= 10240
    error_message = "Lambda gives 128 to 10240 MiB."
  }
}

variable "log_days" {
  description = "Days for which the function's log is kept."
  type        = number
  default     = 30
  validation {
    condition     = contains([1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1827, 3653], var.log_days)
    error_message = "CloudWatch keeps logs for 1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1827 or 3653 days."
  }
}

variable "alarm_actions" {
  description = "ARNs of what hears of alarms, such as a topic of SNS."
  type        = list(string)
  default     = []
}

variable "tags" {
  description = "Tags of all that can have some."
  type        = map(string)
  default     = {}
}
