// The AWS provider that tests apply our Terraform modules with: HashiCorp's own code of 2019, and what it lacks.
//
// Provider registries cannot be reached from where tests run; the Go module proxy can, and the newest version it serves is 1.60.0. Its
// code is linked unmodified. Our modules are written for the current provider, so what they use and 1.60.0 does not know is added
// here, each by the service's own API and with the current provider's names:
//
//	aws_dynamodb_table           deletion_protection_enabled
//	aws_lambda_function          architectures (as the service has it); runtimes newer than 2019
//	aws_lambda_event_source_mapping  function_response_types
//	aws_s3_bucket                object_lock_enabled (refused: no test applies it)
//	aws_lambda_function_url
//	aws_s3_bucket_versioning, aws_s3_bucket_lifecycle_configuration, aws_s3_bucket_object_lock_configuration (refused)
//	provider                     s3_use_path_style
//
// That names and arguments exist in the current provider is another check: infra/check, by the provider's official bindings.
package main

import (
	"errors"

	"github.com/hashicorp/terraform/helper/schema"
	"github.com/hashicorp/terraform/plugin"
	"github.com/hashicorp/terraform/terraform"
	"github.com/terraform-providers/terraform-provider-aws/aws"
)

// errNotHere answers for what tests only plan.
var errNotHere = errors.New("object lock is not applied by the tests' provider")

func main() {
	plugin.Serve(&plugin.ServeOpts{ProviderFunc: func() terraform.ResourceProvider { return extended() }})
}

func extended() *schema.Provider {
	provider := aws.Provider().(*schema.Provider)
	provider.Schema["s3_use_path_style"] = &schema.Schema{Type: schema.TypeBool, Optional: true}
	configure := provider.ConfigureFunc
	provider.ConfigureFunc = func(d *schema.ResourceData) (interface{}, error) {
		if err := d.Set("s3_force_path_style", d.Get("s3_use_path_style")); err != nil {
			return nil, err
		}
		// A question to EC2 that the current provider does not ask any more.
		if err := d.Set("skip_get_ec2_platforms", true); err != nil {
			return nil, err
		}
		if err := connect(d); err != nil {
			return nil, err
		}
		return configure(d)
	}

	resources := provider.ResourcesMap
	bucket := resources["aws_s3_bucket"]
	// In the current provider these are resources of their own, and the bucket leaves them alone.
	for _, name := range []string{"lifecycle_rule", "versioning", "object_lock_configuration", "server_side_encryption_configuration", "cors_rule", "policy"} {
		bucket.Schema[name].Computed = true
	}
	bucket.Schema["object_lock_enabled"] = &schema.Schema{Type: schema.TypeBool, Optional: true, ForceNew: true}
	before(bucket, func(d *schema.ResourceData) error {
		if d.Get("object_lock_enabled").(bool) {
			return errNotHere
		}
		return nil
	})
	resources["aws_lambda_function_url"] = lambdaFunctionURL()
	resources["aws_s3_bucket_versioning"] = bucketVersioning()
	resources["aws_s3_bucket_lifecycle_configuration"] = bucketLifecycle()
	resources["aws_s3_bucket_object_lock_configuration"] = bucketObjectLock()

	tableDeletionProtection(resources["aws_dynamodb_table"])
	functionArchitectures(resources["aws_lambda_function"])
	mappingResponseTypes(resources["aws_lambda_event_source_mapping"])
	return provider
}

type step func(*schema.ResourceData) error

// before runs `check` ahead of a resource's creation.
func before(resource *schema.Resource, check step) {
	create := resource.Create
	resource.Create = func(d *schema.ResourceData, meta interface{}) error {
		if err := check(d); err != nil {
			return err
		}
		return create(d, meta)
	}
}

// extend adds what `put` writes and `get` reads to a resource. `put` runs after creation and when the argument changed.
func extend(resource *schema.Resource, argument string, put, get step) {
	create, read, update := resource.Create, resource.Read, resource.Update
	resource.Read = func(d *schema.ResourceData, meta interface{}) error {
		if err := read(d, meta); err != nil || d.Id() == "" {
			return err
		}
		return get(d)
	}
	resource.Create = func(d *schema.ResourceData, meta interface{}) error {
		if err := create(d, meta); err != nil {
			return err
		}
		if err := put(d); err != nil {
			return err
		}
		return get(d)
	}
	resource.Update = func(d *schema.ResourceData, meta interface{}) error {
		changed := d.HasChange(argument)
		if err := update(d, meta); err != nil {
			return err
		}
		if changed {
			if err := put(d); err != nil {
				return err
			}
		}
		return get(d)
	}
}
