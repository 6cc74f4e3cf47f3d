config {
  call_module_type = "none"
}

plugin "terraform" {
  enabled = true
  preset  = "all"
}

# A module's parts are in files of their own names, and examples are one file.
rule "terraform_standard_module_structure" {
  enabled = false
}

# Examples take the versions of their module.
rule "terraform_required_version" {
  enabled = false
}

rule "terraform_required_providers" {
  enabled = false
}
