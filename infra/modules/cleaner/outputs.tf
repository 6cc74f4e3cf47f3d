output "function_name" {
  description = "The function's name, for `aws lambda invoke`."
  value       = aws_lambda_function.this.function_name
}

output "role_arn" {
  description = "The ARN of the cleaner's role, the only one that may delete objects."
  value       = aws_iam_role.this.arn
}

output "queue_url" {
  description = "The queue to send messages such as {\"family\": \"…\"} to."
  value       = aws_sqs_queue.work.id
}

output "dead_letters_url" {
  description = "The queue of dead letters."
  value       = aws_sqs_queue.dead.id
}
