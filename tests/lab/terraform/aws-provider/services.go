package main

import (
	"fmt"

	"github.com/aws/aws-sdk-go/aws"
	"github.com/aws/aws-sdk-go/aws/credentials"
	"github.com/aws/aws-sdk-go/aws/request"
	"github.com/aws/aws-sdk-go/aws/session"
	"github.com/aws/aws-sdk-go/service/dynamodb"
	"github.com/aws/aws-sdk-go/service/lambda"
	"github.com/aws/aws-sdk-go/service/s3"
	"github.com/hashicorp/terraform/helper/schema"
)

// The clients of what is added; the provider's own are private to it.
var (
	buckets   *s3.S3
	tables    *dynamodb.DynamoDB
	functions *lambda.Lambda
)

// connect makes them from the provider's settings.
func connect(d *schema.ResourceData) error {
	endpoints := map[string]string{}
	for _, set := range d.Get("endpoints").(*schema.Set).List() {
		for service, url := range set.(map[string]interface{}) {
			if url.(string) != "" {
				endpoints[service] = url.(string)
			}
		}
	}
	config := func(service string) *aws.Config {
		config := aws.NewConfig().
			WithRegion(d.Get("region").(string)).
			WithS3ForcePathStyle(d.Get("s3_use_path_style").(bool))
		if key := d.Get("access_key").(string); key != "" {
			config = config.WithCredentials(credentials.NewStaticCredentials(key, d.Get("secret_key").(string), ""))
		}
		if url := endpoints[service]; url != "" {
			config = config.WithEndpoint(url)
		}
		return config
	}
	own, err := session.NewSession()
	if err != nil {
		return err
	}
	buckets = s3.New(own, config("s3"))
	tables = dynamodb.New(own, config("dynamodb"))
	functions = lambda.New(own, config("lambda"))
	return nil
}

// The SDK of 2019 has no fields for these; its protocols encode any structure.
type tableProtection struct {
	_                         struct{} `type:"structure"`
	TableName                 *string  `type:"string"`
	DeletionProtectionEnabled *bool    `type:"boolean"`
}

type described struct {
	_     struct{}         `type:"structure"`
	Table *tableProtection `type:"structure"`
}

type named struct {
	_         struct{} `type:"structure"`
	TableName *string  `type:"string"`
}

func tableDeletionProtection(resource *schema.Resource) {
	const argument = "deletion_protection_enabled"
	resource.Schema[argument] = &schema.Schema{Type: schema.TypeBool, Optional: true}
	call := func(name string, in, out interface{}) error {
		return tables.NewRequest(&request.Operation{Name: name, HTTPMethod: "POST", HTTPPath: "/"}, in, out).Send()
	}
	put := func(d *schema.ResourceData) error {
		wanted := aws.Bool(d.Get(argument).(bool))
		return call("UpdateTable", &tableProtection{TableName: aws.String(d.Id()), DeletionProtectionEnabled: wanted}, &struct{}{})
	}
	get := func(d *schema.ResourceData) error {
		out := &described{}
		if err := call("DescribeTable", &named{TableName: aws.String(d.Id())}, out); err != nil {
			return err
		}
		return d.Set(argument, out.Table != nil && aws.BoolValue(out.Table.DeletionProtectionEnabled))
	}
	extend(resource, argument, put, get)
}

type functionName struct {
	_            struct{} `type:"structure"`
	FunctionName *string  `location:"uri" locationName:"FunctionName" type:"string" required:"true"`
}

type functionMachines struct {
	_             struct{}  `type:"structure"`
	Architectures []*string `type:"list"`
}

// functionArchitectures reports what the service runs the function on. It makes functions for the first of them only, x86_64, and for the
// other where the service has it so: the lab's service runs all functions on this machine's processor.
func functionArchitectures(resource *schema.Resource) {
	const argument = "architectures"
	resource.Schema["runtime"].ValidateFunc = nil
	resource.Schema[argument] = &schema.Schema{Type: schema.TypeList, Optional: true, Elem: &schema.Schema{Type: schema.TypeString}}
	get := func(d *schema.ResourceData) error {
		out := &functionMachines{}
		operation := &request.Operation{Name: "GetFunctionConfiguration", HTTPMethod: "GET", HTTPPath: "/2015-03-31/functions/{FunctionName}/configuration"}
		if err := functions.NewRequest(operation, &functionName{FunctionName: aws.String(d.Id())}, out).Send(); err != nil {
			return err
		}
		return d.Set(argument, aws.StringValueSlice(out.Architectures))
	}
	put := func(d *schema.ResourceData) error {
		wanted := fmt.Sprint(d.Get(argument))
		if err := get(d); err != nil {
			return err
		}
		if has := fmt.Sprint(d.Get(argument)); has != wanted {
			return fmt.Errorf("the tests' provider makes functions for %s only, not for %s", has, wanted)
		}
		return nil
	}
	extend(resource, argument, put, get)
}

type mapping struct {
	_                     struct{}  `type:"structure"`
	UUID                  *string   `location:"uri" locationName:"UUID" type:"string" required:"true"`
	FunctionResponseTypes []*string `type:"list"`
}

func mappingResponseTypes(resource *schema.Resource) {
	const argument = "function_response_types"
	resource.Schema[argument] = &schema.Schema{Type: schema.TypeSet, Optional: true, Set: schema.HashString, Elem: &schema.Schema{Type: schema.TypeString}}
	call := func(name, method string, in, out *mapping) error {
		operation := &request.Operation{Name: name, HTTPMethod: method, HTTPPath: "/2015-03-31/event-source-mappings/{UUID}"}
		return functions.NewRequest(operation, in, out).Send()
	}
	put := func(d *schema.ResourceData) error {
		in := &mapping{UUID: aws.String(d.Id()), FunctionResponseTypes: []*string{}}
		for _, one := range d.Get(argument).(*schema.Set).List() {
			in.FunctionResponseTypes = append(in.FunctionResponseTypes, aws.String(one.(string)))
		}
		return call("UpdateEventSourceMapping", "PUT", in, &mapping{})
	}
	get := func(d *schema.ResourceData) error {
		out := &mapping{}
		if err := call("GetEventSourceMapping", "GET", &mapping{UUID: aws.String(d.Id())}, out); err != nil {
			return err
		}
		return d.Set(argument, aws.StringValueSlice(out.FunctionResponseTypes))
	}
	extend(resource, argument, put, get)
}
