package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	backendoption "gorail/backend/option"
	"gorail/backend/provider"
	choice "gorail/backend/rails"
	"gorail/backend/stats"
	"gorail/backend/topo"
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

// TestRanksShareRails: four ranks on four rails fill all four, alike, whether each may have one rail or all. One rank alone fills all. Each pair of
// ranks has the same rate: measured 1.00 to 1.11, beside other tests on two cores once 1.16. Where the queue drops packets (512 KiB), TCP shares it
// out: 1.2 to 1.8, and 3.7 to 16 among plain connections that always send.
func TestRanksShareRails(t *testing.T) {
	t.Parallel()
	ours(t)
	const size, times = 4 << 20, 32
	for _, c := range []struct{ most, ranks int }{{1, 4}, {8, 4}, {8, 1}} {
		t.Run(fmt.Sprintf("max_rails %d, %d ranks", c.most, c.ranks), func(t *testing.T) {
			ha, hb := rails(t, 200, 200, 200, 200)
			for i := range 4 { // the windows of all ranks, 256 KiB each, twice: so the queue drops nothing, like that of a network card
				ha.ShapeQueue(fmt.Sprint("rail", i), 200, 2<<20)
			}
			pairs := rankPairs(t, ha, hb, c.ranks, "log", "info", "max_rails", fmt.Sprint(c.most))
			var run []*worker.Xfer
			var bufs []*worker.Buf
			for i, p := range pairs {
				a, b := p.buffers(size)
				x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: fmt.Sprint("bob", i)})
				x.Do(limit) // proves the links and measures their rates
				run, bufs = append(run, x), append(bufs, b)
			}
			before, began := sentBy(ha, 4), time.Now()
			loops := make([]*worker.Future[worker.LoopResult], c.ranks)
			for i, x := range run {
				loops[i] = x.LoopAsync(worker.LoopArgs{N: times, Timeout: limit, Times: true, Nap: time.Millisecond, Turns: []int{x.ID()}})
			}
			lat := make([][]int64, c.ranks)
			for i, l := range loops {
				r := l.Wait()
				require.Equal(t, nixlapi.Success, r.Status)
				lat[i] = r.Lat
			}
			sent := sentBy(ha, 4)
			total := uint64(0)
			for i := range sent {
				sent[i] -= before[i]
				total += sent[i]
			}
			require.Greater(t, total, uint64(times*c.ranks*size))
			t.Logf("%.2f times one rail", float64(times*c.ranks*size*8)/time.Since(began).Seconds()/200e6)
			for i, n := range sent {
				require.InDelta(t, 0.25, float64(n)/float64(total), 0.05, "rail%d: %v", i, sent)
			}
			rates := ratesWhileAll(lat)
			t.Logf("transfers of the ranks until one has ended: %.1f", rates)
			require.LessOrEqual(t, slices.Max(rates)/slices.Min(rates), 1.4, "%.1f", rates)
			for _, b := range bufs {
				b.Want(seedA)
			}
		})
	}
}

// ratesWhileAll is how many transfers each rank has done, with the part that is in flight, when the first of them has done all. lat is how long each took.
func ratesWhileAll(lat [][]int64) (done []float64) {
	end := int64(math.MaxInt64)
	for _, of := range lat {
		sum := int64(0)
		for _, ns := range of {
			sum += ns
		}
		end = min(end, sum)
	}
	for _, of := range lat {
		left, n := end, 0.0
		for _, ns := range of {
			n += min(1, float64(max(left, 0))/float64(ns))
			left -= ns
		}
		done = append(done, n)
	}
	return done
}

func sentBy(h *host, rails int) (list []uint64) {
	for i := range rails {
		list = append(list, h.Sent(fmt.Sprint("rail", i)))
	}
	return list
}

