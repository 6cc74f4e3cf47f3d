variable "subscription" {
  description = "The id of the subscription."
  type        = string
}

variable "name" {
  description = "The resource group that is made, and what alarms are named after."
  type        = string
  default     = "firn"
}

variable "location" {
  description = "The region, such as westeurope; the nearest to the offices."
  type        = string
}

variable "account" {
  description = "The storage account of objects and roots, unique in all of Azure; other names are made from it."
  type        = string
  validation {
    condition     = can(regex("^[a-z0-9]{3,24}$", var.account))
    error_message = "A storage account's name has 3 to 24 lower-case letters and digits."
  }
}

variable "cleaner_account" {
  description = "The function app's own storage account; by default the other's name with cleaner behind it."
  type        = string
  default     = null
}

variable "cleaner_package" {
  description = "The path of the cleaner's zip."
  type        = string
}

variable "cleaner_settings" {
  description = "Further settings of the cleaner (docs/cleaner.md)."
  type        = map(string)
  default     = {}
}

variable "edges" {
  description = "The identities of the offices' edges: the object id of an application's service principal or of a machine's managed identity, by the office's name."
  type        = map(string)
  default     = {}
}

variable "replication" {
  description = "How the account is replicated: ZRS or LRS; see the module."
  type        = string
  default     = "ZRS"
}

variable "undo_days" {
  description = "For how many days deleted and overwritten objects can be brought back."
  type        = number
  default     = 14
}

variable "shared_keys" {
  description = "Whether the account's keys and signatures open it beside identities."
  type        = bool
  default     = false
}

variable "action_groups" {
  description = "Ids of the action groups that alarms tell."
  type        = list(string)
  default     = []
}

variable "destroy_data" {
  description = "Whether container and table may be destroyed. Apply with true first, then destroy."
  type        = bool
  default     = false
}

variable "tags" {
  description = "Tags of all that is made."
  type        = map(string)
  default     = {}
}
