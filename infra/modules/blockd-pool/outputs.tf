output "arguments" {
  description = "Arguments of `firn-api serve` for disks, and for the pool once `tenant` is given."
  value = concat(
    ["--cluster", var.cluster, "--cluster-table", local.url],
    var.tenant == null ? [] : concat(
      ["--pool-tenant", var.tenant, "--pool-min", tostring(var.min_nodes), "--pool-max", tostring(var.max_nodes), "--pool-node-bytes", tostring(var.node_gib * 1024 * 1024 * 1024)],
      ["--ec2-image", var.image, "--ec2-type", var.instance_type, "--ec2-profile", aws_iam_instance_profile.node.name, "--ec2-security-group", aws_security_group.node.id, "--ec2-region", var.region],
      flatten([for domain in local.domains : ["--pool-domain", domain, "--ec2-subnet", "${domain}=${var.subnets[domain]}"]]),
    ),
  )
}

output "cluster" {
  description = "What the control plane's policy names: the cluster, its table, and what machines of nodes are made of."
  value = {
    name           = var.cluster
    table          = module.table.name
    node_role      = aws_iam_role.node.name
    security_group = aws_security_group.node.id
    image          = var.image
    subnets        = [for domain in local.domains : var.subnets[domain]]
  }
}

output "table_url" {
  description = "The cluster's table, as `cluster.table` of firn-blockd.toml."
  value       = local.url
}
