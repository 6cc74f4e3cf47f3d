module "api" {
  source = "../"
  bucket = "nord-firn-volumes"
  region = "eu-central-1"
  cluster = { # module.pool.cluster
    name           = "main"
    table          = "firn-disks"
    node_role      = "firn-node"
    security_group = "sg-0123456789abcdef0"
    image          = "ami-0123456789abcdef0"
    subnets        = ["subnet-0123456789abcdef0"]
  }
}
