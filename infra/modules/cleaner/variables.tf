variable "name" {
  description = "The name of the function, its role, queue, rule and alarms."
  type        = string
  default     = "firn-cleaner"
  validation {
    condition     = can(regex("^[A-Za-z0-9_-]{1,56}$", var.name))
    error_message = "A name has at most 56 letters, digits and _ - characters, since names with endings are made from it."
  }
}

variable "package" {
  description = "The path of the zip that scripts/package-lambda makes."
  type        = string
  validation {
    condition     = endswith(var.package, ".zip") && fileexists(var.package)
    error_message = "There is no such zip; make it with scripts/package-lambda FILE.zip."
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

variable "bucket" {
  description = "The bucket's name."
  type        = string
}

variable "prefix" {
  description = "What the names of all objects begin with; checked by the module location."
  type        = string
  default     = "firn"
}

variable "table" {
  description = "The table's name; with an anchor the cleaner has no rights to it."
  type        = string
}

variable "anchor" {
  description = "Instead of rights to the table: the anchor's function by its name, and its address for the volume, as the module anchor puts them out, and the one family that the volume belongs to (`firn-edge format` prints it)."
  type        = object({ function = string, address = string, family = string })
  default     = null
  validation {
    condition     = var.anchor == null || (can(regex("^lambda://[a-z0-9-]+/ten_[0-9a-f]{32}/vol_[0-9a-f]{32}[?]region=[a-z0-9-]+(&endpoint=http://[A-Za-z0-9.:-]+)?$", var.anchor.address)) && can(regex("^[A-Za-z0-9_-]{1,64}$", var.anchor.function)))
    error_message = "Give { function, address } of the module anchor; an address is lambda://ID/ten_…/vol_…?region=REGION."
  }
  validation {
    condition     = var.anchor == null || can(regex("^[0-9a-f]{32}$", var.anchor.family))
    error_message = "A family is 32 hexadecimal digits, as firn-edge format and firn-edge status print it."
  }
}

variable "of_service" {
  description = "Whether it cleans all managed volumes of a control plane: `table` is the control plane's table of roots then, and the bucket is that of managed volumes, whole."
  type        = bool
  default     = false
  validation {
    condition     = !var.of_service || var.anchor == null
    error_message = "A service's cleaner opens the table of roots; it asks no anchor."
  }
}

variable "region" {
  description = "The region of bucket and table, which is the provider's."
  type        = string
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

variable "schedule" {
  description = "How often it is called, as EventBridge writes it."
  type        = string
  default     = "rate(15 minutes)"
  validation {
    condition     = can(regex("^(rate|cron)\\(.+\\)$", var.schedule))
    error_message = "Write rate(15 minutes) or cron(…)."
  }
}

variable "run_seconds" {
  description = "What one run may take; the function gets 10 seconds more."
  type        = number
  default     = 50
  validation {
    condition     = var.run_seconds >= 1 && var.run_seconds <= 840 && floor(var.run_seconds) == var.run_seconds
    error_message = "Give whole seconds from 1 to 840."
  }
}

variable "memory_mib" {
  description = "Memory of the function; 256 is enough for the default batch and cache."
  type        = number
  default     = 256
  validation {
    condition     = var.memory_mib >= 128 && var.memory_mib <= 10240
    error_message = "Lambda gives 128 to 10240 MiB."
  }
}

variable "settings" {
  description = "Further settings of the cleaner, see docs/cleaner.md, as { FIRN_CLEANER_GRACE_SECONDS = \"7200\" }."
  type        = map(string)
  default     = {}
  validation {
    condition = alltrue([
      for name in keys(var.settings) : startswith(name, "FIRN_CLEANER_") && !contains(["FIRN_CLEANER_STORE", "FIRN_CLEANER_TABLE", "FIRN_CLEANER_ANCHOR", "FIRN_CLEANER_RUN_SECONDS"], name)
    ])
    error_message = "Settings begin with FIRN_CLEANER_; store, table, anchor and run time are variables of their own."
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
