// Renders a Helm chart without Helm: the same template engine and functions (text/template, sprig), the same check of
// the values against their schema. It knows no charts inside charts, hooks, `lookup` and `tpl`.
//
//	render CHART [-f VALUES]... [-n NAMESPACE] [-k VERSION] [-s TEMPLATE]...
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"github.com/xeipuuv/gojsonschema"
	"sigs.k8s.io/yaml"
)

// The order in which Helm installs, for the kinds that charts of ours may have.
var order = []string{
	"Namespace", "NetworkPolicy", "PodDisruptionBudget", "ServiceAccount", "Secret", "ConfigMap", "StorageClass",
	"PersistentVolume", "PersistentVolumeClaim", "Role", "RoleBinding", "Service", "PodTemplate", "DaemonSet",
	"Deployment", "HorizontalPodAutoscaler", "ServiceMonitor",
}

type files struct{ root string }

func (f files) Get(name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(f.root, name))
	return string(text), err
}

type object = map[string]interface{}

type manifest struct {
	rank   int
	source string
	text   string
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "render:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) == 0 || len(arguments)%2 == 0 {
		return errors.New("usage: render CHART [-f VALUES]... [-n NAMESPACE] [-k VERSION] [-s TEMPLATE]...")
	}
	root := arguments[0]
	values, namespace, kubernetes := object{}, "sandbox", "v1.30.0"
	only := map[string]bool{}
	if err := merge(values, filepath.Join(root, "values.yaml")); err != nil {
		return err
	}
	for at := 1; at < len(arguments); at += 2 {
		value := arguments[at+1]
		switch arguments[at] {
		case "-f":
			if err := merge(values, value); err != nil {
				return err
			}
		case "-n":
			namespace = value
		case "-k":
			kubernetes = value
		case "-s":
			only[value] = true
		default:
			return fmt.Errorf("unknown option %s", arguments[at])
		}
	}
	if err := check(root, values); err != nil {
		return err
	}
	chart := object{}
	if err := merge(chart, filepath.Join(root, "Chart.yaml")); err != nil {
		return err
	}
	context := object{
		"Values":       values,
		"Chart":        object{"Name": chart["name"], "Version": chart["version"], "AppVersion": chart["appVersion"]},
		"Release":      object{"Name": chart["name"], "Namespace": namespace, "Service": "Helm"},
		"Capabilities": object{"KubeVersion": object{"Version": kubernetes}},
		"Files":        files{root},
	}
	manifests, err := render(root, context, only)
	if err != nil {
		return err
	}
	for _, one := range manifests {
		fmt.Printf("---\n# Source: %s\n%s\n", one.source, one.text)
	}
	return nil
}

// Adds the values of a file to those that are there; a table is merged, anything else replaced.
func merge(into object, path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	from := object{}
	if err := yaml.Unmarshal(text, &from); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	overlay(into, from)
	return nil
}

func overlay(into, from object) {
	for key, value := range from {
		below, isTable := value.(object)
		above, wasTable := into[key].(object)
		if isTable && wasTable {
			overlay(above, below)
		} else {
			into[key] = value
		}
	}
}

func check(root string, values object) error {
	schema, err := os.ReadFile(filepath.Join(root, "values.schema.json"))
	if err != nil {
		return err
	}
	text, err := json.Marshal(values)
	if err != nil {
		return err
	}
	result, err := gojsonschema.Validate(gojsonschema.NewBytesLoader(schema), gojsonschema.NewBytesLoader(text))
	if err != nil {
		return err
	}
	var wrong []string
	for _, one := range result.Errors() {
		wrong = append(wrong, one.String())
	}
	if len(wrong) > 0 {
		return fmt.Errorf("the values do not fit their schema: %s", strings.Join(wrong, "; "))
	}
	return nil
}

func render(root string, context object, only map[string]bool) ([]manifest, error) {
	all := template.New("chart").Option("missingkey=zero")
	all.Funcs(functions(all))
	paths, err := filepath.Glob(filepath.Join(root, "templates", "*"))
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if _, err := all.New(filepath.Base(path)).Parse(string(text)); err != nil {
			return nil, err
		}
	}
	var manifests []manifest
	for _, path := range paths {
		name := filepath.Base(path)
		if strings.HasPrefix(name, "_") || !strings.HasSuffix(name, ".yaml") || (len(only) > 0 && !only[name]) {
			continue
		}
		var out bytes.Buffer
		if err := all.ExecuteTemplate(&out, name, context); err != nil {
			return nil, err
		}
		text := strings.ReplaceAll(out.String(), "<no value>", "")
		for _, part := range strings.Split("\n"+text, "\n---") {
			one := object{}
			if err := yaml.UnmarshalStrict([]byte(part), &one); err != nil {
				return nil, fmt.Errorf("%s makes invalid YAML: %w", name, err)
			}
			if len(one) == 0 {
				continue
			}
			rank, err := rank(one, name)
			if err != nil {
				return nil, err
			}
			manifests = append(manifests, manifest{rank, "templates/" + name, strings.TrimSpace(part)})
		}
	}
	sort.SliceStable(manifests, func(a, b int) bool { return manifests[a].rank < manifests[b].rank })
	return manifests, nil
}

func rank(one object, name string) (int, error) {
	for at, kind := range order {
		if one["kind"] == kind {
			return at, nil
		}
	}
	return 0, fmt.Errorf("%s makes a %v, whose place in the order is not known", name, one["kind"])
}

// What Helm adds to sprig's functions.
func functions(all *template.Template) template.FuncMap {
	known := sprig.TxtFuncMap()
	delete(known, "env")
	delete(known, "expandenv")
	known["include"] = func(name string, data interface{}) (string, error) {
		var out strings.Builder
		err := all.ExecuteTemplate(&out, name, data)
		return out.String(), err
	}
	known["toYaml"] = func(value interface{}) (string, error) {
		text, err := yaml.Marshal(value)
		return strings.TrimSuffix(string(text), "\n"), err
	}
	known["fromJson"] = func(text string) (object, error) {
		value := object{}
		err := json.Unmarshal([]byte(text), &value)
		return value, err
	}
	known["required"] = func(message string, value interface{}) (interface{}, error) {
		if value == nil || value == "" {
			return nil, errors.New(message)
		}
		return value, nil
	}
	return known
}
