package main

import (
	"github.com/aws/aws-sdk-go/aws"
	"github.com/aws/aws-sdk-go/aws/awserr"
	"github.com/aws/aws-sdk-go/service/s3"
	"github.com/hashicorp/terraform/helper/schema"
)

// ofBucket is a resource which is one property of a bucket, its identifier the bucket's name.
func ofBucket(properties map[string]*schema.Schema, put, get, remove step) *schema.Resource {
	properties["bucket"] = &schema.Schema{Type: schema.TypeString, Required: true, ForceNew: true}
	read := func(d *schema.ResourceData, _ interface{}) error {
		err := get(d)
		if failure, ok := err.(awserr.Error); ok {
			switch failure.Code() {
			case s3.ErrCodeNoSuchBucket, "NoSuchLifecycleConfiguration":
				d.SetId("")
				return nil
			}
		}
		return err
	}
	write := func(d *schema.ResourceData, meta interface{}) error {
		if err := put(d); err != nil {
			return err
		}
		d.SetId(d.Get("bucket").(string))
		return read(d, meta)
	}
	return &schema.Resource{
		Create:   write,
		Update:   write,
		Read:     read,
		Delete:   func(d *schema.ResourceData, _ interface{}) error { return remove(d) },
		Importer: &schema.ResourceImporter{State: schema.ImportStatePassthrough},
		Schema:   properties,
	}
}

func block(required bool, most int, fields map[string]*schema.Schema) *schema.Schema {
	return &schema.Schema{Type: schema.TypeList, Required: required, Optional: !required, MaxItems: most, Elem: &schema.Resource{Schema: fields}}
}

func field(kind schema.ValueType) *schema.Schema { return &schema.Schema{Type: kind, Optional: true} }

func bucketVersioning() *schema.Resource {
	status := func(d *schema.ResourceData, to string) error {
		_, err := buckets.PutBucketVersioning(&s3.PutBucketVersioningInput{
			Bucket:                  aws.String(d.Get("bucket").(string)),
			VersioningConfiguration: &s3.VersioningConfiguration{Status: aws.String(to)},
		})
		return err
	}
	return ofBucket(
		map[string]*schema.Schema{"versioning_configuration": block(true, 1, map[string]*schema.Schema{"status": {Type: schema.TypeString, Required: true}})},
		func(d *schema.ResourceData) error {
			return status(d, d.Get("versioning_configuration.0.status").(string))
		},
		func(d *schema.ResourceData) error {
			out, err := buckets.GetBucketVersioning(&s3.GetBucketVersioningInput{Bucket: aws.String(d.Id())})
			if err != nil {
				return err
			}
			if err := d.Set("bucket", d.Id()); err != nil {
				return err
			}
			return d.Set("versioning_configuration", []map[string]interface{}{{"status": aws.StringValue(out.Status)}})
		},
		func(d *schema.ResourceData) error { return status(d, "Suspended") },
	)
}

