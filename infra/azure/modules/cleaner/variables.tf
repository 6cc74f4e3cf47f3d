variable "name" {
  description = "The function app's name, unique in all of Azure."
  type        = string
  validation {
    condition     = can(regex("^[A-Za-z0-9][A-Za-z0-9-]{0,58}[A-Za-z0-9]$", var.name))
    error_message = "A function app's name has 2 to 60 letters, digits and hyphens."
  }
}

variable "own_account" {
  description = "The name of the function app's own storage account, unique in all of Azure."
  type        = string
  validation {
    condition     = can(regex("^[a-z0-9]{3,24}$", var.own_account))
    error_message = "A storage account's name has 3 to 24 lower-case letters and digits."
  }
}

variable "resource_group" {
  description = "The resource group."
  type        = string
}

variable "location" {
  description = "The region of container and table."
  type        = string
}

variable "package" {
  description = "The path of a zip of services/cleaner-functions/app with the program firn-cleaner-functions in it."
  type        = string
}

variable "store" {
  description = "The container's address, as edges have it."
  type        = string
}

variable "anchor" {
  description = "The table's address, as edges have it."
  type        = string
}

variable "settings" {
  description = "Further settings of the cleaner (docs/cleaner.md), such as FIRN_CLEANER_FAMILIES."
  type        = map(string)
  default     = {}
}

variable "publishes_from_outside" {
  description = "Whether the app's own endpoints can be reached from outside of Azure, as publishing by zip wants it."
  type        = bool
  default     = true
}

variable "tags" {
  description = "Tags of all that is made."
  type        = map(string)
  default     = {}
}
