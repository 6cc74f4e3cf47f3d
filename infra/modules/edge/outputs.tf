output "configuration" {
  description = "firn-edge.toml, ready to paste: `terraform output -raw …`."
  value = templatefile("${path.module}/firn-edge.toml.tftpl", {
    volume          = var.volume
    edge            = var.name
    store           = module.location.store
    table           = module.location.table
    anchor          = var.anchor == null ? null : var.anchor.address
    state_directory = var.state_directory
    export          = var.export
    second          = var.second == null ? null : "s3://${var.second.bucket}/${var.second.prefix}?region=${var.second.region}"
    clients         = jsonencode(var.clients)
  })
}

output "user" {
  description = "The user whose access key the edge takes from /etc/firn/credentials."
  value       = aws_iam_user.this.name
}
