package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/cuda"
	"gorail/test/fabric"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// onFabric starts two processes with one agent each, over an imitated fabric. It returns the file in which the imitation
// writes how it was opened.
func onFabric(t testing.TB, kind string, switches []string, opts ...string) (p *pairOf, opened string) {
	t.Helper()
	env, lib, dir := testenv.Need(t), fabric.Build(t), t.TempDir()
	opened, breaches := filepath.Join(dir, "opened"), filepath.Join(dir, "breaches")
	set := append(fabric.Env(kind, 1, 1, switches...), "GORAIL_LIBFABRIC_PATH="+lib, fabric.EnvOpened+"="+opened, fabric.EnvBreaches+"="+breaches)
	t.Cleanup(func() { require.Empty(t, fabric.Breaches(t, breaches)) })
	one := func(name string) *worker.Agent {
		return agent(process(t, worker.Options{Env: env, Setenv: set}), env, name, params(opts...))
	}
	p = &pairOf{env: env, ini: one("alice"), tgt: one("bob")}
	p.tgt.Polling(true)
	return p, opened
}

// TestFabricTwoHosts: where the rails have no IP addresses, the control channel uses the hosts' other networks.
func TestFabricTwoHosts(t *testing.T) {
	t.Parallel()
	const size = 1 << 20
	ours(t)
	lib := fabric.Build(t)
	for _, kind := range []string{"efa", "efa-direct", "cxi"} {
		t.Run(kind, func(t *testing.T) {
			ha, hb := hosts(t, 79, "wire0")
			breaches := filepath.Join(t.TempDir(), "breaches")
			prov, _, _ := strings.Cut(kind, "-")
			set := []string{fabric.EnvConfig + "=" + fabric.Config(kind, 1, 1, "on=wire0"), "GORAIL_PROVIDER=" + prov,
				"GORAIL_LIBFABRIC_PATH=" + lib, fabric.EnvBreaches + "=" + breaches}
			p := &pairOf{env: testenv.Need(t), ini: ha.startWith(set, "alice"), tgt: hb.startWith(set, "bob")}
			p.tgt.Polling(true)
			a, b := p.buffers(size)
			before := ha.Sent("wire0")
			for _, op := range []nixlapi.Op{nixlapi.Write, nixlapi.Read} {
				p.ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("n")}).Do(limit)
				require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
				b.Want(seedA)
			}
			require.Greater(t, ha.Sent("wire0")-before, uint64(size))
			exit(t, p.ini, p.tgt)
			require.Empty(t, fabric.Breaches(t, breaches))
		})
	}
}

// TestFabricLostSends: one of six SENDs fails, those of credits, too; half of the failed SENDs arrive. No transfer fails.
// Each notification arrives once, those of one request in the order of its posts.
func TestFabricLostSends(t *testing.T) {
	t.Parallel()
	const requests, size = 4, 4 << 10
	each := rounds(500, 2500)
	ours(t)
	for _, kind := range []string{"efa-direct", "cxi"}[:rounds(1, 2)] {
		t.Run(kind, func(t *testing.T) {
			p, _ := onFabric(t, kind, []string{"fail_sends=6", "fail_lands=1"})
			a, b := p.buffers(requests * size)
			got := p.tgt.WaitNotifsAsync(requests*each, 4*limit)
			var loops []*worker.Future[worker.LoopResult]
			for i := range uint64(requests) {
				l := worker.Span(i*size, size)
				x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.At(l), Remote: b.At(l), Peer: "bob"})
				loops = append(loops, x.LoopAsync(worker.LoopArgs{N: each, Prefix: string(rune('a'+i)) + " ", Timeout: 4 * limit}))
			}
			for i, l := range loops {
				r := l.Wait()
				require.Equal(t, each, r.Done, "request %d: %s", i, r.Status)
			}
			next := map[byte]int{}
			notifs := got.Wait().Notifs
			for _, n := range notifs {
				require.Equal(t, string(worker.Seq(string(n.Msg[0])+" ", next[n.Msg[0]])), string(n.Msg))
				next[n.Msg[0]]++
			}
			require.Len(t, notifs, requests*each)
			b.Want(seedA)
		})
	}
}

