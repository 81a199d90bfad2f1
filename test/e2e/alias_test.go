package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/cuda"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// asUCX makes GORAIL the plugin named UCX. Only what a test sets counts, not the provider and the variables of UCX of this run.
func asUCX(t *testing.T, setenv ...string) worker.Options {
	t.Helper()
	env := testenv.Need(t)
	if env.Backend != "GORAIL" {
		t.Skip("this test is about GORAIL")
	}
	dir := t.TempDir()
	require.NoError(t, os.Symlink(filepath.Join(env.PluginDir, "libplugin_GORAIL.so"), filepath.Join(dir, "libplugin_UCX.so")))
	env.PluginDir, env.Backend = dir, "UCX"
	none := []string{"GORAIL_PROVIDER=", "GORAIL_DEVICES=", "GORAIL_LOG=info"}
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "UCX_") {
			none = append(none, name+"=")
		}
	}
	return worker.Options{Env: env, Setenv: append(none, setenv...)}
}

// sentence is the line that says what became of UCX's settings. There is one for each agent.
const sentence = `level=INFO msg="settings of another backend"`

// TestUCXSettings: variables and engine_config of UCX's choose the way of the bytes, as the log says.
func TestUCXSettings(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		setenv []string
		config string
		path   string
		says   []string
		never  string
	}{
		"tcp": {setenv: []string{"UCX_TLS=tcp", "UCX_NET_DEVICES=lo"}, path: "DRAM:tcp/lo", never: "sm/memory",
			says: []string{`taken="provider=tcp (UCX_TLS=tcp); devices=lo (UCX_NET_DEVICES=lo)"`, "UCX_HANDLE_ERRORS"}},
		"devices": {setenv: []string{"UCX_NET_DEVICES=lo,mlx5_77:1"}, path: "sm/memory",
			says: []string{`devices=lo,memory (UCX_NET_DEVICES=lo,mlx5_77:1)`}},
		"engine_config": {setenv: []string{"UCX_NET_DEVICES=lo"}, config: "TLS=^sm,RCACHE_ENABLE=n", path: "DRAM:tcp/lo", never: "sm/memory",
			says: []string{"(engine_config TLS=^sm)", "engine_config RCACHE_ENABLE=n (GORAIL has no registration cache)"}},
		"sm": {setenv: []string{"UCX_TLS=sm,cuda_copy,self", "UCX_IB_GID_INDEX=3", "UCX_MAX_RMA_RAILS=12"}, path: "DRAM:sm/memory", never: "tcp/",
			says: []string{"provider=sm (UCX_TLS=sm,cuda_copy,self)", "gid_index=3 (UCX_IB_GID_INDEX=3)", "max_rails=12 (UCX_MAX_RMA_RAILS=12)"}},
	} {
		t.Run(name, func(t *testing.T) {
			eachOp(t, func(t *testing.T, op nixlapi.Op) {
				o := asUCX(t, append(c.setenv, "UCX_HANDLE_ERRORS=none")...)
				p := &pairOf{env: o.Env, ini: agent(process(t, o), o.Env, "alice", params("engine_config", c.config)), tgt: agent(process(t, o), o.Env, "bob", params("engine_config", c.config))}
				p.tgt.Polling(true)
				const size = 4 << 20
				a, b := p.ini.Buffer(size, seedA), p.tgt.Buffer(size, seedB)
				p.ini.Learn(p.tgt)
				p.ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob"}).Do(limit)
				if op == nixlapi.Write {
					b.Want(seedA)
				} else {
					a.Want(seedB)
				}
				for _, side := range []*worker.Agent{p.ini, p.tgt} {
					says(t, side.Worker, append(c.says, sentence, `"asked for as"=UCX`)...)
					require.Equal(t, 1, strings.Count(side.Output(), sentence))
				}
				line := says(t, p.ini.Worker, `msg="peer connected"`, c.path)
				if c.never != "" {
					require.NotContains(t, line, c.never)
				}
				if name == "devices" {
					says(t, p.ini.Worker, "level=WARN", "UCX_NET_DEVICES=lo,mlx5_77:1 (not on this machine: mlx5_77)")
				}
			})
		})
	}
}

