# The bucket that holds the sealed objects: versioned, closed to the public and to plain HTTP, and only named roles delete.

resource "aws_s3_bucket" "this" {
  bucket              = var.name
  force_destroy       = var.destroy_data
  object_lock_enabled = var.object_lock_days > 0
  tags                = var.tags
}

resource "aws_s3_bucket_public_access_block" "this" {
  bucket                  = aws_s3_bucket.this.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

# Undoes accidents: what was deleted or overwritten stays for `undo_days`. The cleaner deletes by version, since what it deletes
# nobody needs.
resource "aws_s3_bucket_versioning" "this" {
  bucket = aws_s3_bucket.this.id
  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_lifecycle_configuration" "this" {
  bucket = aws_s3_bucket_versioning.this.bucket

  rule {
    id     = "forget"
    status = "Enabled"
    filter {
      prefix = ""
    }
    noncurrent_version_expiration {
      noncurrent_days = var.undo_days
    }
    expiration {
      expired_object_delete_marker = true
    }
  }

  rule {
    id     = "abort"
    status = "Enabled"
    filter {
      prefix = ""
    }
    abort_incomplete_multipart_upload {
      days_after_initiation = 7
    }
  }
}

resource "aws_s3_bucket_object_lock_configuration" "this" {
  count  = var.object_lock_days > 0 ? 1 : 0
  bucket = aws_s3_bucket_versioning.this.bucket
  rule {
    default_retention {
      mode = "COMPLIANCE"
      days = var.object_lock_days
    }
  }
}

resource "aws_s3_bucket_policy" "this" {
  bucket = aws_s3_bucket_public_access_block.this.bucket
  policy = templatefile("${path.module}/bucket-policy.json", {
    BUCKET   = var.name
    DELETERS = jsonencode(var.deleters)
  })
}
