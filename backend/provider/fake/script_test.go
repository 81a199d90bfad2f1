package fake

import (
	"context"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/access"
	"gorail/backend/provider"
	"gorail/backend/provider/fake/drive"
)

// end is one rail of a pair, with a region and the completions of its polls, in order.
type end struct {
	rail *Rail
	ep   provider.Endpoint
	d    drive.Rail
	mem  []byte
	mr   provider.MR
	got  []drive.Comp
}

func twoEnds(t *testing.T, caps Caps) (a, b *end) {
	f := NewFabric(7)
	var ends [2]*end
	for i := range ends {
		r, err := f.Provider().Open(provider.Device{Name: "fake0", Opaque: Link{Name: "fake0", Caps: caps}})
		require.NoError(t, err)
		e := &end{rail: r.(*Rail), d: drive.New(r.Core()), mem: drive.Alloc(1 << 20)}
		e.ep, err = r.OpenEndpoint()
		require.NoError(t, err)
		e.mr, err = r.Register(drive.Addr(e.mem), uint64(len(e.mem)), uint64(i)+1, access.Both)
		require.NoError(t, err)
		ends[i] = e
	}
	a, b = ends[0], ends[1]
	require.NoError(t, a.ep.Connect(b.ep.Addr()))
	require.NoError(t, b.ep.Connect(a.ep.Addr()))
	t.Cleanup(func() {
		for _, e := range ends {
			require.ErrorIs(t, f.Close(), syscall.EBUSY)
			require.NoError(t, e.ep.Close())
			for e.rail.Release(); e.poll(t) > 0; { // contexts must come back before they are freed
			}
			require.NoError(t, e.mr.Close())
			require.NoError(t, e.rail.Close())
		}
		require.NoError(t, f.Close())
	})
	return a, b
}

func (e *end) write(peer *end, id uint64, at, n int) error {
	return e.d.RMA(e.ep.Core(), drive.Write, id, drive.Seg{Local: drive.Addr(e.mem) + uint64(at),
		Remote: peer.mr.Base() + uint64(at), Len: uint64(n), Desc: e.mr.Desc(), Key: peer.mr.Key()})
}

func (e *end) poll(t *testing.T) int {
	got, err := e.d.Poll(64)
	require.NoError(t, err)
	e.got = append(e.got, got...)
	return len(got)
}

func (e *end) ids() (ids []uint64) {
	for _, c := range e.got {
		ids = append(ids, c.ID)
	}
	return ids
}

func TestDelay(t *testing.T) {
	a, b := twoEnds(t, TCPCaps())
	a.rail.Script(Script{Delay: 3})
	require.NoError(t, a.write(b, 1, 0, 8))
	require.Zero(t, a.poll(t))
	require.Zero(t, b.poll(t))
	require.Zero(t, a.poll(t))
	require.True(t, a.d.Readable(), "there is more to do")
	require.Equal(t, 1, a.poll(t))
	require.Zero(t, a.poll(t))
	require.False(t, a.d.Readable(), "nothing to do")
}

func TestOrderAndReorder(t *testing.T) {
	run := func(seed uint64) []uint64 {
		a, b := twoEnds(t, TCPCaps())
		a.rail.Script(Script{ReorderSeed: seed})
		for id := range uint64(20) {
			require.NoError(t, a.write(b, id, int(id)*8, 8))
		}
		for len(a.got) < 20 {
			a.poll(t)
		}
		return a.ids()
	}
	require.IsIncreasing(t, run(0))
	first := run(5)
	require.NotEqual(t, run(0), first)
	require.ElementsMatch(t, run(0), first)
	require.Equal(t, first, run(5), "the same seed, the same order")
	require.NotEqual(t, first, run(6))
}

func TestFailAt(t *testing.T) {
	a, b := twoEnds(t, TCPCaps())
	a.rail.Script(Script{FailAt: 2, FailErrno: syscall.EIO})
	for i := range a.mem[:64] {
		a.mem[i] = 1
	}
	for id := range uint64(3) {
		require.NoError(t, a.write(b, id, int(id)*8, 8))
	}
	a.poll(t)
	require.Equal(t, []drive.Comp{{ID: 0}, {ID: 1, Err: syscall.EIO}, {ID: 2}}, a.got)
	require.Equal(t, []byte{1, 0, 1}, []byte{b.mem[0], b.mem[8], b.mem[16]}, "nothing of the failed one lands")
	require.Equal(t, Counters{Posts: 3, Bytes: 16, Polls: 1, Failed: 1}, a.rail.Counters())
}

