package fake

import (
	"context"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/test/conform"
	"gorail/test/drive"
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
		e.mr, err = r.Register(drive.Addr(e.mem), uint64(len(e.mem)), uint64(i)+1, option.PeersBoth)
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
		Remote: peer.mr.Base() + uint64(at), Len: uint64(n), Desc: e.mr.Desc(), Key: peer.mr.Key(provider.Salt{})})
}

func (e *end) poll(t *testing.T) int {
	got, err := e.d.Poll(64)
	require.NoError(t, err)
	e.got = append(e.got, got...)
	return len(got)
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
		Key: b.mr.Key(provider.Salt{})}), syscall.EINVAL, "a local descriptor is wanted")
}

// opener opens rails with these caps on one new fabric.
func opener(t *testing.T, caps Caps, script Script) conform.Opener {
	f := NewFabric(1)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	return func(t *testing.T) provider.Rail {
		p := f.Provider(Link{Name: "x", Caps: caps})
		devs, err := p.Discover(context.Background(), provider.Filter{})
		require.NoError(t, err)
		r, err := p.Open(devs[0])
		require.NoError(t, err)
		p.Rail("x").Script(script)
		return r
	}
}

func traits(c Caps) conform.TraitsOf {
	return conform.Is(conform.Traits{DeliveryComplete: c.DeliveryComplete, VirtAddr: c.VirtAddr})
}

// The fake fabric keeps the contract of real providers, with and without scripted misbehaviour.
func TestConform(t *testing.T) {
	secured := SecuredCaps()
	secured.ProviderKeys = true // peers don't see the keys that the caller chooses
	for name, caps := range map[string]Caps{"tcp": TCPCaps(), "efa": EFACaps(), "verbs": VerbsCaps(), "secured": secured} {
		t.Run(name, func(t *testing.T) { conform.Run(t, traits(caps), opener(t, caps, Script{})) })
	}
	t.Run("delayed", func(t *testing.T) {
		conform.Run(t, traits(TCPCaps()), opener(t, TCPCaps(), Script{Delay: 3, EagainEvery: 3}))
	})
	t.Run("slow", func(t *testing.T) {
		conform.Run(t, traits(TCPCaps()), opener(t, TCPCaps(), Script{PerPoll: 1, BadKeyCancels: true}))
	})
}
