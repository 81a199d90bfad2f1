package tcp

import (
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/access"
	"gorail/backend/provider"
	"gorail/backend/provider/fake/drive"
)

// crowd is a rail that many goroutines use.
type crowd struct {
	*node
	ids   atomic.Uint64
	mu    sync.Mutex
	open  map[uint64]string // posted, not completed
	twice []string
}

func (c *crowd) post(what string, f func(id uint64) error) error {
	id := c.ids.Add(1)
	c.mu.Lock()
	c.open[id] = what
	c.mu.Unlock()
	err := f(id)
	if err != nil {
		c.mu.Lock()
		delete(c.open, id)
		c.mu.Unlock()
	}
	return err
}

func (c *crowd) take() int {
	comps, err := c.d.Poll(64)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.twice = append(c.twice, err.Error())
	}
	for _, d := range comps {
		if _, ok := c.open[d.ID]; !ok {
			c.twice = append(c.twice, "completed twice or never posted: "+strconv.FormatUint(d.ID, 10))
		}
		delete(c.open, d.ID)
	}
	return len(comps)
}

// TestCrowd: threads open, connect, use and close connections of two rails, and register and deregister what peers use, while two
// threads poll. Each operation completes once.
func TestCrowd(t *testing.T) {
	t.Parallel()
	rounds := 40
	if n, err := strconv.Atoi(os.Getenv("GORAIL_SEEDS")); err == nil {
		rounds = n
	}
	var all [2]*crowd
	for i := range all {
		all[i] = &crowd{node: newNode(t, 4<<20, nil), open: map[uint64]string{}}
	}
	var stop atomic.Bool
	var polls, work sync.WaitGroup
	for _, c := range all {
		polls.Go(func() {
			for !stop.Load() {
				if c.take() == 0 {
					time.Sleep(20 * time.Microsecond)
				}
			}
		})
	}
	for w := range 6 {
		work.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 1))
			for range rounds {
				busyLife(t, rnd, all[w%2], all[(w+rnd.IntN(2))%2])
			}
		})
	}
	work.Wait()
	stop.Store(true)
	polls.Wait()
	for _, c := range all {
		for c.take() > 0 {
		}
		require.Empty(t, c.twice)
		require.Empty(t, c.open, "never completed")
	}
}

func busyLife(t *testing.T, rnd *rand.Rand, a, b *crowd) {
	e := [2]provider.Endpoint{}
	of := [2]*crowd{a, b}
	var mr [2]provider.MR
	for i, c := range of {
		var err error
		e[i], err = c.rail.OpenEndpoint()
		require.NoError(t, err)
		e[i].(provider.Secured).Secure(security(i == 0))
		mr[i], err = c.rail.Register(drive.Addr(c.mem), 2<<20, 0, access.Both)
		require.NoError(t, err)
	}
	nap := func() {
		if rnd.IntN(3) == 0 {
			time.Sleep(time.Duration(rnd.IntN(2000)) * time.Microsecond)
		}
	}
	first := rnd.IntN(2)
	require.NoError(t, e[first].Connect(e[1-first].Addr()))
	nap()
	if rnd.IntN(10) > 0 {
		require.NoError(t, e[1-first].Connect(e[first].Addr()))
	}
	for range 1 + rnd.IntN(60) {
		i := rnd.IntN(2)
		c := of[i]
		n, at := rnd.IntN(1<<uint(rnd.IntN(21))), uint64(2<<20)
		var err error
		switch rnd.IntN(8) {
		case 0:
			err = c.post("receive", func(id uint64) error { return c.d.Recv(e[i].Core(), id, c.mem[at:at+8192], nil) })
		case 1:
			err = c.post("send", func(id uint64) error { return c.d.Send(e[i].Core(), id, c.mem[at:at+uint64(n%8192)], nil) })
		case 2:
			if mr[i] != nil && rnd.IntN(4) == 0 {
				_ = mr[i].Close()
			}
		case 3:
			nap()
		default:
			kind := []int{drive.Write, drive.Read, drive.WriteUnsignaled}[rnd.IntN(3)]
			seg := drive.Seg{Local: drive.Addr(c.mem) + at, Remote: mr[1-i].Base(), Len: uint64(n), Key: keyOf(mr[1-i])}
			err = c.post("rma", func(id uint64) error { return c.d.RMA(e[i].Core(), kind, id, seg) })
		}
		var errno syscall.Errno
		if err != nil && !errors.As(err, &errno) {
			t.Errorf("%v", err)
		}
	}
	nap()
	var ends sync.WaitGroup
	for i := range 2 {
		ends.Go(func() { _ = e[i].Close() })
	}
	ends.Wait()
	for i := range 2 {
		_ = mr[i].Close()
	}
}

// BenchmarkManyLinks connects 1,000 links of one address at once.
func BenchmarkManyLinks(b *testing.B) {
	const links = 1000
	for b.Loop() {
		var up sync.WaitGroup
		up.Add(2 * links)
		p := New(Options{ConnectTimeout: time.Minute, tune: func(int) { up.Done() }})
		list, err := p.Discover(b.Context(), provider.Filter{Devices: []string{"lo"}})
		require.NoError(b, err)
		var rails [2]provider.Rail
		for i := range rails {
			rails[i], err = p.Open(list[0])
			require.NoError(b, err)
		}
		var ends [2][links]provider.Endpoint
		for side := range ends {
			for i := range links {
				ends[side][i], err = rails[side].OpenEndpoint()
				require.NoError(b, err)
				ends[side][i].(provider.Secured).Secure(security(side == 0))
			}
		}
		for side := range ends {
			for i := range links {
				require.NoError(b, ends[1-side][i].Connect(ends[side][i].Addr())) // the target's first
			}
		}
		up.Wait()
		for side := range ends {
			for i := range links {
				require.NoError(b, ends[side][i].Close())
			}
			require.NoError(b, rails[side].Close())
		}
	}
}