func TestRefusals(t *testing.T) {
	caps := TCPCaps()
	caps.TxDepth, caps.RxDepth, caps.MaxMsg, caps.MaxSend = 2, 1, 4096, 100
	a, b := twoEnds(t, caps)
	require.ErrorIs(t, a.write(b, 1, 0, 5000), syscall.EMSGSIZE)
	require.ErrorIs(t, a.d.Send(a.ep.Core(), 1, a.mem[:101], nil), syscall.EMSGSIZE)
	require.NoError(t, a.write(b, 1, 0, 8))
	require.NoError(t, a.write(b, 2, 0, 8))
	require.ErrorIs(t, a.write(b, 3, 0, 8), syscall.EAGAIN)
	require.NoError(t, a.d.Recv(a.ep.Core(), 9, a.mem[:8], nil))
	require.ErrorIs(t, a.d.Recv(a.ep.Core(), 10, a.mem[:8], nil), syscall.EAGAIN)
	require.Equal(t, 2, a.poll(t))
	require.NoError(t, a.write(b, 3, 0, 8), "room again")
	a.rail.Script(Script{EagainEvery: 2})
	require.NoError(t, a.write(b, 4, 0, 8))
	require.ErrorIs(t, a.write(b, 5, 0, 8), syscall.EAGAIN)
}

func TestLinkLoss(t *testing.T) {
	a, b := twoEnds(t, TCPCaps())
	a.mem[0] = 1
	a.rail.Script(Script{Delay: 5})
	require.NoError(t, a.write(b, 1, 0, 8))
	b.rail.Down(syscall.ENETDOWN)
	require.NoError(t, a.write(b, 2, 0, 8))
	for range 8 {
		a.poll(t)
		b.poll(t)
	}
	b.rail.Up()
	a.rail.Script(Script{})
	require.NoError(t, a.write(b, 3, 0, 8))
	a.poll(t)
	want := []drive.Comp{{ID: 1, Err: syscall.ENETDOWN}, {ID: 2, Err: syscall.ECANCELED}, {ID: 3, Err: syscall.ECANCELED}}
	require.Equal(t, want, a.got, "order is lost for good")
	require.Zero(t, b.mem[0])
}

func TestLinkLossUnordered(t *testing.T) {
	a, b := twoEnds(t, EFACaps())
	a.mem[0] = 1
	b.rail.Down(syscall.ENETDOWN)
	require.NoError(t, a.write(b, 1, 0, 8))
	a.poll(t)
	b.rail.Up()
	require.NoError(t, a.write(b, 2, 0, 8))
	for range 2 {
		a.poll(t)
		b.poll(t)
	}
	require.Equal(t, []drive.Comp{{ID: 1, Err: syscall.ENETDOWN}, {ID: 2}}, a.got)
	require.Equal(t, byte(1), b.mem[0])
}

func TestStall(t *testing.T) {
	a, b := twoEnds(t, TCPCaps())
	b.rail.Stall()
	require.NoError(t, a.write(b, 1, 0, 8))
	for range 20 {
		require.Zero(t, a.poll(t)+b.poll(t))
	}
	require.False(t, a.d.Readable(), "a stalled peer is no reason to spin")
	b.rail.Release()
	require.True(t, a.d.Readable())
	require.Equal(t, 1, a.poll(t))
}

func TestLateLanding(t *testing.T) {
	for name, late := range map[string]bool{"late": true, "clean": false} {
		t.Run(name, func(t *testing.T) {
			a, b := twoEnds(t, TCPCaps())
			a.rail.Script(Script{Delay: 2, LateLanding: late})
			a.mem[0] = 1
			require.NoError(t, a.write(b, 1, 0, 8))
			require.NoError(t, a.ep.Close())
			a.mem[0] = 2 // the buffer is reusable: the bytes of the time of the post land
			a.poll(t)
			require.Equal(t, []drive.Comp{{ID: 1, Err: syscall.ECANCELED}}, a.got)
			for range 5 {
				b.poll(t)
			}
			require.Equal(t, late, b.mem[0] == 1)
			require.Len(t, a.got, 1)
		})
	}
}

