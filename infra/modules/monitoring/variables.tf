variable "name" {
  description = "The dashboard's name, and what the alarms' names begin with."
  type        = string
  default     = "firn"
  validation {
    condition     = can(regex("^[A-Za-z0-9_-]{1,200}$", var.name))
    error_message = "A name has letters, digits and _ - characters."
  }
}

variable "bucket" {
  description = "The bucket's name."
  type        = string
}

variable "table" {
  description = "The table's name."
  type        = string
}

variable "cleaner_function" {
  description = "The name of the cleaner's function, after which its queues are named."
  type        = string
}

variable "region" {
  description = "The region of all that."
  type        = string
}

variable "alarm_actions" {
  description = "ARNs of what hears of alarms, such as a topic of SNS."
  type        = list(string)
  default     = []
}
