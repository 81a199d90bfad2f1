package engine

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider/fake"
	"gorail/backend/status"
	"gorail/backend/transfer"
)

// Eight goroutines use two agents at the same time, with all calls of an application. Every accepted transfer ends. A transfer
// that ends well has moved its bytes. Each notification arrives once.
func TestHammer(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]fake.Script{
		"calm":      {},
		"refusals":  {EagainEvery: 5, Delay: 2},
		"shuffling": {ReorderSeed: 7, PerPoll: 3},
	} {
		t.Run(name, func(t *testing.T) {
			caps := fake.TCPCaps()
			if script.ReorderSeed != 0 {
				caps = fake.EFACaps()
			}
			h := onFake(t, caps)
			p := h.pair(1<<20, "notif_queue", "1MiB", "release_wait", "1ms")
			p.a.rail().Script(script)
			hammer(h, p)
		})
	}
	t.Run("tcp", func(t *testing.T) {
		h := onTCP(t)
		hammer(h, h.pair(1<<20, "notif_queue", "1MiB", "release_wait", "1ms"))
	})
}

func hammer(h *harness, p *pair) {
	const workers, long = 8, 500 * time.Millisecond // two seconds for four fabrics
	var stop atomic.Bool
	var wg sync.WaitGroup
	var mu sync.Mutex
	sent := map[string]bool{}
	accept := func(text string) { mu.Lock(); sent["ann:"+text] = true; mu.Unlock() }
	part := len(p.mine.b) / workers
	for w := range workers {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 3))
			extra := p.a.memory(64 << 10)
			for i := 0; !stop.Load(); i++ {
				text := fmt.Sprint(w, ".", i)
				switch rnd.IntN(8) {
				case 0, 1, 2: // a verified WRITE, in a part that only this worker uses
					n := 1 + rnd.IntN(part)
					local, remote := p.mine.b[w*part:][:n], p.theirs.b[w*part:][:n]
					for j := 0; j < n; j += 97 {
						local[j] = byte(i + j)
					}
					x := p.a.prep(transfer.Write, []Desc{p.mine.desc(w*part, n)}, []Desc{p.theirs.desc(w*part, n)}, "bob")
					accept(text)
					x.post(text)
					if s := x.wait(); s != done || string(local) != string(remote) {
						h.Errorf("worker %d: status %d, or the bytes differ", w, s)
						return
					}
					x.release()
				case 3: // released in flight
					x := p.a.prep(transfer.Read, []Desc{extra.desc(0, 60_000)}, []Desc{p.theirs.desc(0, 60_000)}, "bob").post()
					for range rnd.IntN(5) {
						x.check()
					}
					x.release()
				case 4: // deregistered in flight
					x := p.a.prep(transfer.Read, []Desc{extra.desc(100, 60_000)}, []Desc{p.theirs.desc(0, 60_000)}, "bob").post()
					if err := p.a.Deregister(extra.md.region); err != nil {
						h.Error(err)
					}
					if s := x.wait(); s != done && status.Code(s) != status.ErrBackend {
						h.Errorf("worker %d: status %d after deregistration", w, s)
					}
					x.release()
					extra.register()
				case 5:
					if p.a.Notify("bob", []byte(text)) == nil {
						accept(text)
					}
				case 6: // a region of the target is registered and deregistered
					m := p.b.memory(8192)
					there := m.seenBy(p.a)
					x := p.a.prep(transfer.Write, []Desc{extra.desc(0, 8192)}, []Desc{there.desc(0, 8192)}, "bob").post()
					if rnd.IntN(2) == 0 {
						x.wait()
					}
					if err := p.b.Deregister(m.md.region); err != nil {
						h.Error(err)
					}
					x.wait()
					x.release()
					if err := p.a.UnloadRemote(there.md.region); err != nil {
						h.Error(err)
					}
				case 7:
					_, _ = p.a.Known(extra.addr(), 10, 0, 0)
					if err := p.a.LoadConn("bob", p.b.Conn()); err != nil {
						h.Error(err)
					}
				}
			}
		})
	}
	for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(time.Millisecond) {
		p.b.take()
	}
	stop.Store(true)
	gone := make(chan struct{})
	go func() { wg.Wait(); close(gone) }()
	until(h, "all workers end", func() bool {
		p.b.take()
		select {
		case <-gone:
			return true
		default:
			return false
		}
	})
	until(h, "all notifications arrive", func() bool { return len(p.b.take()) >= len(sent) })
	got := map[string]bool{}
	for _, s := range p.b.got {
		require.False(h, got[s], "%s arrived twice", s)
		got[s] = true
	}
	require.Equal(h, sent, got)
	p.a.released()
}