// Only a close of the target's endpoint stops late landing.
func TestLateLandingFenced(t *testing.T) {
	a, b := twoEnds(t, TCPCaps())
	a.rail.Script(Script{Delay: 2, LateLanding: true})
	a.mem[0] = 1
	require.NoError(t, a.write(b, 1, 0, 8))
	require.NoError(t, a.ep.Close())
	require.NoError(t, b.ep.Close())
	for range 5 {
		a.poll(t)
		b.poll(t)
	}
	require.Zero(t, b.mem[0])
}

func TestDeadPeerIsEAGAIN(t *testing.T) {
	a, b := twoEnds(t, TCPCaps())
	require.NoError(t, b.ep.Close())
	for range 10 {
		require.ErrorIs(t, a.write(b, 1, 0, 8), syscall.EAGAIN)
		require.Zero(t, a.poll(t))
	}
}

func TestBadKeyCancels(t *testing.T) {
	a, b := twoEnds(t, TCPCaps())
	a.rail.Script(Script{BadKeyCancels: true})
	require.NoError(t, a.write(b, 1, 0, 8))
	require.NoError(t, a.write(b, 2, 1<<20-4, 8), "past the end of the region")
	require.NoError(t, a.write(b, 3, 0, 8))
	a.poll(t)
	require.Equal(t, []drive.Comp{{ID: 1}, {ID: 2, Err: syscall.EACCES}, {ID: 3, Err: syscall.ECANCELED}}, a.got)
}

// Without delivery-complete, a completed WRITE has only left its source; a later message still proves that it landed.
func TestUnsignaledCompletion(t *testing.T) {
	caps := VerbsCaps()
	a, b := twoEnds(t, caps)
	a.rail.Script(Script{Delay: 3})
	a.mem[0] = 1
	require.NoError(t, b.d.Recv(b.ep.Core(), 50, b.mem[100:200], b.mr.Desc()))
	require.NoError(t, a.write(b, 1, 0, 8))
	require.NoError(t, a.d.Send(a.ep.Core(), 2, a.mem[8:16], a.mr.Desc()))
	require.Equal(t, 1, a.poll(t))
	require.Zero(t, b.mem[0], "completed, not landed")
	a.mem[0] = 9
	for len(b.got) == 0 {
		b.poll(t)
	}
	require.Equal(t, byte(1), b.mem[0])
	require.ErrorIs(t, a.d.RMA(a.ep.Core(), drive.Write, 3, drive.Seg{Local: drive.Addr(a.mem), Remote: b.mr.Base(), Len: 8,
		Key: b.mr.Key()}), syscall.EINVAL, "a local descriptor is wanted")
}

func TestTruncatedReceive(t *testing.T) {
	a, b := twoEnds(t, TCPCaps())
	require.NoError(t, a.d.Send(a.ep.Core(), 1, a.mem[:100], nil))
	require.Zero(t, a.poll(t), "waits for a receive")
	require.False(t, a.d.Readable())
	require.NoError(t, b.d.Recv(b.ep.Core(), 2, b.mem[:50], nil))
	require.Equal(t, 1, b.poll(t))
	require.Equal(t, []drive.Comp{{ID: 2, Err: syscall.EMSGSIZE, Len: 50}}, b.got)
	require.Equal(t, 1, a.poll(t))
}

func TestDevices(t *testing.T) {
	f := NewFabric(1)
	defer f.Close()
	p := f.Provider(Link{Name: "a0", Subnet: "s0"}, Link{Name: "a1", Subnet: "s1", Mbps: 100})
	for _, c := range []struct{ globs, want []string }{
		{nil, []string{"a0", "a1"}}, {[]string{"a1"}, []string{"a1"}}, {[]string{"!a1"}, []string{"a0"}},
	} {
		devs, err := p.Discover(context.Background(), provider.Filter{Devices: c.globs})
		require.NoError(t, err)
		var names []string
		for _, d := range devs {
			names = append(names, d.Name)
		}
		require.Equal(t, c.want, names)
	}
	_, err := p.Discover(context.Background(), provider.Filter{Devices: []string{"b*"}})
	require.ErrorIs(t, err, provider.ErrNoDevice)
	require.Nil(t, p.Rail("a0"))
}

func TestNoWaitFD(t *testing.T) {
	f := NewFabric(1)
	defer f.Close()
	r, err := f.Provider().Open(provider.Device{Opaque: Link{Name: "x", NoWaitFD: true}})
	require.NoError(t, err)
	defer r.Close()
	require.Equal(t, -1, drive.New(r.Core()).WaitFD())
}
