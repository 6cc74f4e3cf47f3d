variable "name" {
  description = "The table's name, unique in its region and account."
  type        = string
  validation {
    condition     = can(regex("^[A-Za-z0-9_.-]{3,255}$", var.name))
    error_message = "A table's name has 3 to 255 letters, digits and _ . - characters."
  }
}

variable "deletion_protection" {
  description = "Whether AWS refuses to delete the table. To destroy it, set this to false, apply, and only then destroy: without the table, volumes are recovered from the bucket with the recovery phrase."
  type        = bool
  default     = true
}

variable "point_in_time_recovery" {
  description = "Whether the table can be restored to any second of the last 35 days. DynamoDB Local has none."
  type        = bool
  default     = true
}

variable "tags" {
  description = "Tags of the table."
  type        = map(string)
  default     = {}
}