// TestUCXRefused: an option of ours that says something else, and settings that leave no fabric, are errors with both names, and
// the process may try again.
func TestUCXRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		setenv []string
		given  []string
		says   string
	}{
		"variables": {setenv: []string{"UCX_TLS=tcp", "GORAIL_PROVIDER=sm"}, says: `provider="sm" (from GORAIL_PROVIDER) contradicts UCX_TLS=tcp, which means provider=tcp here; remove one of the two, or write provider=tcp`},
		"parameters": {setenv: []string{"UCX_IB_GID_INDEX=1"}, given: []string{"gid_index", "3", "engine_config", "IB_GID_INDEX=3"},
			says: `gid_index="3" contradicts UCX_IB_GID_INDEX=1, which means gid_index=1 here`},
		"no fabric": {setenv: []string{"UCX_TLS=self,cuda_copy"}, says: "UCX_TLS=self,cuda_copy: no network device of this machine is left; name transports and devices that it has (tcp, ib)"},
	} {
		t.Run(name, func(t *testing.T) {
			o := asUCX(t, c.setenv...)
			w := process(t, o)
			config := worker.AgentConfig{Name: "a", Backend: "UCX", ProgThread: true}
			params(c.given...)(&config)
			_, err := w.TryAgent(config)
			require.Error(t, err)
			says(t, w, "level=ERROR", "code=GR-1004", c.says)
			if c.given != nil {
				w.Agent(worker.AgentConfig{Name: "b", Backend: "UCX", ProgThread: true, Params: map[string]string{"gid_index": "1"}})
				says(t, w, "UCX_IB_GID_INDEX=1 (option gid_index is given and agrees)")
			}
		})
	}
}

// TestUCXSleeping: the engine_config of vLLM's sleep mode leaves mappings of GPU memory as they are: they end with the registration.
func TestUCXSleeping(t *testing.T) {
	t.Parallel()
	if os.Getenv("GORAIL_TEST_CUDA") != "" {
		t.Skip("the account is the imitation's")
	}
	o := asUCX(t, "GORAIL_CUDA_PATH="+cuda.Build(t).Path)
	l := lend(t, device(1), 1, func(name string) *worker.Agent {
		return agent(process(t, o), o.Env, name, params("engine_config", "RCACHE_ENABLE=n,TLS=^cuda_ipc"))
	})
	for _, a := range append(l.importers, l.owner) {
		says(t, a.Worker, sentence, "engine_config TLS=^cuda_ipc (without cuda_ipc: ", "so it stays; option gpu_mapping=off forbids mappings", "RCACHE_ENABLE=n")
	}
	require.NoError(t, l.owner.Deregister(l.lent.All()))
	require.Empty(t, l.back(l.importers...), "after %v", soon)
}

// TestVRAMNotMapped: with gpu_mapping=off at either side no process maps the other's GPU memory. The bytes arrive through bounce buffers.
func TestVRAMNotMapped(t *testing.T) {
	t.Parallel()
	for _, off := range []string{"alice", "bob", "alice bob"} {
		for kind, m := range lentKinds {
			t.Run(off+"/"+kind, func(t *testing.T) {
				const size = 2 * cuda.Granule
				o := stagedHost(t, "sm")
				start := func(name string) *worker.Agent {
					o := o
					if strings.Contains(off, name) {
						o.Setenv = append([]string{"GORAIL_GPU_MAPPING=off"}, o.Setenv...)
					}
					return agent(process(t, o), o.Env, name)
				}
				p := &pairOf{env: o.Env, ini: start("alice"), tgt: start("bob")}
				p.tgt.Polling(true)
				l := lending{t: t, lent: p.tgt.GPUBuffer(size, seedB, m)}
				l.files = l.lent.Behind()
				a := p.ini.GPUBuffer(size, seedA, device(0))
				p.ini.Learn(p.tgt)
				for _, op := range []nixlapi.Op{nixlapi.Read, nixlapi.Write} {
					a.Fill(seedA)
					l.lent.Fill(seedB)
					x := p.ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: l.lent.All(), Peer: "bob"})
					for range 4 { // a refused mapping is not tried again
						x.Do(limit)
					}
					if op == nixlapi.Read {
						a.Want(seedB)
					} else {
						l.lent.Want(seedA)
					}
					require.NoError(t, x.Release())
				}
				says(t, p.ini.Worker, "transfers go through bounce buffers", "option gpu_mapping is off in one of the two processes")
				if os.Getenv("GORAIL_TEST_CUDA") == "" {
					require.Zero(t, l.holds(p.ini))
				}
				require.NoError(t, p.ini.Deregister(a.All()))
				require.NoError(t, p.tgt.Deregister(l.lent.All()))
				a.Free()
				l.lent.Free()
				gpuClean(t, p.ini, p.tgt)
			})
		}
	}
}

// TestVRAMNotMappedHere: gpu_mapping=off leaves transfers within a process as they are on one GPU, and staged between two.
func TestVRAMNotMappedHere(t *testing.T) {
	t.Parallel()
	const size = 2 * cuda.Granule
	o := stagedHost(t, "sm")
	o.Setenv = append([]string{"GORAIL_GPU_MAPPING=off"}, o.Setenv...)
	a := agent(process(t, o), o.Env, "alice")
	from, same, other := a.GPUBuffer(size, seedA, device(0)), a.GPUBuffer(size, seedB, device(0)), a.GPUBuffer(size, seedB, device(1))
	for _, to := range []*worker.Buf{same, other} {
		a.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: from.All(), Remote: to.All(), Peer: "alice"}).Do(limit)
		to.Want(seedA)
		require.Equal(t, to == other, strings.Contains(a.Output(), "transfers go through bounce buffers"))
	}
}
