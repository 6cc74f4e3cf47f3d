variable "name" {
  description = "What the alarms' names begin with."
  type        = string
}

variable "resource_group" {
  description = "The resource group."
  type        = string
}

variable "account_id" {
  description = "The id of the storage account with container and table."
  type        = string
}

variable "cleaner_id" {
  description = "The id of the cleaner's function app."
  type        = string
}

variable "action_groups" {
  description = "Ids of the action groups that are told."
  type        = list(string)
  default     = []
}

variable "tags" {
  description = "Tags of the alarms."
  type        = map(string)
  default     = {}
}
