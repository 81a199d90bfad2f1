package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/cmd/gorail/doctor"
	"gorail/test/skip"
	"gorail/test/testenv"
)

// built is the tool as the build made it.
func built(t *testing.T, env testenv.Env) string {
	path := filepath.Join(env.PluginDir, "gorail")
	_, err := os.Stat(path)
	require.NoError(t, err, "make build")
	return path
}

// examine runs the built tool, and returns its report and exit status.
func examine(t *testing.T, env testenv.Env, vars []string, args ...string) (*doctor.Report, int) {
	t.Helper()
	c := exec.Command(built(t, env), append([]string{"doctor", "--json"}, args...)...)
	c.Env = append(os.Environ(), vars...)
	var log strings.Builder
	c.Stderr = &log
	out, err := c.Output()
	code := 0
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		code = e.ExitCode()
	} else {
		require.NoError(t, err)
	}
	r := &doctor.Report{}
	require.NoError(t, json.Unmarshal(out, r), "%s%s", out, log.String())
	return r, code
}

func find(r *doctor.Report, id string) (out []doctor.Check) {
	for _, c := range r.Checks {
		if c.ID == id {
			out = append(out, c)
		}
	}
	return out
}

func firstFail(r *doctor.Report) doctor.Check {
	for _, c := range r.Checks {
		if c.Status == doctor.Fail {
			return c
		}
	}
	return doctor.Check{}
}

// TestDoctor: the built tool finds this machine well. A NIXL agent loads the plugin, and a second process reads memory.
func TestDoctor(t *testing.T) {
	env := needs(t)
	began := time.Now()
	r, code := examine(t, env, []string{"NIXL_PLUGIN_DIR=" + folder(t, env)})
	require.Zero(t, code, "%+v", firstFail(r))
	require.Equal(t, doctor.SchemaVersion, r.Version)
	for _, id := range []string{"plugin", "version", "plugin-dir", "process-vm", "engine", "nixl"} {
		got := find(r, id)
		require.NotEmpty(t, got, id)
		require.Equal(t, doctor.Pass, got[len(got)-1].Status, "%+v", got)
	}
	require.NotContains(t, find(r, "version")[0].Text, "does not say")
	require.Contains(t, find(r, "plugin-dir")[0].Text, "UCX")
	t.Logf("%d checks in %v", len(r.Checks), time.Since(began).Round(time.Millisecond))
}

// TestDoctorBroken: real causes on this machine, and the first FAIL of each.
func TestDoctorBroken(t *testing.T) {
	env := needs(t)
	here := folder(t, env)
	empty := t.TempDir()
	for name, c := range map[string]struct {
		vars        []string
		args        []string
		first, says string
	}{
		"device":    {[]string{"GORAIL_DEVICES=nosuch7"}, nil, "devices-option", "nosuch7"},
		"value":     {nil, []string{"--param", "max_rails=0"}, "options", "max_rails"},
		"libfabric": {[]string{"GORAIL_PROVIDER=libfabric:tcp", "GORAIL_LIBFABRIC_PATH=/nowhere/libfabric.so"}, nil, "libfabric", "/nowhere/libfabric.so"},
		"folder":    {[]string{"NIXL_PLUGIN_DIR=" + empty}, nil, "plugin-dir", "no GORAIL"},
		"disk":      {[]string{"GORAIL_STATS_FILE=/proc/stats.json"}, nil, "disk", "/proc"},
	} {
		t.Run(name, func(t *testing.T) {
			r, code := examine(t, env, append([]string{"NIXL_PLUGIN_DIR=" + here}, c.vars...), c.args...)
			require.Equal(t, 1, code)
			got := firstFail(r)
			require.Equal(t, c.first, got.ID, got.Text)
			require.Contains(t, got.Text, c.says)
			require.NotEmpty(t, got.Remedy)
		})
	}
}

