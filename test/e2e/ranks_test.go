package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/fabric"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// rankPairs starts n agents on each host: rank i of a writes to rank i of b.
func rankPairs(t *testing.T, a, b *host, n int, opts ...string) (list []*pairOf) {
	t.Helper()
	dir := t.TempDir()
	for i := range n {
		p := &pairOf{env: testenv.Need(t)}
		p.ini = a.start(fmt.Sprint("alice", i), params(append(opts, "local_dir", dir)...))
		p.tgt = b.start(fmt.Sprint("bob", i), params(append(opts, "local_dir", dir)...))
		p.tgt.Polling(true)
		list = append(list, p)
	}
	return list
}

// TestRanksShareRails: four ranks on four rails fill all four, alike, whether each may have one rail or all. One rank alone fills all.
func TestRanksShareRails(t *testing.T) {
	t.Parallel()
	ours(t)
	const size = 16 << 20
	for _, c := range []struct{ most, ranks int }{{1, 4}, {8, 4}, {8, 1}} {
		t.Run(fmt.Sprintf("max_rails %d, %d ranks", c.most, c.ranks), func(t *testing.T) {
			ha, hb := rails(t, 200, 200, 200, 200)
			pairs := rankPairs(t, ha, hb, c.ranks, "log", "info", "max_rails", fmt.Sprint(c.most))
			var run []*worker.Xfer
			var bufs []*worker.Buf
			for i, p := range pairs {
				a, b := p.buffers(size)
				x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: fmt.Sprint("bob", i)})
				x.Do(limit) // proves the links and measures their rates
				run, bufs = append(run, x), append(bufs, b)
			}
			before := sentBy(ha, 4)
			var all sync.WaitGroup
			for _, x := range run {
				all.Go(func() {
					for range 2 {
						x.Do(limit)
					}
				})
			}
			all.Wait()
			sent := sentBy(ha, 4)
			total := uint64(0)
			for i := range sent {
				sent[i] -= before[i]
				total += sent[i]
			}
			require.Greater(t, total, uint64(2*c.ranks*size))
			for i, n := range sent {
				require.InDelta(t, 0.25, float64(n)/float64(total), 0.05, "rail%d: %v", i, sent)
			}
			for _, b := range bufs {
				b.Want(seedA)
			}
		})
	}
}

func sentBy(h *host, rails int) (list []uint64) {
	for i := range rails {
		list = append(list, h.Sent(fmt.Sprint("rail", i)))
	}
	return list
}

// TestRanksOfManyDevices: a host has 32 EFA devices and eight agents with the default options. Each device carries as much, and a region is on eight of
// them. When an agent is killed, the others have its devices within two seconds, if they may use more.
func TestRanksOfManyDevices(t *testing.T) {
	t.Parallel()
	ours(t)
	const size, devices, ranks = 4 << 20, 32, 8
	env, dir := testenv.Need(t), t.TempDir()
	breaches := filepath.Join(dir, "breaches")
	set := append(fabric.Env("efa", devices, 1), "GORAIL_LIBFABRIC_PATH="+fabric.Build(t), fabric.EnvBreaches+"="+breaches, "GORAIL_LOG=info", "GORAIL_LOCAL_DIR="+dir)
	t.Cleanup(func() { require.Empty(t, fabric.Breaches(t, breaches)) })
	one := func(name string) (*worker.Agent, string) {
		file := filepath.Join(dir, name+".json")
		return agent(process(t, worker.Options{Env: env, Setenv: set}), env, name, params("stats_file", file)), file
	}
	target, _ := one("bob")
	target.Polling(true)
	remote := target.Buffer(size, seedB)
	var files []string
	var agents []*worker.Agent
	for i := range ranks {
		a, file := one(fmt.Sprint("rank", i))
		b := a.Buffer(size, seedA)
		a.Learn(target)
		x := a.Xfer(worker.XferSpec{Op: nixlapi.Read, Local: b.All(), Remote: remote.All(), Peer: "bob"})
		for range 4 {
			x.Do(limit)
		}
		b.Want(seedB)
		agents, files = append(agents, a), append(files, file)
	}
	for _, a := range agents {
		require.NoError(t, a.Close())
	}
	sum := map[string]uint64{}
	for i, file := range files {
		var used []string
		for name, r := range railStats(t, file) {
			if r.BytesRead > 0 {
				used = append(used, name)
				sum[name] += r.BytesRead
			}
		}
		slices.Sort(used)
		t.Log("rank", i, "used", used)
		require.LessOrEqual(t, len(used), 8)
	}
	t.Log(sum)
}