func bucketLifecycle() *schema.Resource {
	rule := map[string]*schema.Schema{
		"id":                                {Type: schema.TypeString, Required: true},
		"status":                            {Type: schema.TypeString, Required: true},
		"filter":                            block(false, 1, map[string]*schema.Schema{"prefix": field(schema.TypeString)}),
		"abort_incomplete_multipart_upload": block(false, 1, map[string]*schema.Schema{"days_after_initiation": field(schema.TypeInt)}),
		"noncurrent_version_expiration":     block(false, 1, map[string]*schema.Schema{"noncurrent_days": field(schema.TypeInt)}),
		"expiration":                        block(false, 1, map[string]*schema.Schema{"expired_object_delete_marker": field(schema.TypeBool)}),
	}
	first := func(value interface{}) map[string]interface{} {
		if list := value.([]interface{}); len(list) > 0 && list[0] != nil {
			return list[0].(map[string]interface{})
		}
		return nil
	}
	put := func(d *schema.ResourceData) error {
		rules := []*s3.LifecycleRule{}
		for _, one := range d.Get("rule").([]interface{}) {
			values := one.(map[string]interface{})
			made := &s3.LifecycleRule{
				ID:     aws.String(values["id"].(string)),
				Status: aws.String(values["status"].(string)),
				Filter: &s3.LifecycleRuleFilter{Prefix: aws.String("")},
			}
			if filter := first(values["filter"]); filter != nil {
				made.Filter.Prefix = aws.String(filter["prefix"].(string))
			}
			if abort := first(values["abort_incomplete_multipart_upload"]); abort != nil {
				made.AbortIncompleteMultipartUpload = &s3.AbortIncompleteMultipartUpload{DaysAfterInitiation: aws.Int64(int64(abort["days_after_initiation"].(int)))}
			}
			if expiration := first(values["noncurrent_version_expiration"]); expiration != nil {
				made.NoncurrentVersionExpiration = &s3.NoncurrentVersionExpiration{NoncurrentDays: aws.Int64(int64(expiration["noncurrent_days"].(int)))}
			}
			if expiration := first(values["expiration"]); expiration != nil {
				made.Expiration = &s3.LifecycleExpiration{ExpiredObjectDeleteMarker: aws.Bool(expiration["expired_object_delete_marker"].(bool))}
			}
			rules = append(rules, made)
		}
		_, err := buckets.PutBucketLifecycleConfiguration(&s3.PutBucketLifecycleConfigurationInput{
			Bucket:                 aws.String(d.Get("bucket").(string)),
			LifecycleConfiguration: &s3.BucketLifecycleConfiguration{Rules: rules},
		})
		return err
	}
	get := func(d *schema.ResourceData) error {
		out, err := buckets.GetBucketLifecycleConfiguration(&s3.GetBucketLifecycleConfigurationInput{Bucket: aws.String(d.Id())})
		if err != nil {
			return err
		}
		rules := []map[string]interface{}{}
		one := func(name string, value interface{}) []map[string]interface{} {
			return []map[string]interface{}{{name: value}}
		}
		for _, found := range out.Rules {
			values := map[string]interface{}{"id": aws.StringValue(found.ID), "status": aws.StringValue(found.Status)}
			if found.Filter != nil {
				values["filter"] = one("prefix", aws.StringValue(found.Filter.Prefix))
			}
			if found.AbortIncompleteMultipartUpload != nil {
				values["abort_incomplete_multipart_upload"] = one("days_after_initiation", int(aws.Int64Value(found.AbortIncompleteMultipartUpload.DaysAfterInitiation)))
			}
			if found.NoncurrentVersionExpiration != nil {
				values["noncurrent_version_expiration"] = one("noncurrent_days", int(aws.Int64Value(found.NoncurrentVersionExpiration.NoncurrentDays)))
			}
			if found.Expiration != nil {
				values["expiration"] = one("expired_object_delete_marker", aws.BoolValue(found.Expiration.ExpiredObjectDeleteMarker))
			}
			rules = append(rules, values)
		}
		if err := d.Set("bucket", d.Id()); err != nil {
			return err
		}
		return d.Set("rule", rules)
	}
	remove := func(d *schema.ResourceData) error {
		_, err := buckets.DeleteBucketLifecycle(&s3.DeleteBucketLifecycleInput{Bucket: aws.String(d.Id())})
		return err
	}
	return ofBucket(map[string]*schema.Schema{"rule": block(true, 0, rule)}, put, get, remove)
}

func bucketObjectLock() *schema.Resource {
	refuse := func(*schema.ResourceData) error { return errNotHere }
	retention := block(true, 1, map[string]*schema.Schema{"mode": field(schema.TypeString), "days": field(schema.TypeInt)})
	rule := block(false, 1, map[string]*schema.Schema{"default_retention": retention})
	return ofBucket(map[string]*schema.Schema{"rule": rule}, refuse, refuse, refuse)
}
