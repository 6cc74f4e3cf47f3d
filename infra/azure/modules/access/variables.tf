variable "name" {
  description = "What the roles' names begin with; unique in the tenant."
  type        = string
}

variable "account_id" {
  description = "The storage account's id."
  type        = string
}

variable "container_id" {
  description = "The container's id."
  type        = string
}

variable "table_id" {
  description = "The table's id."
  type        = string
}

variable "edges" {
  description = "The identities of the offices' edges: the object id of an application or of a machine's managed identity, by the office's name."
  type        = map(string)
  default     = {}
}

variable "cleaner" {
  description = "The object id of the cleaner's identity."
  type        = string
}
