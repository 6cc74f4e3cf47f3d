variable "name" {
  description = "What the names of table, role, profile and group begin with."
  type        = string
  default     = "firn"
  validation {
    condition     = can(regex("^[A-Za-z0-9_-]{1,48}$", var.name))
    error_message = "A name has at most 48 letters, digits and _ - characters, since names with endings are made from it."
  }
}

variable "cluster" {
  description = "The cluster's name, as `firn-blockd init` made it."
  type        = string
  default     = "main"
  validation {
    condition     = can(regex("^[a-z0-9-]{1,32}$", var.cluster))
    error_message = "A cluster's name has lower-case letters, digits and hyphens; other characters could widen a policy."
  }
}

variable "vpc" {
  description = "The network of the nodes."
  type        = string
}

variable "subnets" {
  description = "The subnet of each failure domain, as { eu-central-1a = \"subnet-…\" }. Copies of a block lie in different domains: three are best."
  type        = map(string)
  validation {
    condition     = length(var.subnets) > 0 && alltrue([for domain, subnet in var.subnets : can(regex("^[A-Za-z0-9-]{1,64}$", domain)) && can(regex("^subnet-[0-9a-f]+$", subnet))])
    error_message = "Name at least one, as { eu-central-1a = \"subnet-0123456789abcdef0\" }."
  }
}

variable "clients" {
  description = "Networks of the machines that attach disks, and of the control plane."
  type        = list(string)
  validation {
    condition     = length(var.clients) > 0 && alltrue([for network in var.clients : can(cidrhost(network, 0)) && !endswith(network, "/0")])
    error_message = "Name at least one network, as 10.0.0.0/8, and not all there are."
  }
}

variable "service_port" {
  description = "The port of the control plane, where nodes join and report."
  type        = number
  default     = 443
}

variable "tenant" {
  description = "The tenant in whose name the pool's nodes are, with the quota for them; without it nodes are started by people only."
  type        = string
  default     = null
  validation {
    condition     = var.tenant == null || can(regex("^ten_[0-9a-f]{32}$", var.tenant))
    error_message = "A tenant is ten_ with 32 hexadecimal digits."
  }
}

variable "image" {
  description = "The image of nodes' machines: it has firn-blockd and ca-certificates, and runs user data."
  type        = string
  validation {
    condition     = can(regex("^ami-[0-9a-f]+$", var.image))
    error_message = "An image is ami- with hexadecimal digits."
  }
}

variable "instance_type" {
  description = "Their type; one with a disk of its own, such as i4i.xlarge."
  type        = string
  default     = "i4i.xlarge"
}

variable "node_gib" {
  description = "GiB of its disk that a node uses."
  type        = number
  validation {
    condition     = var.node_gib >= 1 && floor(var.node_gib) == var.node_gib
    error_message = "Give whole GiB."
  }
}

variable "min_nodes" {
  description = "Never fewer nodes: copies are at most three."
  type        = number
  default     = 3
  validation {
    condition     = var.min_nodes >= 3 && floor(var.min_nodes) == var.min_nodes
    error_message = "At least three, since what the last three hold nobody else could take."
  }
}

variable "max_nodes" {
  description = "Never more nodes."
  type        = number
  default     = 10
  validation {
    condition     = var.max_nodes >= 3 && floor(var.max_nodes) == var.max_nodes
    error_message = "At least three."
  }
}

variable "region" {
  description = "The region of all that, which is the provider's."
  type        = string
  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", var.region)) && !can(regex("^(cn|us-gov)-", var.region))
    error_message = "Write a region as eu-central-1; those of China and GovCloud have other ARNs, which firn's policies do not name."
  }
}

variable "deletion_protection" {
  description = "Whether AWS refuses to delete the cluster's table. To destroy, set this to false, apply, and only then destroy."
  type        = bool
  default     = true
}

variable "point_in_time_recovery" {
  description = "Whether the cluster's table can be restored to any second of the last 35 days. DynamoDB Local has none."
  type        = bool
  default     = true
}

variable "dynamodb_endpoint" {
  description = "The address of a DynamoDB emulator; empty for AWS."
  type        = string
  default     = ""
}

variable "tags" {
  description = "Tags of all that can have some."
  type        = map(string)
  default     = {}
}

