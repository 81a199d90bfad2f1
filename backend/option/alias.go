package option

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Alias is another backend's name under which NIXL finds the plugin (libplugin_UCX.so). Callers know that backend's
// parameters, so GORAIL shows them beside its own options. The zero Alias, and a name outside the table, show none.
type Alias struct {
	Name   string
	params []aliasParam
}

// aliasParam is a parameter of another backend.
type aliasParam struct {
	name string
	def  string // that backend's default
	to   string // the option that the parameter sets; "": GORAIL has no such option
}

// aliases lists the parameters that the stock plugins show (get_backend_options) and read, and that nixlbench and
// NIXL's Python API set. num_threads of these backends divides the work of a post. For copied memory this work is
// copying, so the parameter sets copy_threads. Workers and batches divide posting; in GORAIL the posting thread posts
// everything. UCX's error handling is always on.
var aliases = []Alias{
	{"UCX", []aliasParam{
		{"device_list", "", "devices"}, {"ucx_devices", "", "devices"}, // UCX shows the second and does not read it
		{"num_workers", "1", ""}, {"num_threads", "0", "copy_threads"}, {"split_batch_size", "1024", ""}, {"engine_config", "", ""}, // ucx.go takes it
		{"ucx_error_handling_mode", "peer", ""}, {"ucx_num_device_channels", "4", ""}, {"ucx_ep_close_force", "false", ""}}},
	{"LIBFABRIC", []aliasParam{
		{"num_threads", "0", "copy_threads"}, {"split_batch_size", "1024", ""}, {"striping_threshold", "131072", ""}, {"max_bw_per_dram_seg", "", ""}}},
	{"UCCL", []aliasParam{{"in_python", "true", ""}, {"num_cpus", "4", ""}}},
	{"Mooncake", mooncake},
	{"MOONCAKE", mooncake},
	{"GPUNETIO", []aliasParam{
		{"network_devices", "", "devices"}, {"oob_interface", "", "control_devices"}, {"gpu_devices", "", ""}, {"cuda_streams", "", ""}}},
}

// mooncake has the parameters of both names: NIXL's own is MOONCAKE, nixlbench's is Mooncake.
var mooncake = []aliasParam{{"mooncake_devices", "", "devices"}}

// Aliases returns the names with known parameters.
func Aliases() []string {
	names := make([]string, len(aliases))
	for i, a := range aliases {
		names[i] = a.Name
	}
	return names
}

// AliasOf finds the alias by the name under which NIXL requests the plugin.
func AliasOf(name string) Alias {
	if i := slices.IndexFunc(aliases, func(a Alias) bool { return a.Name == name }); i >= 0 {
		return aliases[i]
	}
	return Alias{}
}

// AliasOfFile finds the alias by the file that was loaded, .../libplugin_NAME.so.
func AliasOfFile(file string) Alias {
	name, found := strings.CutPrefix(path.Base(file), "libplugin_")
	if !found {
		return Alias{}
	}
	return AliasOf(strings.TrimSuffix(name, ".so"))
}

// Defaults returns GORAIL's options and then the other backend's parameters, for get_backend_options.
func (a Alias) Defaults() []Pair {
	pairs := Defaults()
	for _, p := range a.params {
		pairs = append(pairs, Pair{p.name, p.def})
	}
	return pairs
}

// Translated has GORAIL's parameters in place of another backend's settings, and what became of these.
type Translated struct {
	Params  map[string]string
	Taken   []string // "provider=tcp (UCX_TLS=tcp)"
	Ignored []string // what has no effect, and why: "num_workers (no GORAIL equivalent)"
	Wrong   []string // parts of UCX's settings that mean nothing here or there
}

const noEquivalent = "no GORAIL equivalent"

// Translate turns another backend's parameters into GORAIL's. A parameter with a GORAIL equivalent sets that option,
// unless the caller also sets the option itself. Under the name UCX it also takes UCX's variables and engine_config (ucx.go), and there a
// contradiction is an error that wraps ErrValue.
//
// Under any name, our own too, the parameters of all these backends count: clients pass what they pass to UCX to the backend that they
// were told to use.
//
// A backend's default counts as not set. Parameters that no backend knows stay in Params, for Parse to find. The map given is not modified.
func (a Alias) Translate(given map[string]string, on Machine) (t Translated, err error) {
	t.Params = map[string]string{}
	maps.Copy(t.Params, given)
	if a.Name == "UCX" {
		if err := t.ucx(on); err != nil {
			return Translated{}, err
		}
	}
	var ignored []string
	for _, p := range append(slices.Clone(a.params), others(a)...) {
		value, ok := t.Params[p.name]
		delete(t.Params, p.name)
		if !ok || value == "" || value == p.def {
			continue
		}
		to := rowOf(p.to)
		ours, means := to.from(value)
		switch given := t.Params[p.to]; {
		case to.Name == "":
			ignored = append(ignored, p.name+" ("+noEquivalent+")")
		case !means:
			ignored = append(ignored, p.name+" (no number of threads)")
		case given != "" && given != to.Default:
			ignored = append(ignored, p.name+" (option "+p.to+" is given)")
		case ours != "":
			t.Params[p.to] = ours
			t.Taken = append(t.Taken, fmt.Sprintf("%s=%s (%s=%s)", p.to, ours, p.name, value))
		}
	}
	slices.Sort(ignored)
	t.Ignored = append(t.Ignored, ignored...)
	return t, nil
}

// others returns the parameters of the other names that a lacks, each once.
func others(a Alias) (list []aliasParam) {
	have := func(p aliasParam) bool {
		same := func(o aliasParam) bool { return o.name == p.name }
		return slices.ContainsFunc(a.params, same) || slices.ContainsFunc(list, same)
	}
	for _, o := range aliases {
		for _, p := range o.params {
			if !have(p) {
				list = append(list, p)
			}
		}
	}
	return list
}

// from converts another backend's value to a value of the option. ok is false if the value has no meaning here.
func (r row) from(value string) (ours string, ok bool) {
	if r.Type == "list" {
		return deviceList(value), true
	}
	return threads(value)
}

// threads converts a number of threads to copy_threads, limited to maxCopyThreads.
func threads(v string) (string, bool) {
	n, err := parseInt(v)
	return strconv.Itoa(min(n, maxCopyThreads)), err == nil && n >= 0
}

// deviceList converts another backend's device list (mlx5_0:1, separated by commas or spaces, or all) to our globs. Our
// names have no number for the first port.
func deviceList(v string) string {
	list := strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == ' ' })
	for i, d := range list {
		if d == "all" {
			return ""
		}
		list[i] = strings.TrimSuffix(d, ":1")
	}
	return strings.Join(list, ",")
}
