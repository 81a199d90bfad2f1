package option

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAliasOfFile(t *testing.T) {
	for file, want := range map[string]string{
		"/d/plugins/libplugin_UCX.so": "UCX", "libplugin_Mooncake.so": "Mooncake", "/d/libplugin_GORAIL.so": "", "/d/UCX.so": "",
		"": "", "/d/libplugin_FOO.so": "", "/libplugin_UCX.so/libplugin_LIBFABRIC.so": "LIBFABRIC",
	} {
		assert.Equal(t, want, AliasOfFile(file).Name, file)
	}
	for _, name := range Aliases() {
		assert.Equal(t, name, AliasOf(name).Name)
	}
}

// TestAliasShows: an alias shows the other backend's parameters and all our options, and no name twice.
func TestAliasShows(t *testing.T) {
	for name, wants := range map[string][]string{
		"UCX":       {"num_workers", "num_threads", "device_list", "ucx_error_handling_mode", "split_batch_size", "engine_config"},
		"LIBFABRIC": {"num_threads"}, "UCCL": {"in_python"}, "Mooncake": {"mooncake_devices"}, "MOONCAKE": {"mooncake_devices"},
		"GPUNETIO": {"network_devices", "gpu_devices", "oob_interface"},
	} {
		shown := map[string]string{}
		for _, p := range AliasOf(name).Defaults() {
			assert.NotContains(t, shown, p.Name, name)
			shown[p.Name] = p.Value
		}
		for _, p := range append(Defaults(), Pair{Name: wants[0]}) {
			assert.Contains(t, shown, p.Name, name)
		}
		for _, w := range wants {
			assert.Contains(t, shown, w, name)
		}

		// Handing all of it back sets nothing, and nothing is ignored.
		all, err := AliasOf(name).Translate(shown, bare)
		require.NoError(t, err, name)
		assert.Equal(t, Translated{Params: all.Params}, all, name)
		o, unknown, err := Parse(all.Params, nil)
		require.NoError(t, err, name)
		assert.Empty(t, unknown, name)
		assert.Equal(t, wantDefaults, o, name)
	}
	assert.Equal(t, Defaults(), Alias{}.Defaults())
}

func TestAliasTranslates(t *testing.T) {
	for _, tt := range []struct {
		alias   string
		given   map[string]string
		params  map[string]string
		ignored []string
	}{
		// As nixlbench and NIXL's gtest create a UCX backend.
		{"UCX", map[string]string{"num_workers": "2", "num_threads": "0", "device_list": "mlx5_0:1, mlx5_1:2", "engine_config": ""},
			map[string]string{"devices": "mlx5_0,mlx5_1:2,memory"}, []string{"num_workers"}},
		{"LIBFABRIC", map[string]string{"device_list": "mlx5_0:1, mlx5_1:2", "engine_config": "TLS=tcp"}, map[string]string{"devices": "mlx5_0,mlx5_1:2"}, []string{"engine_config"}},
		{"UCX", map[string]string{"device_list": "all", "num_threads": "4", "xfer_timeout": "9s", "made_up": "1"},
			map[string]string{"xfer_timeout": "9s", "copy_threads": "4", "made_up": "1"}, nil},
		// An option handed back with its default counts as not given. An option that is given wins over the parameter.
		{"LIBFABRIC", map[string]string{"num_threads": "8", "copy_threads": "-1"}, map[string]string{"copy_threads": "8"}, nil},
		{"LIBFABRIC", map[string]string{"num_threads": "8", "copy_threads": "2"}, map[string]string{"copy_threads": "2"}, []string{"num_threads"}},
		{"UCX", map[string]string{"num_threads": "64"}, map[string]string{"copy_threads": "15"}, nil},
		{"UCX", map[string]string{"num_threads": "many"}, map[string]string{}, []string{"num_threads"}},
		{"UCX", map[string]string{"num_threads": "-2"}, map[string]string{}, []string{"num_threads"}},
		{"GORAIL", map[string]string{"device_list": "mlx5_0:1", "devices": "eth0"}, map[string]string{"devices": "eth0"}, []string{"device_list"}},
		{"UCX", map[string]string{"ucx_error_handling_mode": "none", "split_batch_size": "64", "engine_config": "TLS=rc"},
			map[string]string{"provider": "verbs"}, []string{"split_batch_size", "ucx_error_handling_mode"}},
		{"GPUNETIO", map[string]string{"network_devices": "mlx5_0", "oob_interface": "eth0", "gpu_devices": "0"},
			map[string]string{"devices": "mlx5_0", "control_devices": "eth0"}, []string{"gpu_devices"}},
		{"UCCL", map[string]string{"in_python": "0", "num_cpus": "4"}, map[string]string{}, []string{"in_python"}},
		// Under our own name, as NIXL's agent_example gives what it gives to UCX, and a typo.
		{"", map[string]string{"num_workers": "2", "num_threads": "2", "device_list": "mlx5_0:1"},
			map[string]string{"copy_threads": "2", "devices": "mlx5_0"}, []string{"num_workers"}},
		{"GORAIL", map[string]string{"ucx_error_handling_mode": "peer", "made_up": "1"}, map[string]string{"made_up": "1"}, nil},
		{"LIBFABRIC", map[string]string{"num_workers": "4", "split_batch_size": "1024"}, map[string]string{}, []string{"num_workers"}},
	} {
		before := len(tt.given)
		got, err := AliasOf(tt.alias).Translate(tt.given, machine())
		assert.NoError(t, err)
		assert.Equal(t, tt.params, got.Params)
		_, unknown, err := Parse(got.Params, nil)
		assert.NoError(t, err)
		assert.Equal(t, tt.given["made_up"] != "", len(unknown) == 1)
		for i, text := range got.Ignored {
			name, why, _ := strings.Cut(text, " (")
			got.Ignored[i] = name
			assert.NotEmpty(t, why, text)
		}
		assert.Equal(t, tt.ignored, got.Ignored)
		assert.Len(t, tt.given, before, "the caller's map is left alone")
	}
}

// TestAliasTable: a parameter sets an existing option, which is a list of devices or the number of copy threads. It
// hides none of our options. The generated text names the option that it sets.
func TestAliasTable(t *testing.T) {
	own := map[string]Info{}
	for _, r := range table {
		own[r.Name] = r.Info
	}
	for _, a := range aliases {
		for _, p := range a.params {
			assert.NotContains(t, own, p.name)
			if p.to != "" && p.to != "copy_threads" {
				assert.Equal(t, "list", own[p.to].Type, "%s: %s", a.Name, p.name)
			}
			assert.Equal(t, p.name == "num_threads", p.to == "copy_threads", "%s: %s", a.Name, p.name)
			if p.to != "" {
				assert.Regexp(t, fmt.Sprintf("(?m)^\\| %s \\|.* `%s`[^,|]* sets `%s`", a.Name, p.name, p.to), string(Markdown()))
			}
		}
	}
}
