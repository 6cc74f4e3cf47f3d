output "name" {
  description = "The table's name."
  value       = aws_dynamodb_table.this.name
}

output "arn" {
  description = "The table's ARN."
  value       = aws_dynamodb_table.this.arn
}
