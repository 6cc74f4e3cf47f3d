// The judge of manifests: whether a Compose file and Kubernetes objects are what their own software reads.
//
//	manifests compose FILE        the project, loaded by Compose's own loader: schema, interpolation, references; as JSON
//	manifests kubernetes FILE…    the objects, decoded into Kubernetes' own types, nothing unknown among their fields; as a JSON list
//
// Neither an engine nor a cluster takes part. What a value must be beyond its type, only a cluster's own admission knows.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/compose-spec/compose-go/v2/cli"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// kinds are those that our manifests use; another one is an error until it is listed here.
var kinds = map[string]func() any{
	"v1 ConfigMap":                       func() any { return &core.ConfigMap{} },
	"v1 Namespace":                       func() any { return &core.Namespace{} },
	"v1 Service":                         func() any { return &core.Service{} },
	"v1 ServiceAccount":                  func() any { return &core.ServiceAccount{} },
	"apps/v1 Deployment":                 func() any { return &apps.Deployment{} },
	"apps/v1 StatefulSet":                func() any { return &apps.StatefulSet{} },
	"batch/v1 CronJob":                   func() any { return &batch.CronJob{} },
	"batch/v1 Job":                       func() any { return &batch.Job{} },
	"networking.k8s.io/v1 NetworkPolicy": func() any { return &networking.NetworkPolicy{} },
	"policy/v1 PodDisruptionBudget":      func() any { return &policy.PodDisruptionBudget{} },
}

func composeProject(file string) (any, error) {
	options, err := cli.NewProjectOptions([]string{file}, cli.WithOsEnv, cli.WithDotEnv, cli.WithProfiles([]string{"*"}), cli.WithInterpolation(true))
	if err != nil {
		return nil, err
	}
	return options.LoadProject(context.Background())
}

func objects(files []string) ([]any, error) {
	found := []any{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
		for {
			document, err := documents.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			var head struct{ APIVersion, Kind string }
			if err := yaml.Unmarshal(document, &head); err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			if head.Kind == "" {
				continue // a comment
			}
			make := kinds[head.APIVersion+" "+head.Kind]
			if make == nil {
				return nil, fmt.Errorf("%s: %s %s is no kind that is known here", file, head.APIVersion, head.Kind)
			}
			object := make()
			if err := yaml.UnmarshalStrict(document, object); err != nil {
				return nil, fmt.Errorf("%s: %s: %w", file, head.Kind, err)
			}
			found = append(found, object)
		}
	}
	return found, nil
}

func run(arguments []string) error {
	var read any
	var err error
	switch {
	case len(arguments) == 2 && arguments[0] == "compose":
		read, err = composeProject(arguments[1])
	case len(arguments) >= 2 && arguments[0] == "kubernetes":
		read, err = objects(arguments[1:])
	default:
		err = errors.New("manifests compose FILE | kubernetes FILE…")
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(read)
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "manifests:", err)
		os.Exit(1)
	}
}
