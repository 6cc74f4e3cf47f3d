module "pool" {
  source   = "../"
  region   = "eu-central-1"
  vpc      = "vpc-0123456789abcdef0"
  subnets  = { eu-central-1a = "subnet-0123456789abcdef0", eu-central-1b = "subnet-0123456789abcdef1", eu-central-1c = "subnet-0123456789abcdef2" }
  clients  = ["10.0.0.0/8"]
  image    = "ami-0123456789abcdef0"
  node_gib = 800
}
