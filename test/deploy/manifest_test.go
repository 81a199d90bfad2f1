package deploy

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"gorail/backend/option"
)

// parsed returns the options of a container's variables.
func parsed(t *testing.T, list []object, c container) option.Options {
	t.Helper()
	env := environment(list, c)
	o, _, err := option.Parse(nil, func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	require.NoError(t, err)
	return o
}

// each runs a test for each container of each variant.
func each(t *testing.T, run func(t *testing.T, list []object, pod object, c container)) {
	for _, v := range variants {
		list, err := load(v.file, v.rdma)
		require.NoError(t, err, v.file)
		require.NotEmpty(t, of(list, "Pod"))
		for _, pod := range of(list, "Pod") {
			for _, c := range pod.Spec.Containers {
				t.Run(v.name+"/"+c.Name, func(t *testing.T) { run(t, list, pod, c) })
			}
		}
	}
}

// TestOptions: each GORAIL_ variable is one of the table, and its value is allowed. A value is a string to YAML 1.1, too,
// where on and off are not: Kubernetes refuses other values.
func TestOptions(t *testing.T) {
	each(t, func(t *testing.T, list []object, _ object, c container) {
		var ours []string
		for name, value := range environment(list, c) {
			if strings.HasPrefix(name, "GORAIL_") {
				ours = append(ours, name+"="+value)
			}
		}
		require.NotEmpty(t, ours)
		require.Empty(t, option.UnknownVariables(ours))
		parsed(t, list, c)
	})
	for _, v := range variants {
		list, err := load(v.file, v.rdma)
		require.NoError(t, err)
		values := map[string]yaml.Node{}
		for _, o := range list {
			for name, value := range o.Data {
				values[name] = value
			}
			for _, c := range o.Spec.Containers {
				for _, e := range c.Env {
					values[e.Name] = e.Value
				}
			}
		}
		for name, value := range values {
			quoted := value.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0
			bare := regexp.MustCompile(`(?i)^(on|off|yes|no|y|n)$`).MatchString(value.Value)
			require.True(t, value.Tag == "!!str" && (quoted || !bare), "%s: quote the value %s of %s", v.file, value.Value, name)
		}
	}
}

// TestPorts: the NetworkPolicy passes the ports of the options and the Service's, and no others, to every pod.
func TestPorts(t *testing.T) {
	for _, v := range variants[:2] {
		list, err := load(v.file, v.rdma)
		require.NoError(t, err)
		policies, services := of(list, "NetworkPolicy"), of(list, "Service")
		require.Len(t, policies, 1)
		require.Len(t, policies[0].Spec.Ingress, 1)
		require.Len(t, services, 1)
		for _, pod := range of(list, "Pod") {
			for label, value := range policies[0].Spec.PodSelector.MatchLabels {
				require.Equal(t, value, pod.Metadata.Labels[label], "the policy does not select %s", pod.Metadata.Name)
			}
			o := parsed(t, list, pod.Spec.Containers[0])
			require.NotZero(t, o.ControlPort.First)
			require.NotZero(t, o.DataPort.First)
			want := append([]port{}, services[0].Spec.Ports...)
			for _, r := range []option.PortRange{o.ControlPort, o.DataPort} {
				want = append(want, port{Port: r.First, EndPort: r.Last})
			}
			require.ElementsMatch(t, want, policies[0].Spec.Ingress[0].Ports, v.name)
		}
	}
}

// TestServiceLeads: the Service has decode's name, as prefill asks for it, selects decode, and has the port of its command.
func TestServiceLeads(t *testing.T) {
	for _, file := range []string{"kubernetes.yaml", "one-node.yaml"} {
		t.Run(file, func(t *testing.T) { serviceLeads(t, file) })
	}
}

func serviceLeads(t *testing.T, file string) {
	list, err := load(file, true)
	require.NoError(t, err)
	service := of(list, "Service")[0]
	var selected []string
	for _, pod := range of(list, "Pod") {
		fits := true
		for label, value := range service.Spec.Selector.Labels {
			fits = fits && pod.Metadata.Labels[label] == value
		}
		if fits {
			selected = append(selected, pod.Metadata.Name)
		}
	}
	require.Equal(t, []string{"decode"}, selected)
	addresses := map[string]string{}
	for _, pod := range of(list, "Pod") {
		command := pod.Spec.Containers[0].Command
		addresses[pod.Metadata.Name] = command[len(command)-1]
	}
	require.Equal(t, map[string]string{"decode": "0.0.0.0:7777", "prefill": service.Metadata.Name + ":7777"}, addresses)
	require.Equal(t, []port{{Port: 7777}}, service.Spec.Ports)
}

// TestRights: containers are not root, of the image's user, and have no capability, which would be void for that user.
func TestRights(t *testing.T) {
	uid, gid := imageUser(t)
	each(t, func(t *testing.T, _ []object, pod object, c container) {
		user := c.SecurityContext
		if pod.Spec.SecurityContext.RunAsUser != 0 {
			user = pod.Spec.SecurityContext
		}
		require.True(t, user.RunAsNonRoot)
		require.Equal(t, []int{uid, gid}, []int{user.RunAsUser, user.RunAsGroup})
		require.Equal(t, []string{"ALL"}, c.SecurityContext.Capabilities.Drop)
		require.Empty(t, c.SecurityContext.Capabilities.Add)
		require.NotNil(t, c.SecurityContext.AllowPrivilegeEscalation)
		require.False(t, *c.SecurityContext.AllowPrivilegeEscalation)
		require.False(t, pod.Spec.HostIPC || pod.Spec.HostPID || pod.Spec.HostNetwork || c.SecurityContext.Privileged)
	})
}

// TestVariants: rdma's lines and no others differ. Shared memory has one pid namespace, and one user for all containers.
func TestVariants(t *testing.T) {
	for _, v := range variants[:2] {
		list, err := load(v.file, v.rdma)
		require.NoError(t, err)
		for _, pod := range of(list, "Pod") {
			c := pod.Spec.Containers[0]
			_, hca := c.Resources.Limits["rdma/hca"]
			require.Equal(t, v.rdma, hca)
			want := []string{"tcp", "sm"}
			if v.rdma {
				want = []string{"verbs", "sm"}
			}
			require.Equal(t, want, parsed(t, list, c).Provider)
		}
	}
	list, err := load("one-host.yaml", true)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.True(t, list[0].Spec.ShareProcessNamespace)
	require.Len(t, list[0].Spec.Containers, 2)
	for _, c := range list[0].Spec.Containers {
		o := parsed(t, list, c)
		require.Equal(t, "sm", o.Provider[0])
		require.True(t, o.Ptracer)
		require.Zero(t, c.SecurityContext.RunAsUser, "the pod's user counts, for all containers")
	}
}

// TestOneNode: the pods of one node are there where decode is, mount one folder of the node at the default place of local_dir, and the init container opens it
// for users that are not root, with no capability.
func TestOneNode(t *testing.T) {
	list, err := load("one-node.yaml", true)
	require.NoError(t, err)
	pods := of(list, "Pod")
	require.Len(t, pods, 2)
	for _, pod := range pods {
		var folder string
		for _, v := range pod.Spec.Volumes {
			if v.HostPath.Path != "" {
				require.Equal(t, meetFolder, v.HostPath.Path)
				require.Equal(t, "DirectoryOrCreate", v.HostPath.Type)
				folder = v.Name
			}
		}
		require.NotEmpty(t, folder)
		for _, c := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
			mounted := map[string]string{}
			for _, m := range c.VolumeMounts {
				mounted[m.Name] = m.MountPath
			}
			require.Equal(t, meetFolder, mounted[folder], c.Name)
			require.Equal(t, []string{"ALL"}, c.SecurityContext.Capabilities.Drop)
			require.False(t, *c.SecurityContext.AllowPrivilegeEscalation)
			require.False(t, c.SecurityContext.Privileged)
		}
		require.Equal(t, []string{"sm", "tcp"}, parsed(t, list, pod.Spec.Containers[0]).Provider)
	}
	opensFolder(t, pods[0].Spec)
}

