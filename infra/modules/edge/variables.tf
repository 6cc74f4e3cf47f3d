variable "name" {
  description = "The name of the edge and of its user."
  type        = string
  default     = "firn-edge"
  validation {
    condition     = can(regex("^[A-Za-z0-9_.-]{1,64}$", var.name))
    error_message = "A name has at most 64 letters, digits and _ . - characters."
  }
}

variable "volume" {
  description = "The volume's name within its family."
  type        = string
  default     = "main"
  validation {
    condition     = can(regex("^[A-Za-z0-9_.-]{1,64}$", var.volume))
    error_message = "A volume's name has at most 64 letters, digits and _ . - characters."
  }
}

variable "bucket" {
  description = "The bucket's name."
  type        = string
}

variable "prefix" {
  description = "What the names of all objects begin with; checked by the module location. Edges that must not see each other's objects have different ones."
  type        = string
  default     = "firn"
}

variable "table" {
  description = "The table's name; with an anchor the edge has no rights to it."
  type        = string
}

variable "second" {
  description = "A second store that mirrors the bucket (docs/audits.md): another bucket, better in another region or account, by its name and region. The edge may read it and add to it; what was deleted from the first stays there until `firn-cleaner mirror` takes it away."
  type        = object({ bucket = string, region = string, prefix = optional(string, "firn") })
  default     = null
  validation {
    condition     = var.second == null || (can(regex("^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$", var.second.bucket)) && can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", var.second.region)) && can(regex("^[A-Za-z0-9][A-Za-z0-9_./-]{0,199}$", var.second.prefix)))
    error_message = "Give { bucket, region } and a prefix of letters, digits and . _ - / characters."
  }
}

variable "anchor" {
  description = "Instead of rights to the table: the anchor's function by its name, and its address for the volume, as the module anchor puts them out."
  type        = object({ function = string, address = string })
  default     = null
  validation {
    condition     = var.anchor == null || (can(regex("^lambda://[a-z0-9-]+/ten_[0-9a-f]{32}/vol_[0-9a-f]{32}[?]region=[a-z0-9-]+(&endpoint=http://[A-Za-z0-9.:-]+)?$", var.anchor.address)) && can(regex("^[A-Za-z0-9_-]{1,64}$", var.anchor.function)))
    error_message = "Give { function, address } of the module anchor; an address is lambda://ID/ten_…/vol_…?region=REGION."
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

variable "state_directory" {
  description = "Where the edge keeps journal, cache and identity; on a disk of its own if you can."
  type        = string
  default     = "/var/lib/firn"
  validation {
    condition     = can(regex("^/[A-Za-z0-9._/-]+$", var.state_directory))
    error_message = "Give an absolute path of letters, digits and . _ - / characters."
  }
}

variable "export" {
  description = "What clients mount."
  type        = string
  default     = "/export"
  validation {
    condition     = can(regex("^/[A-Za-z0-9._/-]+$", var.export))
    error_message = "Give an absolute path of letters, digits and . _ - / characters."
  }
}

variable "clients" {
  description = "Networks whose machines may read and write."
  type        = list(string)
  validation {
    condition     = length(var.clients) > 0 && alltrue([for network in var.clients : can(cidrhost(network, 0))])
    error_message = "Name at least one network, as 192.168.0.0/16."
  }
}

variable "tags" {
  description = "Tags of the user."
  type        = map(string)
  default     = {}
}
