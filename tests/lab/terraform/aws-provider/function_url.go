package main

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/aws/aws-sdk-go/aws"
	"github.com/aws/aws-sdk-go/aws/awserr"
	"github.com/aws/aws-sdk-go/aws/request"
	"github.com/hashicorp/terraform/helper/schema"
)

// The SDK of 2019 knows no function URLs; its protocol encodes any structure.
type functionURL struct {
	_            struct{} `type:"structure"`
	FunctionName *string  `location:"uri" locationName:"FunctionName" type:"string" required:"true"`
	AuthType     *string  `type:"string"`
}

type functionURLFound struct {
	_           struct{} `type:"structure"`
	AuthType    *string  `type:"string"`
	FunctionArn *string  `type:"string"`
	FunctionUrl *string  `type:"string"`
}

// lambdaFunctionURL is the address of a function, its identifier the function's name.
func lambdaFunctionURL() *schema.Resource {
	call := func(name, method string, d *schema.ResourceData, authorization *string) (*functionURLFound, error) {
		out := &functionURLFound{}
		operation := &request.Operation{Name: name, HTTPMethod: method, HTTPPath: "/2021-10-31/functions/{FunctionName}/url"}
		in := &functionURL{FunctionName: aws.String(d.Get("function_name").(string)), AuthType: authorization}
		return out, functions.NewRequest(operation, in, out).Send()
	}
	read := func(d *schema.ResourceData, _ interface{}) error {
		found, err := call("GetFunctionUrlConfig", "GET", d, nil)
		if failure, ok := err.(awserr.Error); ok && failure.Code() == "ResourceNotFoundException" {
			d.SetId("")
			return nil
		}
		if err != nil {
			return err
		}
		address, err := url.Parse(aws.StringValue(found.FunctionUrl))
		if err != nil || address.Host == "" {
			return fmt.Errorf("%q is no function URL", aws.StringValue(found.FunctionUrl))
		}
		for name, value := range map[string]string{
			"authorization_type": aws.StringValue(found.AuthType),
			"function_arn":       aws.StringValue(found.FunctionArn),
			"function_url":       aws.StringValue(found.FunctionUrl),
			"url_id":             strings.SplitN(address.Host, ".", 2)[0],
		} {
			if err := d.Set(name, value); err != nil {
				return err
			}
		}
		return nil
	}
	write := func(name, method string) func(*schema.ResourceData, interface{}) error {
		return func(d *schema.ResourceData, meta interface{}) error {
			if _, err := call(name, method, d, aws.String(d.Get("authorization_type").(string))); err != nil {
				return err
			}
			d.SetId(d.Get("function_name").(string))
			return read(d, meta)
		}
	}
	computed := &schema.Schema{Type: schema.TypeString, Computed: true}
	return &schema.Resource{
		Create: write("CreateFunctionUrlConfig", "POST"),
		Update: write("UpdateFunctionUrlConfig", "PUT"),
		Read:   read,
		Delete: func(d *schema.ResourceData, _ interface{}) error {
			_, err := call("DeleteFunctionUrlConfig", "DELETE", d, nil)
			return err
		},
		Schema: map[string]*schema.Schema{
			"function_name":      {Type: schema.TypeString, Required: true, ForceNew: true},
			"authorization_type": {Type: schema.TypeString, Required: true},
			"function_arn":       computed,
			"function_url":       computed,
			"url_id":             computed,
		},
	}
}