// opensFolder: the init container lets users that are not root make sockets in the node's folder, which is root's, and has no other right.
func opensFolder(t *testing.T, pod spec) {
	t.Helper()
	require.Len(t, pod.InitContainers, 1)
	c := pod.InitContainers[0]
	require.Equal(t, []string{"chmod", "1777", meetFolder}, c.Command)
	require.Zero(t, c.SecurityContext.RunAsUser)
	require.Equal(t, []string{"ALL"}, c.SecurityContext.Capabilities.Drop)
	require.NotNil(t, c.SecurityContext.AllowPrivilegeEscalation)
	require.False(t, *c.SecurityContext.AllowPrivilegeEscalation)
	require.Len(t, c.VolumeMounts, 1)
	require.Equal(t, meetFolder, c.VolumeMounts[0].MountPath)
	for _, v := range pod.Volumes {
		if v.Name == c.VolumeMounts[0].Name {
			require.Equal(t, meetFolder, v.HostPath.Path)
			require.Equal(t, "DirectoryOrCreate", v.HostPath.Type)
			return
		}
	}
	t.Fatalf("no volume is called %s", c.VolumeMounts[0].Name)
}

// meetFolder is the default of local_dir.
const meetFolder = "/run/gorail"

// TestVLLM: the servers of vllm.yaml have options that exist, roles that make a pair over GORAIL, and the ports that their Services and the router lead to.
func TestVLLM(t *testing.T) {
	for _, rdma := range []bool{false, true} {
		list, err := load("vllm.yaml", rdma)
		require.NoError(t, err)
		commands := map[string][]string{}
		for _, d := range of(list, "Deployment") {
			c := d.Spec.Template.Spec.Containers[0]
			commands[d.Metadata.Name] = c.Command
			if d.Metadata.Name == "router" {
				continue
			}
			var ours []string
			for name, value := range environment(list, c) {
				if strings.HasPrefix(name, "GORAIL_") {
					ours = append(ours, name+"="+value)
				}
			}
			require.Empty(t, option.UnknownVariables(ours))
			o := parsed(t, list, c)
			require.Equal(t, rdma, o.Provider[0] == "verbs")
			_, hca := c.Resources.Limits["rdma/hca"]
			require.Equal(t, rdma, hca)
			require.Equal(t, "1", c.Resources.Limits["nvidia.com/gpu"])
			require.Equal(t, meetFolder, c.VolumeMounts[0].MountPath)
			opensFolder(t, d.Spec.Template.Spec)
		}
		inside := of(list, "NetworkPolicy")[0]
		require.Equal(t, map[string]string{"app": "vllm"}, inside.Spec.PodSelector.MatchLabels)
		pod := of(list, "Deployment")[0].Spec.Template.Spec.Containers[0]
		o, side := parsed(t, list, pod), environment(list, pod)["VLLM_NIXL_SIDE_CHANNEL_PORT"]
		require.Equal(t, "5600", side)
		require.ElementsMatch(t, []port{{Port: 8000}, {5600, 5615}, {o.ControlPort.First, o.ControlPort.Last}, {o.DataPort.First, o.DataPort.Last}}, inside.Spec.Ingress[0].Ports)
		last := func(name string) string { return commands[name][len(commands[name])-1] }
		for name, role := range map[string]string{"prefill": "kv_producer", "decode": "kv_consumer"} {
			var config struct {
				Role  string                      `json:"kv_role"`
				Extra struct{ Backends []string } `json:"kv_connector_extra_config"`
			}
			require.NoError(t, json.Unmarshal([]byte(last(name)), &config))
			require.Equal(t, role, config.Role)
			require.Equal(t, []string{"GORAIL"}, config.Extra.Backends)
		}
		for _, s := range of(list, "Service") {
			require.Equal(t, map[string]string{"app": "vllm", "role": s.Metadata.Name}, s.Spec.Selector.Labels)
			if s.Metadata.Name == "router" {
				require.Contains(t, commands["router"], fmt.Sprint("0.0.0.0:", s.Spec.Ports[0].Port))
				continue
			}
			require.Contains(t, strings.Join(commands[s.Metadata.Name], " "), fmt.Sprint("--port ", s.Spec.Ports[0].Port))
			require.Contains(t, strings.Join(commands["router"], " "), fmt.Sprintf("--%s %s:%d", s.Metadata.Name, s.Metadata.Name, s.Spec.Ports[0].Port))
		}
	}
}
