# The table that holds the roots: billed by request, restorable to any second of the last 35 days, and not deleted by a slip.

resource "aws_dynamodb_table" "this" {
  name                        = var.name
  billing_mode                = "PAY_PER_REQUEST"
  deletion_protection_enabled = var.deletion_protection
  tags                        = var.tags

  # What firn expects; a table with other keys is refused when it is opened.
  hash_key  = "partition"
  range_key = "sort"

  attribute {
    name = "partition"
    type = "S"
  }

  attribute {
    name = "sort"
    type = "S"
  }

  point_in_time_recovery {
    enabled = var.point_in_time_recovery
  }
}