// TestFabricControlLost: the control channel fails while the fabric works, and the target notices first. The initiator
// accepts notifications meanwhile, and while there is no session. They arrive once and in order.
func TestFabricControlLost(t *testing.T) {
	t.Parallel()
	const burst, least = 20, 400
	lib := fabric.Build(t)
	for kind, switches := range map[string][]string{"efa": nil, "efa-direct": {"fail_sends=6", "fail_lands=1"}, "cxi": nil} {
		if testing.Short() && switches == nil {
			continue
		}
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			ha, hb := twoHosts(t)
			breaches := filepath.Join(t.TempDir(), "breaches")
			prov, _, _ := strings.Cut(kind, "-")
			set := []string{fabric.EnvConfig + "=" + fabric.Config(kind, 2, 1, append(switches, "on=fast0")...), "GORAIL_PROVIDER=" + prov,
				"GORAIL_LIBFABRIC_PATH=" + lib, fabric.EnvBreaches + "=" + breaches, "GORAIL_CONTROL_DEVICES=slow0"}
			opts := func(timeout string) option {
				return params("peer_timeout", timeout, "connect_timeout", "1s", "log", "info")
			}
			p := &pairOf{env: testenv.Need(t), ini: ha.startWith(set, "alice", opts("4s")), tgt: hb.startWith(set, "bob", opts("1s"))}
			p.tgt.Polling(true)
			a, b := p.buffers(4096)
			p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("w")}).Do(limit)
			sent := 0
			until := func(what string, over func() bool) {
				require.True(t, worker.Eventually(limit, func() bool {
					for range burst {
						require.NoError(t, p.ini.GenNotif("bob", worker.Seq("n", sent)))
						sent++
					}
					return over()
				}), "%s: %s", what, p.ini.Output())
			}
			ha.Cut("slow0")
			until("the target ends the session", func() bool { return strings.Contains(p.tgt.Output(), "peer's session ended") })
			until("notifications sent after the target's end", func() bool { return sent > least })
			until("the initiator suspends the session", func() bool { return strings.Contains(p.ini.Output(), "session with a peer") })
			until("notifications kept without a session", func() bool { return sent > 2*least })
			ha.Restore("slow0")
			got := p.tgt.WaitNotifs(1+sent, limit)
			require.Len(t, got, 1+sent)
			for i, n := range got[1:] {
				require.Equal(t, string(worker.Seq("n", i)), string(n.Msg))
			}
			p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("w")}).Do(limit)
			require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
			exit(t, p.ini, p.tgt)
			require.Empty(t, fabric.Breaches(t, breaches))
		})
	}
}

// TestFabricVRAM moves GPU memory between two processes over two imitated EFA or Slingshot rails: to VRAM of several
// handles and to host memory, whole buffers and scattered blocks. The imitation finds no breach of its rules.
func TestFabricVRAM(t *testing.T) {
	t.Parallel()
	ours(t)
	lib, driver := fabric.Build(t), cuda.Build(t).Path
	const size = 4 << 20
	handles := worker.GPUMem{Device: 1, Handles: 2}
	for _, kind := range []string{"efa", "cxi", "efa-direct"}[:rounds(2, 3)] {
		t.Run(kind, func(t *testing.T) {
			env, breaches := testenv.Need(t), filepath.Join(t.TempDir(), "breaches")
			set := append(fabric.Env(kind, 2, 1), "GORAIL_LIBFABRIC_PATH="+lib, fabric.EnvBreaches+"="+breaches, "GORAIL_CUDA_PATH="+driver,
				"GORAIL_FI_HMEM=on", "GORAIL_LOG=info") // the option is needed: an agent starts before its process uses GPUs
			one := func(name string) *worker.Agent {
				return agent(worker.Start(t, worker.Options{Env: env, Setenv: set}), env, name)
			}
			p := &pairOf{env: env, ini: one("alice"), tgt: one("bob")}
			p.tgt.Polling(true)
			move := func(op nixlapi.Op, a, b *worker.Buf) {
				t.Helper()
				la, lb := scattered(7, 4096, 100, 400, 1), scattered(9, 4096, 300, 400, 2)
				x := p.ini.Xfer(worker.XferSpec{Op: op, Local: a.At(la), Remote: b.At(lb), Peer: "bob", Notif: []byte("here")})
				x.Do(limit)
				require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
				want(op, a, b, la, lb)
				require.NoError(t, x.Release())
				a.Fill(seedA)
				b.Fill(seedB)
				whole := p.ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob"})
				whole.Do(limit)
				require.NoError(t, whole.Release())
				if op == nixlapi.Write {
					b.Want(seedA)
				} else {
					a.Want(seedB)
				}
				a.Fill(seedA)
				b.Fill(seedB)
			}
			a, b := p.ini.GPUBuffer(size, seedA, device(0)), p.tgt.GPUBuffer(size, seedB, handles)
			host := p.tgt.Buffer(size, seedB)
			p.ini.Learn(p.tgt)
			for _, op := range []nixlapi.Op{nixlapi.Write, nixlapi.Read} {
				move(op, a, b)
				move(op, a, host)
			}
			for _, w := range []*worker.Agent{p.ini, p.tgt} {
				says(t, w.Worker, "memory of GPUs is registered on a rail", "how=dmabuf")
			}
			p.endGPU(t, a, b)
			require.Empty(t, fabric.Breaches(t, breaches))
		})
	}
}
