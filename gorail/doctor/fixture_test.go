package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"gorail/backend/gpu"
	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/stats"
	"gorail/backend/topo"
	"gorail/gorail/plugindir"
	"gorail/test/topotest"
)

// fixture is a machine described in lines. Lines of topotest describe its devices. Others begin with:
//
//	include NAME              the lines of backend/topo/testdata/NAME.txt
//	file NAME                 the lines of testdata/NAME.txt
//	sys|proc|dev PATH=TEXT    a file; "\n" in the text ends a line
//	pci ADDRESS FILE=TEXT     a file of a PCI function
//	env|param NAME=VALUE      an environment variable, a parameter
//	addr NAME=ADDRESS         the address of a network interface
//	host uid|nofile|memlock=N
//	lib NAME=TEXT             a library that loads; reach: the way to our memory
//	fail NAME=TEXT            what a try fails with: libfabric, verbs, cuda, reach, localdir, rails, engine, nixl, open, write; ENOSPC, EROFS
//	soft KEY=VALUE            see software
type fixture struct {
	t     *testing.T
	h     *Host
	sys   fstest.MapFS
	proc  fstest.MapFS
	dev   fstest.MapFS
	addrs map[string]string
	libs  map[string]string
	fails map[string]string
}

// load makes the host of a description.
func load(t *testing.T, lines string) *Host {
	t.Helper()
	f := &fixture{t: t, proc: fstest.MapFS{}, dev: fstest.MapFS{}, addrs: map[string]string{}, libs: map[string]string{}, fails: map[string]string{}}
	f.h = &Host{UID: 0, NoFile: 1 << 20, MemLock: Unlimited, Params: map[string]string{},
		Software: Software{Tool: "1.0", GLIBC: "2.39", Plugin: Plugin{Path: "/opt/libplugin_GORAIL.so", Version: "1.0", GLIBC: "2.28"},
			Wheels: plugindir.Wheels{Have: []string{"cu12"}, Takes: "cu12", Where: "/site"},
			Folder: Folder{Path: "/plugins", Variant: "cu12", Files: []plugindir.Entry{{Name: "GORAIL", Ours: true}, {Name: "UCX"}}}}}
	var devices, rest []string
	f.split(lines, &devices, &rest, 0)
	f.sys = topotest.Parse(t, strings.Join(devices, "\n"))
	for _, line := range rest {
		f.line(line)
	}
	f.h.Sys, f.h.Proc, f.h.Dev = f.sys, f.proc, f.dev
	f.tries()
	return f.h
}

// nvml are the GPUs of "lib nvml=STATE,STATUS,CLUSTER,CLIQUE;...".
func (f *fixture) nvml(string) (all []gpu.FabricInfo, err error) {
	if why, ok := f.fails["nvml"]; ok {
		return nil, errors.New(why)
	}
	for _, one := range strings.Split(f.libs["nvml"], ";") {
		var g gpu.FabricInfo
		var state, cluster uint8
		if n, _ := fmt.Sscanf(one, "%d,%d,%x,%d", &state, &g.Status, &cluster, &g.Clique); n == 4 {
			g.State, g.Cluster[0] = gpu.FabricState(state), cluster
			all = append(all, g)
		}
	}
	return all, nil
}

// result is the CUresult of "fail NAME=NUMBER" as an error.
func (f *fixture) result(name string) error {
	n, _ := strconv.Atoi(f.fails[name])
	if n == 0 {
		return nil
	}
	return &gpu.Fault{Why: gpu.Failed, Result: n, Call: "cuMemCreate", Text: fmt.Sprint("CUDA_ERROR_", n)}
}

func (f *fixture) split(lines string, devices, rest *[]string, depth int) {
	require.Less(f.t, depth, 4, "files that include each other")
	for line := range strings.Lines(lines) {
		line = strings.TrimSpace(line)
		word, name, _ := strings.Cut(line, " ")
		switch word {
		case "include":
			text, err := os.ReadFile("../../backend/topo/testdata/" + name + ".txt")
			require.NoError(f.t, err)
			f.split(string(text), devices, rest, depth+1)
		case "file":
			text, err := os.ReadFile("testdata/" + name + ".txt")
			require.NoError(f.t, err)
			f.split(string(text), devices, rest, depth+1)
		case "net", "rdma", "node", "gpu":
			*devices = append(*devices, line)
		case "", "#":
		default:
			*rest = append(*rest, line)
		}
	}
}

func text(s string) *fstest.MapFile {
	return &fstest.MapFile{Data: []byte(strings.ReplaceAll(s, `\n`, "\n") + "\n")}
}

// real resolves the links in a path.
func (f *fixture) real(name string) string {
	at := ""
	for part := range strings.SplitSeq(name, "/") {
		at = path.Join(at, part)
		if e := f.sys[at]; e != nil && e.Mode&fs.ModeSymlink != 0 {
			at = strings.TrimLeft(string(e.Data), "./")
		}
	}
	return at
}

// function finds a PCI function's folder, and links it from its bus.
func (f *fixture) function(address string) string {
	for name := range f.sys {
		dir, _, found := strings.Cut(name, "/"+address+"/")
		if found && strings.HasPrefix(name, "devices/") {
			dir += "/" + address
			f.sys["bus/pci/devices/"+address] = &fstest.MapFile{Data: []byte("../../../" + dir), Mode: fs.ModeSymlink | 0o777}
			return dir
		}
	}
	f.t.Fatalf("no PCI function %s", address)
	return ""
}