// TestRanksOfManyDevices: a host has 32 EFA devices and eight agents with the default options. Each takes eight devices, and each device serves as many
// agents and moves the same bytes, within 10 %. When both agents of eight devices are killed, the others have these devices.
func TestRanksOfManyDevices(t *testing.T) {
	t.Parallel()
	ours(t)
	const size, devices, ranks, each, rounds = 16 << 20, 32, 8, 8, 2
	env, dir := testenv.Need(t), t.TempDir()
	breaches := filepath.Join(dir, "breaches")
	// Eight devices move 32 MB/s, and two cores more: the devices bound.
	set := append(fabric.Env("efa", devices, 1, "mbps=32"), "GORAIL_LIBFABRIC_PATH="+fabric.Build(t), fabric.EnvBreaches+"="+breaches, "GORAIL_LOG=info")
	t.Cleanup(func() { require.Empty(t, fabric.Breaches(t, breaches)) })
	one := func(name, host string, more ...string) *worker.Agent {
		return agent(process(t, worker.Options{Env: env, Setenv: append(slices.Clone(set), more...)}), env, name, params("stats_socket", host, "local_dir", host))
	}
	target := one("bob", t.TempDir()) // another host's
	target.Polling(true)
	remote, host := target.Buffer(size, seedB), t.TempDir()
	list := make([]*worker.Agent, ranks)
	for i := range list {
		a := one(fmt.Sprint("rank", i), host, fmt.Sprint("LOCAL_RANK=", i))
		list[i] = a
		b := a.Buffer(size, seedA)
		a.Learn(target)
		read := func(n uint64) {
			a.Xfer(worker.XferSpec{Op: nixlapi.Read, Local: b.Span(0, n), Remote: remote.Span(0, n), Peer: "bob"}).Do(limit)
		}
		read(4096)
		require.True(t, worker.Eventually(limit, func() bool { return linesWith(a.Worker, "rail in use") >= each }), "links over all devices: %s", a.Output())
		for range rounds {
			read(size)
		}
		b.Want(seedB)
	}
	all := map[string]uint64{} // of the host, by device
	sockets, err := stats.Sockets(host)
	require.NoError(t, err)
	require.Len(t, sockets, ranks)
	for _, path := range sockets {
		used := 0
		for _, r := range answerOf(t, path).Rails {
			if r.BytesRead > 0 {
				used++
				all[r.Device] += r.BytesRead
			}
		}
		require.Equal(t, each, used)
	}
	require.Len(t, all, devices)
	t.Log(slices.Sorted(maps.Values(all)))
	for name, n := range all {
		require.InEpsilon(t, ranks*rounds*size/devices, n, 0.1, "%s: %v", name, all)
	}
	near := regexp.MustCompile(`near="([^"]*)"`)
	by := map[string][]int{}
	for i, a := range list {
		names := near.FindStringSubmatch(says(t, a.Worker, "more devices than max_rails"))
		require.Len(t, strings.Split(names[1], ", "), each)
		by[names[1]] = append(by[names[1]], i)
	}
	planned(t, by, ranks)
	require.Len(t, by, devices/each, "each device is in one set: %v", by)
	var left []*worker.Agent
	killed := by[slices.Sorted(maps.Keys(by))[0]]
	require.Len(t, killed, ranks*each/devices)
	at := time.Now()
	for i, a := range list {
		if slices.Contains(killed, i) {
			a.Kill()
		} else {
			left = append(left, a)
		}
	}
	taken := regexp.MustCompile(`rdmap\d+-rdm`)
	require.True(t, worker.Eventually(limit, func() bool {
		got := map[string]bool{}
		for _, a := range left {
			for _, line := range logged(a.Worker) {
				if holds(line, []string{"host memory is on more rails"}) {
					for _, name := range taken.FindAllString(line, -1) {
						got[name] = true
					}
				}
			}
		}
		return len(got) == each
	}), "the devices of those that were killed have new users")
	t.Log("after ", time.Since(at))
}

// answerOf is the answer of an engine's stats_socket.
func answerOf(t *testing.T, path string) (l stats.Live) {
	t.Helper()
	c, err := net.Dial("unix", path)
	require.NoError(t, err)
	defer c.Close()
	_, err = io.WriteString(c, "snapshot\n")
	require.NoError(t, err)
	require.NoError(t, json.NewDecoder(c).Decode(&l))
	return l
}

// linesWith is the number of printed lines of a worker that have a text.
func linesWith(w *worker.Worker, text string) (n int) {
	for _, line := range logged(w) {
		if holds(line, []string{text}) {
			n++
		}
	}
	return n
}

// planned requires that each agent has the devices that gorail devices --plan finds for its rank. by are the agents by the names of their devices.
func planned(t *testing.T, by map[string][]int, ranks int) {
	t.Helper()
	var devices []provider.Device
	for names := range by {
		for _, name := range strings.Split(names, ", ") {
			devices = append(devices, provider.Device{Fabric: "efa", Name: strings.TrimPrefix(name, "efa/"), Hardware: true, NUMA: -1})
		}
	}
	slices.SortFunc(devices, func(a, b provider.Device) int { return topo.Natural(a.Name, b.Name) })
	opt, _, err := backendoption.Parse(map[string]string{}, nil)
	require.NoError(t, err)
	anywhere := choice.Place{Node: -1}
	plan := choice.Simulate(opt, devices, make([]topo.PCIPath, len(devices)), slices.Repeat([]choice.Rank{{Seat: anywhere}}, ranks))
	for names, agents := range by {
		for _, rank := range agents {
			var want []string
			for _, i := range plan.Rails(rank, anywhere) {
				want = append(want, choice.Name(devices[i]))
			}
			require.Equal(t, strings.Join(want, ", "), names, "rank %d", rank)
		}
	}
}
