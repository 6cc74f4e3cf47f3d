output "arguments" {
  description = "Arguments of `firn-api serve` for tables and edges' sessions; listeners, `--name`, `--issuer`, `--state`, `--instance` and `--secret` are the machine's."
  value = concat([
    "--table", "dynamodb://${module.control_table.name}?region=${var.region}${local.endpoint}",
    "--anchor-table", "dynamodb://${module.anchor_table.name}?region=${var.region}${local.endpoint}",
    "--edge-role", aws_iam_role.edges.arn, "--managed-bucket", "${var.region}=${var.bucket}", "--sts-region", var.region,
  ], var.spread_ledger ? ["--spread-ledger"] : [])
}

output "anchor_table" {
  description = "The table of roots, which the service's cleaner opens as well."
  value       = module.anchor_table.name
}

output "control_table" {
  description = "The control plane's own table."
  value       = module.control_table.name
}

output "role_arn" {
  description = "The ARN of the role that the program acts in."
  value       = aws_iam_role.this.arn
}

output "instance_profile" {
  description = "The instance profile of that role; nothing if the program runs elsewhere than on EC2."
  value       = one(aws_iam_instance_profile.this[*].name)
}
