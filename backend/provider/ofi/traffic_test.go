package ofi

import (
	"context"
	"errors"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider"
	"gorail/backend/provider/fake/drive"
)

// side is a rail with one endpoint, a region and what has completed.
type side struct {
	t    *testing.T
	rail provider.Rail
	ep   provider.Endpoint
	d    drive.Rail
	mem  []byte
	mr   provider.MR
	done map[uint64]drive.Comp
}

func newSide(t *testing.T, fabric string, key uint64) *side {
	t.Helper()
	p := New(Options{LibraryPath: testLibrary()})
	devs, err := p.Discover(context.Background(), provider.Filter{Fabrics: []string{fabric}, Devices: []string{"lo", "shm"}})
	if errors.Is(err, provider.ErrNoDevice) || errors.Is(err, provider.ErrNoLibrary) {
		t.Skipf("no %s here: %v", fabric, err)
	}
	require.NoError(t, err)
	rail, err := p.Open(devs[0])
	require.NoError(t, err)
	s := &side{t: t, rail: rail, d: drive.New(rail.Core()), mem: drive.Alloc(8 << 20), done: map[uint64]drive.Comp{}}
	s.ep, err = rail.OpenEndpoint()
	require.NoError(t, err)
	s.mr, err = rail.Register(drive.Addr(s.mem), uint64(len(s.mem)), key)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.ep.Close())
		require.NoError(t, s.mr.Close())
		require.NoError(t, rail.Close())
	})
	return s
}

// pair is two connected rails in this process.
func pair(t *testing.T, fabric string) (a, b *side) {
	a, b = newSide(t, fabric, 11), newSide(t, fabric, 22)
	require.NoError(t, a.ep.Connect(b.ep.Addr()))
	require.NoError(t, b.ep.Connect(a.ep.Addr()))
	return a, b
}

func (s *side) poll() {
	comps, err := s.d.Poll(16)
	require.NoError(s.t, err)
	for _, c := range comps {
		_, twice := s.done[c.ID]
		require.False(s.t, twice, "%d completed twice", c.ID)
		s.done[c.ID] = c
	}
}

// until polls both sides till ok, for 10 s at most.
func until(a, b *side, ok func() bool) bool {
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		a.poll()
		b.poll()
		if ok() {
			return true
		}
	}
	return false
}

func (s *side) post(peer *side, f func() error) {
	s.t.Helper()
	require.True(s.t, until(s, peer, func() bool {
		err := f()
		if err != nil {
			require.ErrorIs(s.t, err, syscall.EAGAIN)
		}
		return err == nil
	}), "EAGAIN for 10 s")
}

func (s *side) seg(peer *side, local, remote, n int) drive.Seg {
	return drive.Seg{Local: drive.Addr(s.mem) + uint64(local), Remote: peer.mr.Base() + uint64(remote), Len: uint64(n),
		Desc: s.mr.Desc(), Key: peer.mr.Key()}
}

func (s *side) rma(peer *side, op int, id uint64, segs ...drive.Seg) {
	s.t.Helper()
	s.post(peer, func() error { return s.d.RMA(s.ep.Core(), op, id, segs...) })
}

func (s *side) has(ids ...uint64) func() bool {
	return func() bool {
		for _, id := range ids {
			if _, ok := s.done[id]; !ok {
				return false
			}
		}
		return true
	}
}

func random(b []byte) {
	r := rand.New(rand.NewPCG(1, uint64(len(b))))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

// fabrics that these tests move bytes over; those of the guarantees first. shm and rxm are for a look by hand.
var fabrics = []string{"tcp"}

func eachFabric(t *testing.T, f func(t *testing.T, a, b *side)) {
	for _, name := range fabrics {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t, name)
			f(t, a, b)
		})
	}
}

func TestWriteAndRead(t *testing.T) {
	eachFabric(t, func(t *testing.T, a, b *side) {
		random(a.mem[:2<<20])
		a.rma(b, drive.Write, 1, a.seg(b, 0, 4096, 1<<20))
		require.True(t, until(a, b, a.has(1)))
		require.Zero(t, a.done[1].Err)
		require.Equal(t, a.mem[:1<<20], b.mem[4096:4096+1<<20])
		a.rma(b, drive.Read, 2, a.seg(b, 4<<20, 4096, 1<<20))
		require.True(t, until(a, b, a.has(2)))
		require.Zero(t, a.done[2].Err)
		require.Equal(t, a.mem[:1<<20], a.mem[4<<20:5<<20])
	})
}

func TestSegments(t *testing.T) {
	eachFabric(t, func(t *testing.T, a, b *side) {
		n := a.rail.Caps().IOVLimit
		require.GreaterOrEqual(t, n, 4)
		random(a.mem[:1<<20])
		var segs []drive.Seg
		for i := range n {
			segs = append(segs, a.seg(b, i*10000, (n-i)*50000, 8000+i))
		}
		a.rma(b, drive.Write, 1, segs...)
		require.True(t, until(a, b, a.has(1)))
		for i := range n {
			require.Equal(t, a.mem[i*10000:i*10000+8000+i], b.mem[(n-i)*50000:(n-i)*50000+8000+i])
			segs[i] = a.seg(b, 2<<20+i*30000, (n-i)*50000, 8000+i)
		}
		a.rma(b, drive.Read, 2, segs...)
		require.True(t, until(a, b, a.has(2)))
		for i := range n {
			require.Equal(t, a.mem[i*10000:i*10000+8000+i], a.mem[2<<20+i*30000:2<<20+i*30000+8000+i])
		}
		require.ErrorIs(t, a.d.RMA(a.ep.Core(), drive.Write, 3), syscall.EINVAL)
		require.ErrorIs(t, a.d.RMA(a.ep.Core(), drive.Write, 3, append(segs, segs...)...), syscall.EINVAL)
	})
}

func TestMessages(t *testing.T) {
	eachFabric(t, func(t *testing.T, a, b *side) {
		mr, desc, err := a.d.Reg(a.mem)
		require.NoError(t, err)
		defer a.d.Unreg(mr)
		random(a.mem[:64<<10])
		const n = 50
		for i := range uint64(n) {
			b.post(a, func() error { return b.d.Recv(b.ep.Core(), 100+i, b.mem[i*1024:i*1024+1024], b.mr.Desc()) })
		}
		for i := range uint64(n) {
			a.post(b, func() error { return a.d.Send(a.ep.Core(), i, a.mem[i*1024:i*1024+100+i], desc) })
		}
		require.True(t, until(a, b, func() bool { return len(a.done) == n && len(b.done) == n }))
		for i := range uint64(n) {
			require.Zero(t, a.done[i].Err)
			require.Equal(t, drive.Comp{ID: 100 + i, Len: 100 + i}, b.done[100+i])
			require.Equal(t, a.mem[i*1024:i*1024+100+i], b.mem[i*1024:i*1024+100+i])
		}
	})
}
