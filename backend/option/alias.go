package option

import (
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Alias is a name of another backend under which the plugin is found (libplugin_UCX.so). Its callers know that backend's
// parameters: they are shown and taken beside GORAIL's own. The zero Alias, and a name that is not in the table, adds none.
type Alias struct {
	Name   string
	params []aliasParam
}

// aliasParam is a parameter of another backend.
type aliasParam struct {
	name string
	def  string // what that backend does without it
	to   string // the option that it sets; "": nothing here has its meaning
}

// aliases are what the stock plugins show (get_backend_options) and read, and what nixlbench and NIXL's Python API set on them.
// Their num_threads share what a post would do alone, which where memory is copied is the copying. Workers and batches divide posting,
// which here is done by whoever posts; UCX's error handling is always on.
var aliases = []Alias{
	{"UCX", []aliasParam{
		{"device_list", "", "devices"}, {"ucx_devices", "", "devices"}, // the second is shown by UCX, and not read
		{"num_workers", "1", ""}, {"num_threads", "0", "copy_threads"}, {"split_batch_size", "1024", ""}, {"engine_config", "", ""},
		{"ucx_error_handling_mode", "peer", ""}, {"ucx_num_device_channels", "4", ""}, {"ucx_ep_close_force", "false", ""}}},
	{"LIBFABRIC", []aliasParam{
		{"num_threads", "0", "copy_threads"}, {"split_batch_size", "1024", ""}, {"striping_threshold", "131072", ""}, {"max_bw_per_dram_seg", "", ""}}},
	{"UCCL", []aliasParam{{"in_python", "true", ""}, {"num_cpus", "4", ""}}},
	{"Mooncake", mooncake},
	{"MOONCAKE", mooncake},
	{"GPUNETIO", []aliasParam{
		{"network_devices", "", "devices"}, {"oob_interface", "", "control_devices"}, {"gpu_devices", "", ""}, {"cuda_streams", "", ""}}},
}

// mooncake is NIXL's own name in capitals, and nixlbench's without.
var mooncake = []aliasParam{{"mooncake_devices", "", "devices"}}

// Aliases gives the names whose parameters are known.
func Aliases() []string {
	names := make([]string, len(aliases))
	for i, a := range aliases {
		names[i] = a.Name
	}
	return names
}

// AliasOf finds the alias of the name under which NIXL asks for the plugin.
func AliasOf(name string) Alias {
	if i := slices.IndexFunc(aliases, func(a Alias) bool { return a.Name == name }); i >= 0 {
		return aliases[i]
	}
	return Alias{}
}

// AliasOfFile finds it by the file that was loaded, .../libplugin_NAME.so.
func AliasOfFile(file string) Alias {
	name, found := strings.CutPrefix(path.Base(file), "libplugin_")
	if !found {
		return Alias{}
	}
	return AliasOf(strings.TrimSuffix(name, ".so"))
}

// Defaults gives GORAIL's options and then the parameters of the other backend, for get_backend_options.
func (a Alias) Defaults() []Pair {
	pairs := Defaults()
	for _, p := range a.params {
		pairs = append(pairs, Pair{p.name, p.def})
	}
	return pairs
}

// Translate turns parameters that were meant for the other backend into GORAIL's: what has a meaning here sets an option, unless
// that option is given itself. ignored names, sorted, what was chosen and has none; a value that is just the default shown is not
// a choice. What neither backend knows stays, for Parse to find. Without an alias nothing changes. given is left alone.
func (a Alias) Translate(given map[string]string) (params map[string]string, ignored []string) {
	if a.Name == "" {
		return given, nil
	}
	params = maps.Clone(given)
	own := map[string]row{}
	for _, r := range table {
		own[r.Name] = r
	}
	for _, p := range a.params {
		value, ok := params[p.name]
		delete(params, p.name)
		if !ok || value == "" || value == p.def {
			continue
		}
		to, found := own[p.to]
		ours, means := to.from(value)
		switch given := params[p.to]; {
		case !found || !means || given != "" && given != to.Default:
			ignored = append(ignored, p.name)
		case ours != "":
			params[p.to] = ours
		}
	}
	slices.Sort(ignored)
	return params, ignored
}

// from writes another backend's value as one of the option's; not ok: it means nothing.
func (r row) from(value string) (ours string, ok bool) {
	if r.Type == "list" {
		return deviceList(value), true
	}
	return threads(value)
}

// threads writes a number of threads as copy_threads has it, which has a limit.
func threads(v string) (string, bool) {
	n, err := parseInt(v)
	return strconv.Itoa(min(n, maxCopyThreads)), err == nil && n >= 0
}

// deviceList writes a list of devices as other backends have it (mlx5_0:1, separated by commas or spaces, or all) as globs of ours,
// where the first port has no number.
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
