# Where a volume's objects and roots are, as firn's programs write it. Makes nothing.

locals {
  # Emulators are reached at an address of their own.
  endpoints = { for service, url in { s3 = var.s3_endpoint, dynamodb = var.dynamodb_endpoint } : service => url == "" ? "" : "&endpoint=${url}" }
}
