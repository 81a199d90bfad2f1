// Package deploy checks examples/deploy against the code: options, ports, names and commands. No cluster and no docker are needed.
package deploy

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"

	"gorail/test/testenv"
)

// object has the fields that GORAIL cares about, of all the kinds in the manifests.
type object struct {
	Kind     string
	Metadata struct {
		Name   string
		Labels map[string]string
	}
	Data map[string]yaml.Node // of a ConfigMap
	Spec spec
}

type spec struct {
	Selector    selector
	Ports       []port
	PodSelector selector `yaml:"podSelector"` // of a NetworkPolicy
	Ingress     []struct{ Ports []port }

	Template *struct{ Spec spec } // of a DaemonSet

	Containers            []container // of a Pod
	InitContainers        []container `yaml:"initContainers"`
	HostNetwork           bool        `yaml:"hostNetwork"`
	HostIPC               bool        `yaml:"hostIPC"`
	HostPID               bool        `yaml:"hostPID"`
	ShareProcessNamespace bool        `yaml:"shareProcessNamespace"`
	SecurityContext       security    `yaml:"securityContext"`
	Volumes               []struct {
		Name     string
		HostPath struct{ Path, Type string } `yaml:"hostPath"`
	}
}

// selector is that of a Service, or that of another kind.
type selector struct {
	Labels      map[string]string `yaml:",inline"`
	MatchLabels map[string]string `yaml:"matchLabels"`
}

type port struct {
	Port    uint16
	EndPort uint16 `yaml:"endPort"`
}

type container struct {
	Name    string
	Command []string
	EnvFrom []struct {
		ConfigMapRef struct{ Name string } `yaml:"configMapRef"`
	} `yaml:"envFrom"`
	Env []struct {
		Name  string
		Value yaml.Node
	}
	Resources       struct{ Limits map[string]string }
	SecurityContext security `yaml:"securityContext"`
	VolumeMounts    []struct {
		Name      string
		MountPath string `yaml:"mountPath"`
		ReadOnly  bool   `yaml:"readOnly"`
	} `yaml:"volumeMounts"`
}

type security struct {
	RunAsNonRoot             bool `yaml:"runAsNonRoot"`
	RunAsUser                int  `yaml:"runAsUser"`
	RunAsGroup               int  `yaml:"runAsGroup"`
	Privileged               bool
	AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
	Capabilities             struct{ Add, Drop []string }
}

// variants are the manifests in each form that their comments name.
var variants = []struct {
	name, file string
	rdma       bool
}{
	{"RDMA", "kubernetes.yaml", true},
	{"Ethernet", "kubernetes.yaml", false},
	{"one host", "one-host.yaml", true},
	{"one node", "one-node.yaml", true},
}

func read(file string) (string, error) {
	b, err := os.ReadFile(filepath.Join(testenv.Root(), "examples/deploy", file))
	return string(b), err
}

// load parses a manifest. Without rdma it leaves out the lines that end in "# rdma", as the manifest's first lines say.
func load(file string, rdma bool) (list []object, err error) {
	text, err := read(file)
	if err != nil {
		return nil, err
	}
	var kept bytes.Buffer
	for line := range strings.Lines(text) {
		if rdma || !strings.HasSuffix(strings.TrimSpace(line), "# rdma") {
			kept.WriteString(line)
		}
	}
	for d := yaml.NewDecoder(&kept); ; {
		var o object
		if err := d.Decode(&o); errors.Is(err, io.EOF) {
			return list, nil
		} else if err != nil {
			return nil, err
		}
		list = append(list, o)
	}
}

// of returns the objects of a kind.
func of(list []object, kind string) (found []object) {
	for _, o := range list {
		if o.Kind == kind {
			found = append(found, o)
		}
	}
	return found
}

// environment returns a container's variables, as Kubernetes joins them: those of env win.
func environment(list []object, c container) map[string]string {
	env := map[string]string{}
	for _, from := range c.EnvFrom {
		for _, m := range of(list, "ConfigMap") {
			if m.Metadata.Name == from.ConfigMapRef.Name {
				for name, value := range m.Data {
					env[name] = value.Value
				}
			}
		}
	}
	for _, e := range c.Env {
		env[e.Name] = e.Value.Value
	}
	return env
}
