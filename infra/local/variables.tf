variable "endpoint" {
  description = "LocalStack's address."
  type        = string
  default     = "http://127.0.0.1:4566"
}

variable "dynamodb_endpoint" {
  description = "The address of DynamoDB Local, or of LocalStack if it has DynamoDB."
  type        = string
  default     = "http://127.0.0.1:4566"
}

variable "name" {
  description = "What all names begin with."
  type        = string
  default     = "firn"
}

variable "region" {
  description = "A region; emulators take any."
  type        = string
  default     = "eu-central-1"
}

variable "cleaner_package" {
  description = "The path of the zip that scripts/package-lambda makes."
  type        = string
}

variable "cleaner_architecture" {
  description = "This machine's processor: x86_64 or arm64."
  type        = string
  default     = "x86_64"
}

variable "cleaner_settings" {
  description = "Further settings of the cleaner, see docs/cleaner.md."
  type        = map(string)
  default     = {}
}

variable "anchor" {
  description = "The anchor as a function (docs/anchor.md), so that no edge has rights to the table: `package` is the zip of `scripts/package-lambda --anchor`, `volume` is ten_… and vol_… with 32 hexadecimal digits each, chosen once, `family` what `firn-edge format` prints: the cleaner is made when it is given. Decide before the first `format`: roots are not moved."
  type        = object({ package = string, volume = string, family = optional(string) })
  default     = null
}

variable "table" {
  description = "The table's name; without it, `name`."
  type        = string
  default     = null
}

variable "state_directory" {
  description = "Where the edge keeps journal, cache and identity."
  type        = string
  default     = "/var/lib/firn"
}

variable "clients" {
  description = "Networks whose machines may mount."
  type        = list(string)
  default     = ["127.0.0.0/8"]
}

variable "destroy_data" {
  description = "Whether `terraform destroy` may delete the data: the bucket with all versions, and the table. Set it, apply, and only then destroy."
  type        = bool
  default     = false
}
