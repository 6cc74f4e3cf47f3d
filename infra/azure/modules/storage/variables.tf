variable "name" {
  description = "The storage account's name, unique in all of Azure."
  type        = string
  validation {
    condition     = can(regex("^[a-z0-9]{3,24}$", var.name))
    error_message = "A storage account's name has 3 to 24 lower-case letters and digits."
  }
}

variable "resource_group" {
  description = "The resource group."
  type        = string
}

variable "location" {
  description = "The region, such as westeurope; the nearest to the offices."
  type        = string
}

variable "container" {
  description = "The container of the objects."
  type        = string
  default     = "firn"
  validation {
    condition     = can(regex("^[a-z0-9](-?[a-z0-9]){2,62}$", var.container))
    error_message = "A container's name has 3 to 63 lower-case letters, digits and single hyphens."
  }
}

variable "table" {
  description = "The table of roots."
  type        = string
  default     = "firnroots"
  validation {
    condition     = can(regex("^[A-Za-z][A-Za-z0-9]{2,62}$", var.table))
    error_message = "A table's name is a letter, then 2 to 62 letters and digits."
  }
}

variable "replication" {
  description = "How the account is replicated: ZRS over the region's zones, LRS within one. Copies in another region (GRS, GZRS) follow later than they are acknowledged, roots and objects each for itself: after a failover firn may have to recover a volume."
  type        = string
  default     = "ZRS"
  validation {
    condition     = contains(["LRS", "ZRS", "GRS", "GZRS"], var.replication)
    error_message = "The replication is LRS, ZRS, GRS or GZRS."
  }
}

variable "undo_days" {
  description = "For how many days deleted and overwritten objects can be brought back."
  type        = number
  default     = 14
  validation {
    condition     = var.undo_days >= 1 && var.undo_days <= 365
    error_message = "The days are 1 to 365."
  }
}

variable "shared_keys" {
  description = "Whether the account's keys and signatures open it beside identities: for offices that have none."
  type        = bool
  default     = false
}

variable "destroy_data" {
  description = "Whether the account may be destroyed. Apply with true first, then destroy."
  type        = bool
  default     = false
}

variable "tags" {
  description = "Tags of the account."
  type        = map(string)
  default     = {}
}