func (f *fixture) line(line string) {
	f.t.Helper()
	kind, more, _ := strings.Cut(line, " ")
	if kind == "pci" {
		address, file, _ := strings.Cut(more, " ")
		name, value, _ := strings.Cut(file, "=")
		f.sys[f.function(address)+"/"+name] = text(value)
		return
	}
	name, value, _ := strings.Cut(more, "=")
	switch kind {
	case "sys":
		f.sys[f.real(name)] = text(value)
	case "proc":
		if f.proc[name] = text(value); strings.HasPrefix(name, "self/ns/") {
			f.proc[name] = &fstest.MapFile{Data: []byte(value), Mode: fs.ModeSymlink | 0o777}
		}
	case "dev":
		f.dev[name] = text("")
	case "env":
		f.h.Env = append(f.h.Env, more)
	case "param":
		f.h.Params[name] = value
	case "addr":
		f.addrs[name] = value
	case "lib":
		f.libs[name] = value
		delete(f.fails, name)
	case "fail":
		f.fails[name] = value
	case "host":
		n, err := strconv.ParseUint(value, 0, 64)
		require.NoError(f.t, err, line)
		to := map[string]*uint64{"nofile": &f.h.NoFile, "memlock": &f.h.MemLock}[name]
		if name == "uid" {
			f.h.UID = int(n)
		} else {
			require.NotNil(f.t, to, line)
			*to = n
		}
	case "soft":
		f.software(name, value)
	default:
		f.t.Fatalf("not a line of a fixture: %q", line)
	}
}

func (f *fixture) software(key, value string) {
	s := &f.h.Software
	to := map[string]*string{"plugin.err": &s.Plugin.Err, "plugin.version": &s.Plugin.Version, "plugin.glibc": &s.Plugin.GLIBC, "glibc": &s.GLIBC,
		"wheel.takes": &s.Wheels.Takes, "wheel.why": &s.Wheels.Why, "wheel.own": &s.Wheels.Own, "folder": &s.Folder.Path, "folder.err": &s.Folder.Err, "folder.variant": &s.Folder.Variant}
	switch key {
	case "folder.enabled":
		s.Folder.Enabled = true
	case "wheel.err":
		s.Wheels.Err = errors.New(value)
	case "wheels":
		s.Wheels.Have = strings.Fields(value)
	case "files": // "GORAIL! UCX! POSIX": with a ! is GORAIL
		s.Folder.Files = nil
		for _, w := range strings.Fields(value) {
			s.Folder.Files = append(s.Folder.Files, plugindir.Entry{Name: strings.TrimRight(w, "!?"), Ours: strings.HasSuffix(w, "!"),
				Err: map[bool]error{true: fs.ErrNotExist}[strings.HasSuffix(w, "?")]})
		}
	default:
		require.NotNil(f.t, to[key], key)
		*to[key] = value
	}
}

// tries gives the host functions that answer as the description says.
func (f *fixture) tries() {
	fails := func(name string) error {
		why, ok := f.fails[name]
		if errno := map[string]syscall.Errno{"ENOSPC": syscall.ENOSPC, "EROFS": syscall.EROFS}[why]; errno != 0 {
			return errno
		}
		if ok {
			return errors.New(why)
		}
		return nil
	}
	loads := func(name string) func(string) (string, error) {
		return func(string) (string, error) {
			if err := fails(name); err != nil {
				return "", err
			}
			return f.libs[name], nil
		}
	}
	f.h.Try = Try{
		Open:      func(string) error { return fails("open") },
		Write:     func(string) error { return fails("write") },
		Libfabric: loads("libfabric"), Verbs: loads("verbs"), CUDA: func(string) error { return fails("cuda") },
		NVML: f.nvml, FabricMemory: func(string, []gpu.FabricInfo) error { return f.result("fabric") },
		Channels: func(string) (all, usable []string) {
			all = names(f.dev, "nvidia-caps-imex-channels")
			if fails("channel") == nil {
				usable = all
			}
			return all, usable
		},
		Reach: func(option.Options) (string, error) { return f.libs["reach"], fails("reach") },
		LocalDir: func(o option.Options) (string, error) {
			switch o.LocalDir {
			case "off":
				return "", nil
			case "auto":
				if _, ok := f.fails["localdir"]; !ok {
					return "/run/gorail", fs.ErrNotExist
				}
				return "/run/gorail", fails("localdir")
			}
			return o.LocalDir, fails("localdir")
		},
		Socket: func(folder string) error {
			if fails("socket") == nil {
				return nil
			}
			return &stats.FolderError{Path: folder, Err: fs.ErrPermission, Do: "chmod 1777 " + folder}
		},
		Rails:  f.rails,
		Engine: func(option.Options) ([]string, error) { return nil, fails("engine") },
		NIXL:   func(map[string]string) (string, error) { return "nixl_cu12-1.5.1", fails("nixl") },
	}
}

// rails lists devices as the providers would, and chooses with the plugin's own code.
func (f *fixture) rails(o option.Options) (out Rails, err error) {
	if err := map[bool]error{true: errors.New(f.fails["rails"])}[f.fails["rails"] != ""]; err != nil {
		return out, err
	}
	s := &checker{Report: &Report{}, Host: f.h, machine: topo.Read(f.sys), opt: o}
	return s.chosenOf(s.described([]string{provider.Auto}, func(name string) (string, bool) { return f.addrs[name], f.addrs[name] != "" }))
}
