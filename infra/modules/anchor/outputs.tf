output "addresses" {
  description = "By volume, what edges write as `volume.anchor` and cleaners as FIRN_CLEANER_ANCHOR: `lambda://…`."
  value       = { for volume in toset(var.callers[*].volume) : volume => "lambda://${aws_lambda_function_url.this.url_id}/${volume}?region=${var.region}${local.endpoint.lambda}" }
}

output "function_name" {
  description = "The function's name, which callers' policies name."
  value       = aws_lambda_function.this.function_name
}

output "role_arn" {
  description = "The ARN of the function's role, the only one that reaches the table of roots."
  value       = aws_iam_role.this.arn
}
