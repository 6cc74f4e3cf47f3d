variables {
  bucket = "nord"
  table  = "firn"
  region = "eu-central-1"
}

run "is_written_as_firn_reads_it" {
  command = plan
  assert {
    condition     = output.store == "s3://nord/firn?region=eu-central-1" && output.table == "dynamodb://firn?region=eu-central-1" && output.bucket == "s3://nord?region=eu-central-1"
    error_message = "The URLs are ${output.store} and ${output.table}."
  }
}

run "names_emulators" {
  command = plan
  variables {
    s3_endpoint = "http://127.0.0.1:4566"
  }
  assert {
    condition     = output.store == "s3://nord/firn?region=eu-central-1&endpoint=http://127.0.0.1:4566"
    error_message = "The URL is ${output.store}."
  }
}

run "refuses_a_prefix_that_would_widen_a_policy" {
  command = plan
  variables {
    prefix = "firn/*"
  }
  expect_failures = [var.prefix]
}

run "refuses_no_prefix" {
  command = plan
  variables {
    prefix = ""
  }
  expect_failures = [var.prefix]
}

run "refuses_a_prefix_that_looks_like_key_rings" {
  command = plan
  variables {
    prefix = "firn/keyring"
  }
  expect_failures = [var.prefix]
}

run "refuses_regions_that_are_none" {
  command = plan
  variables {
    region = "Frankfurt"
  }
  expect_failures = [var.region]
}

run "refuses_regions_with_other_arns" {
  command = plan
  variables {
    region = "us-gov-west-1"
  }
  expect_failures = [var.region]
}
