variable "name" {
  description = "The bucket's name, unique among all of AWS."
  type        = string
  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$", var.name))
    error_message = "A bucket's name has 3 to 63 lower-case letters, digits and hyphens, no dots (their certificates do not match), and begins and ends with a letter or digit."
  }
}

variable "deleters" {
  description = "ARNs of the roles that may delete objects: the cleaner's. Nobody else can, whatever their own policies say, until this policy is changed; `*` in an ARN stands for any text."
  type        = list(string)
  validation {
    condition     = length(var.deleters) > 0 && alltrue([for arn in var.deleters : can(regex("^arn:aws:(iam|sts)::[0-9]{12}:", arn))])
    error_message = "Name at least one role, as arn:aws:iam::ACCOUNT:role/NAME; without one, no space is ever given back."
  }
}

variable "undo_days" {
  description = "Days for which deleted and overwritten objects can be brought back."
  type        = number
  default     = 30
  validation {
    condition     = var.undo_days >= 1 && var.undo_days <= 3650 && floor(var.undo_days) == var.undo_days
    error_message = "Give whole days from 1 to 3650."
  }
}

variable "object_lock_days" {
  description = "Days for which nobody, not even the account's owner, can delete what was written (S3 object lock, compliance mode); 0 for none. It can only be chosen when the bucket is made. The cleaner waits for it, so that garbage costs money that long."
  type        = number
  default     = 0
  validation {
    condition     = var.object_lock_days >= 0 && var.object_lock_days <= 3650 && floor(var.object_lock_days) == var.object_lock_days
    error_message = "Give whole days up to 3650, or 0 for none."
  }
}

variable "destroy_data" {
  description = "Whether `terraform destroy` may delete a bucket that is not empty, with all data and all their versions. Set it, apply, and only then destroy."
  type        = bool
  default     = false
}

variable "tags" {
  description = "Tags of the bucket."
  type        = map(string)
  default     = {}
}
