package tcp

import (
	"bufio"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/internal/procstat"
	"gorail/test/drive"
)

const (
	manyPeers = 1000
	peerSlot  = 64 << 10 // memory of a peer, and a WRITE
	peersIdle = 3 * time.Second
)

// peers is two rails of this process with many connections between them.
type peers struct {
	b        *testing.B
	from, to *rail
	out      []provider.Endpoint // of from
	src, dst uint64
	key      uint64
	base     uint64
}

// BenchmarkPeers has 1,000 connections between two rails: idle, then all of them active with WRITEs of 64 KiB. One peer alone writes to
// as much memory, so that the cache helps neither. The ways take turns. best is each way's best turn of 512 MiB:
//
//	go test ./backend/provider/tcp -run NONE -bench Peers -benchtime 12x
func BenchmarkPeers(b *testing.B) {
	const turn = 512 << 20
	ways := []struct {
		name   string
		peers  *peers
		flight int
	}{{"one-32", newPeers(b, 1), 32}, {"one-240", nil, 240}, {"1000-1000", newPeers(b, manyPeers), manyPeers}, {"1000-32", nil, 32}}
	rates := make([][]float64, len(ways))
	for range b.N {
		for i, w := range ways {
			if w.peers == nil {
				w.peers = ways[i-1].peers
			}
			began := time.Now()
			w.peers.write(turn, w.flight)
			rates[i] = append(rates[i], turn/time.Since(began).Seconds()/1e9)
		}
	}
	for i, w := range ways {
		slices.Sort(rates[i])
		b.ReportMetric(rates[i][b.N/2], "GB/s-"+w.name)
		b.ReportMetric(rates[i][b.N-1], "GB/s-best-"+w.name)
	}
	b.ReportMetric(0, "ns/op")
}

// newPeers makes n connections. It measures many.
func newPeers(b *testing.B, n int) *peers {
	c := &peers{b: b, from: openTuned(b, nil), to: nil}
	var up atomic.Int64
	c.from.opt.tune = func(int) { up.Add(1) }
	c.to = openTuned(b, func(int) { up.Add(1) })
	const size = manyPeers * peerSlot
	src, dst := drive.Alloc(size), drive.Alloc(size)
	for i := range src {
		src[i], dst[i] = byte(i), 1 // the pages are there
	}
	c.src, c.dst = drive.Addr(src), drive.Addr(dst)
	m, err := c.to.Register(c.dst, size, 0, option.PeersBoth)
	require.NoError(b, err)
	b.Cleanup(func() {
		_ = m.Close()
		require.NoError(b, c.from.Close())
		require.NoError(b, c.to.Close())
		require.NoError(b, syscall.Munmap(src))
		require.NoError(b, syscall.Munmap(dst))
	})
	c.key, c.base = keyOf(m), m.Base()
	rss, slab := memory(b)
	began := time.Now()
	var in []provider.Endpoint
	for range n {
		in = append(in, c.endpoint(c.to, false))
		c.out = append(c.out, c.endpoint(c.from, true))
		require.NoError(b, c.out[len(c.out)-1].Connect(in[len(in)-1].Addr()))
		require.NoError(b, in[len(in)-1].Connect(c.out[len(c.out)-1].Addr()))
	}
	for up.Load() < int64(2*n) {
		require.Less(b, time.Since(began), time.Minute, "%d ends are connected", up.Load())
		time.Sleep(time.Millisecond)
	}
	if n == manyPeers {
		b.ReportMetric(float64(time.Since(began).Milliseconds()), "ms-connect")
		rss2, slab2 := memory(b)
		b.ReportMetric(float64(rss2-rss)/float64(2*n), "KiB-ours-an-end")
		b.ReportMetric(float64(slab2-slab)/float64(2*n), "KiB-slab-an-end")
		b.ReportMetric(100*c.idle().Seconds()/peersIdle.Seconds(), "%cpu-idle")
	}
	return c
}

func (c *peers) endpoint(r *rail, initiator bool) provider.Endpoint {
	e, err := r.OpenEndpoint()
	require.NoError(c.b, err)
	e.(provider.Listener).Secure(security(initiator))
	c.b.Cleanup(func() { require.NoError(c.b, e.Close()) })
	return e
}

// idle waits as the core's thread does, and returns the processor time of that.
func (c *peers) idle() time.Duration {
	before := procstat.CPUTime()
	for end := time.Now().Add(peersIdle); time.Now().Before(end); {
		for _, r := range []*rail{c.from, c.to} {
			d := drive.New(r.Core())
			for n := 1; n > 0 || !d.Arm(); {
				comps, err := d.Poll(64)
				require.NoError(c.b, err)
				n = len(comps)
			}
		}
		fds := []unix.PollFd{{Fd: int32(drive.New(c.from.Core()).WaitFD()), Events: unix.POLLIN}, {Fd: int32(drive.New(c.to.Core()).WaitFD()), Events: unix.POLLIN}}
		_, _ = unix.Poll(fds, 250)
	}
	return procstat.CPUTime() - before
}

// write writes so many bytes, with so many WRITEs in flight, which go to one peer after the other.
func (c *peers) write(bytes, most int) {
	var done atomic.Bool
	var target sync.WaitGroup
	target.Go(func() {
		for d := drive.New(c.to.Core()); !done.Load(); {
			_, _ = d.Poll(64)
		}
	})
	d, left, flight := drive.New(c.from.Core()), bytes/peerSlot, 0
	post := func(id uint64) {
		at := id % manyPeers * peerSlot
		ep := c.out[id%uint64(len(c.out))].Core()
		require.NoError(c.b, d.RMA(ep, drive.Write, id, drive.Seg{Local: c.src + at, Remote: c.base + at, Len: peerSlot, Key: c.key}))
		left--
		flight++
	}
	for id := range uint64(most) {
		post(id)
	}
	for flight > 0 {
		comps, err := d.Poll(64)
		require.NoError(c.b, err)
		for _, k := range comps {
			require.Zero(c.b, k.Err)
			flight--
			if left > 0 {
				post(k.ID + uint64(most))
			}
		}
	}
	done.Store(true)
	target.Wait()
}

// memory returns the resident memory of this process and the slab of this machine, in KiB.
func memory(b *testing.B) (rss, slab int64) {
	u, err := procstat.Self()
	require.NoError(b, err)
	f, err := os.Open("/proc/meminfo")
	require.NoError(b, err)
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if w := strings.Fields(s.Text()); w[0] == "Slab:" {
			slab, err = strconv.ParseInt(w[1], 10, 64)
			require.NoError(b, err)
		}
	}
	return u.RSSKiB, slab
}
