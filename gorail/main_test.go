package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/gorail/doctor/machine"
	"gorail/gorail/side"
	"gorail/gorail/study/kv/node"
	"gorail/gorail/study/peers/crowd"
	"gorail/gorail/study/week/life"
	"gorail/gorail/study/weights/rank"
	"gorail/nixlapi"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// TestMain lets the test binary run as a worker, as a process of a benchmark or of a study, or as the second process of doctor.
func TestMain(m *testing.M) {
	worker.MaybeRun()
	if len(os.Args) > 1 {
		serve := map[string]func() error{side.Command: side.Main, machine.Command: machine.Child, node.Command: node.Main, rank.Command: rank.Main, crowd.Command: crowd.Main, life.Command: life.Main}[os.Args[1]]
		if serve != nil {
			if err := serve(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			os.Exit(0)
		}
	}
	flag.Parse()
	if testing.Short() {
		short[1] = "5ms"
	}
	os.Exit(m.Run())
}

// gorail runs the tool and returns its output.
func gorail(args ...string) (out, log string, err error) {
	var o, l strings.Builder
	err = run(args, &o, &l)
	return o.String(), l.String(), err
}

// folder makes a plugin folder with the tool, and returns the value of NIXL_PLUGIN_DIR.
func folder(t *testing.T, env testenv.Env, as ...string) string {
	dir := filepath.Join(t.TempDir(), "with space")
	args := []string{"plugins", "--dir", dir, "--wheel", env.WheelDir, "--plugin", filepath.Join(env.PluginDir, "libplugin_GORAIL.so"), "--as", strings.Join(as, ",")}
	if len(as) == 0 {
		args = args[:len(args)-2]
	}
	for range 2 {
		out, _, err := gorail(args...)
		require.NoError(t, err)
		require.Equal(t, "export NIXL_PLUGIN_DIR='"+dir+"/plugins'\n", out)
	}
	return filepath.Join(dir, "plugins")
}

// needs returns the environment for tests that need GORAIL and a wheel.
func needs(t *testing.T) testenv.Env {
	env := testenv.Need(t)
	if env.Backend != "GORAIL" {
		t.Skip("these tests are about GORAIL")
	}
	t.Setenv("GORAIL_PLUGIN_DIR", env.PluginDir)
	return env
}

// TestPluginFolder: GORAIL and the wheel's own plugins, each with its libraries, load from the folder.
func TestPluginFolder(t *testing.T) {
	env := needs(t)
	env.PluginDir = folder(t, env)
	for backend, lib := range map[string]string{"GORAIL": "libplugin_GORAIL.so", "UCX": "libplugin_UCX.so", "POSIX": "libplugin_POSIX.so"} {
		w := worker.Start(t, worker.Options{Env: env})
		w.Agent(worker.AgentConfig{Name: "a", Backend: backend})
		require.Contains(t, mapped(t, w), lib)
	}
}

// TestPluginFolderFrom: the same from a folder in the layout of Dynamo's images, which NIXL_PLUGIN_DIR names. Made again, with
// NIXL_PLUGIN_DIR naming the made folder, the folder stays the same.
func TestPluginFolderFrom(t *testing.T) {
	env := needs(t)
	lib := filepath.Join(t.TempDir(), "lib64")
	require.NoError(t, os.MkdirAll(lib, 0o755))
	for _, pattern := range []string{".nixl_*.mesonpy.libs/*.so*", "nixl_*.libs/*.so*", "nixl_*.libs/ucx"} {
		found, err := filepath.Glob(filepath.Join(env.WheelDir, pattern))
		require.NoError(t, err)
		require.NotEmpty(t, found)
		for _, path := range found {
			require.NoError(t, os.Symlink(path, filepath.Join(lib, filepath.Base(path))))
		}
	}
	own, err := filepath.Glob(filepath.Join(env.WheelDir, "nixl_*.libs/nixl"))
	require.NoError(t, err)
	require.Len(t, own, 1)
	plugins := filepath.Join(lib, "plugins")
	require.NoError(t, os.CopyFS(plugins, os.DirFS(own[0])))

	dir := filepath.Join(t.TempDir(), "d")
	t.Setenv("NIXL_PLUGIN_DIR", plugins)
	for range 2 {
		out, log, err := gorail("plugins", "--dir", dir)
		require.NoError(t, err)
		require.Equal(t, "export NIXL_PLUGIN_DIR="+dir+"/plugins\n", out)
		require.Contains(t, log, "the plugins in "+plugins)
		t.Setenv("NIXL_PLUGIN_DIR", dir+"/plugins")
	}
	t.Setenv("NIXL_PLUGIN_DIR", "")
	env.PluginDir = dir + "/plugins"
	for _, backend := range []string{"GORAIL", "UCX", "POSIX"} {
		w := worker.Start(t, worker.Options{Env: env})
		w.Agent(worker.AgentConfig{Name: "a", Backend: backend})
		require.Contains(t, mapped(t, w), "libplugin_"+backend+".so")
	}
}

// TestAlias: a request for UCX gets GORAIL with UCX's parameters, and the bytes arrive. No UCX is loaded.
func TestAlias(t *testing.T) {
	env := needs(t)
	env.PluginDir = folder(t, env, "UCX", "Mooncake")
	params := map[string]string{"num_workers": "2", "num_threads": "0", "device_list": "lo", "ucx_error_handling_mode": "peer", "engine_config": "",
		"xfer_timout": "9s"}
	var sides []*worker.Agent
	var bufs []*worker.Buf
	for i, name := range []string{"initiator", "target"} {
		w := worker.Start(t, worker.Options{Env: env, Setenv: []string{"GORAIL_LOG=info", "GORAIL_DEVICE=lo"}})
		a := w.Agent(worker.AgentConfig{Name: name, Backend: "UCX", Params: params})
		sides, bufs = append(sides, a), append(bufs, a.Buffer(1<<20, uint64(i+1)))
		maps := mapped(t, w)
		require.Contains(t, maps, "libplugin_GORAIL.so")
		require.NotContains(t, maps, "libucp-")
		require.Equal(t, 1, strings.Count(w.Output(), `msg="settings of another backend"`), w.Output())
		require.Regexp(t, `"asked for as"=UCX taken="devices=lo,memory \(device_list=lo\)" ignored="UCX_.*\(no GORAIL equivalent\); num_workers \(no GORAIL equivalent\)"`, w.Output())
		require.Regexp(t, `level=WARN msg="unknown parameters ignored" .*"asked for as"=UCX names="\[xfer_timout \(did you mean xfer_timeout\?\)\]"`, w.Output())
		require.Regexp(t, `level=WARN msg="unknown environment variable .*name="GORAIL_DEVICE \(did you mean GORAIL_DEVICES\?\)"`, w.Output())
	}
	sides[0].Learn(sides[1])
	x := sides[0].Xfer(worker.XferSpec{Op: nixlapi.Write, Local: bufs[0].All(), Remote: bufs[1].All(), Peer: "target", Notif: []byte("n")})
	l := x.Loop(worker.LoopArgs{N: 1, Timeout: worker.Deadline})
	require.Equal(t, 1, l.Done, l.Status)
	require.EqualValues(t, -1, bufs[1].Diff(0, 1<<20, 1, 0))
}

// mapped returns the list of files that a process has mapped.
func mapped(t *testing.T, w *worker.Worker) string {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", w.Pid()))
	require.NoError(t, err)
	return string(maps)
}