// TestDoctorDescriptors: a process that may open 64 files.
func TestDoctorDescriptors(t *testing.T) {
	env := needs(t)
	c := exec.Command("sh", "-c", `ulimit -n 64 && exec "$0" doctor --json`, built(t, env))
	out, err := c.Output()
	e, ok := errors.AsType[*exec.ExitError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, 1, e.ExitCode(), "%s", e.Stderr)
	r := &doctor.Report{}
	require.NoError(t, json.Unmarshal(out, r))
	require.Equal(t, "nofile", firstFail(r).ID, "%+v", firstFail(r))
}

// TestDoctorVersion: a plugin of another version beside this tool, and a file that is no plugin of ours.
func TestDoctorVersion(t *testing.T) {
	env := needs(t)
	text, err := os.ReadFile(filepath.Join(env.PluginDir, "libplugin_GORAIL.so"))
	require.NoError(t, err)
	const mark = "GORAIL-plugin-version="
	at := bytes.Index(text, []byte(mark))
	require.Positive(t, at)
	text[at+len(mark)] = '9'
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "libplugin_GORAIL.so"), text, 0o755))
	r, code := examine(t, env, []string{"NIXL_PLUGIN_DIR=" + dir})
	require.Equal(t, 1, code)
	require.Equal(t, "version", firstFail(r).ID, "%+v", firstFail(r))
	require.Contains(t, firstFail(r).Text, "is version 9")

	require.NoError(t, os.WriteFile(filepath.Join(dir, "libplugin_GORAIL.so"), text[:4096], 0o755))
	r, code = examine(t, env, []string{"NIXL_PLUGIN_DIR=" + dir})
	require.Equal(t, 1, code)
	require.Equal(t, "plugin-dir", firstFail(r).ID, "%+v", firstFail(r))
}

// filtered runs f in a thread whose children may not call process_vm_readv, as in some containers. The thread ends with it.
func filtered(t *testing.T, f func()) {
	done := make(chan error)
	go func() {
		var err error
		defer func() { done <- err }() // also if f fails the test
		runtime.LockOSThread()
		filter := []unix.SockFilter{
			{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the call's number
			{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_PROCESS_VM_READV, Jt: 1},
			{Code: unix.BPF_RET, K: 0x7fff0000},                      // SECCOMP_RET_ALLOW
			{Code: unix.BPF_RET, K: 0x00050000 | uint32(unix.EPERM)}, // SECCOMP_RET_ERRNO
		}
		program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
		err = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		if err == nil {
			err = unix.Prctl(unix.PR_SET_SECCOMP, 2, uintptr(unsafe.Pointer(&program)), 0, 0) // SECCOMP_MODE_FILTER
		}
		if err == nil {
			f()
		}
	}()
	skip.OrFail(t, <-done)
}

// TestDoctorSeccomp: a filter forbids the call that the rail sm needs. Without sm nothing fails.
func TestDoctorSeccomp(t *testing.T) {
	env := needs(t)
	vars := []string{"NIXL_PLUGIN_DIR=" + folder(t, env)}
	var r *doctor.Report
	var code int
	filtered(t, func() { r, code = examine(t, env, vars) })
	require.Equal(t, 1, code)
	require.Equal(t, "seccomp", firstFail(r).ID, "%+v", firstFail(r))
	filtered(t, func() { r, code = examine(t, env, append(vars, "GORAIL_PROVIDER=tcp")) })
	require.Zero(t, code, "%+v", firstFail(r))
}

// TestDoctorUsage: wrong arguments give exit status 2.
func TestDoctorUsage(t *testing.T) {
	for _, args := range [][]string{{"--nosuch"}, {"extra"}, {"--param", "devices"}, {"--peer", "a:1", "--listen", ":1"}} {
		_, _, err := gorail(append([]string{"doctor"}, args...)...)
		e, ok := errors.AsType[exitError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, 2, e.code, "%v", err)
		require.NotEmpty(t, e.text)
	}
}
