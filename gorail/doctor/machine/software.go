package machine

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"gorail/gorail/doctor"
	"gorail/gorail/plugindir"
)

// software finds what is installed.
func software(version string) doctor.Software {
	wheels := plugindir.FindWheels()
	return doctor.Software{Tool: version, GLIBC: glibc(), Plugin: plugin(filepath.Join(pluginDir(), "libplugin_GORAIL.so")), Wheels: wheels,
		Folder: folder(os.Getenv("NIXL_PLUGIN_DIR"), wheels)}
}

func folder(dir string, wheels plugindir.Wheels) doctor.Folder {
	f := doctor.Folder{Path: dir, Enabled: wheels.Enables()}
	if dir == "" {
		return f
	}
	var err error
	if f.Files, f.Variant, err = plugindir.Look(dir); err != nil {
		f.Err = reason(err).Error()
	}
	for i := range f.Files {
		f.Files[i].Err = reason(f.Files[i].Err)
	}
	return f
}

var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// plugin looks into a plugin without loading it.
func plugin(path string) doctor.Plugin {
	p := doctor.Plugin{Path: path}
	if abs, err := filepath.Abs(path); err == nil {
		p.Path = abs
	}
	f, err := elf.Open(path)
	if err != nil {
		p.Err = reason(err).Error()
		return p
	}
	defer f.Close()
	switch want, known := machines[runtime.GOARCH]; {
	case known && f.Machine != want:
		p.Err = fmt.Sprintf("is for %v, and this machine is %s", f.Machine, runtime.GOARCH)
	case !plugindir.Ours(path):
		p.Err = "is not GORAIL's plugin"
	}
	p.GLIBC = needs(f)
	if text, err := os.ReadFile(path); err == nil {
		if m := versionMark.FindSubmatch(text); m != nil {
			p.Version = string(m[1])
		}
	}
	return p
}

// versionMark is in cshim/plugin.cpp.
var versionMark = regexp.MustCompile(`GORAIL-plugin-version=([0-9A-Za-z.+~-]+)\x00`)

// needs is the newest glibc whose symbols a file imports.
func needs(f *elf.File) (newest string) {
	symbols, _ := f.ImportedSymbols()
	for _, s := range symbols {
		if v, ok := strings.CutPrefix(s.Version, "GLIBC_"); ok && (newest == "" || slices.Compare(parts(newest), parts(v)) < 0) {
			newest = v
		}
	}
	return newest
}

func parts(version string) (n []int) {
	for p := range strings.SplitSeq(version, ".") {
		i, _ := strconv.Atoi(p)
		n = append(n, i)
	}
	return n
}

var glibcRule = regexp.MustCompile(`GNU C Library [^\n]*version (\d+\.\d+)`)

// glibc is the version of the C library in this process; "": another library.
func glibc() string {
	file := mapped("libc.so")
	if !strings.HasPrefix(file, "/") {
		file = mapped("libc-")
	}
	text, err := os.ReadFile(file)
	if err != nil || !bytes.Contains(text, []byte("GNU C Library")) {
		return ""
	}
	if m := glibcRule.FindSubmatch(text); m != nil {
		return string(m[1])
	}
	return ""
}
