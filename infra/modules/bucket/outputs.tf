output "name" {
  description = "The bucket's name, known only once it is versioned, closed and has its policy."
  value       = aws_s3_bucket_policy.this.bucket
  depends_on  = [aws_s3_bucket_lifecycle_configuration.this, aws_s3_bucket_object_lock_configuration.this]
}

output "arn" {
  description = "The bucket's ARN."
  value       = aws_s3_bucket.this.arn
}
