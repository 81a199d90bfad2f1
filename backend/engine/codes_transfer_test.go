package engine

import (
	"errors"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/region"
	"gorail/backend/transfer"
	"gorail/backend/wire"
	"gorail/test/certs"
	"gorail/test/fake"
)

func TestCodesOfPeers(t *testing.T) {
	t.Parallel()
	loads := func(change func(blob []byte) []byte, params ...string) func(h *harness) error {
		return func(h *harness) error {
			a, b := h.agent("ann"), h.agent("bob", params...)
			return a.LoadConn("bob", change(b.Conn()))
		}
	}
	provoked{
		errcode.UnknownPeer: func(h *harness) error {
			a := h.agent("ann")
			_, err := a.LoadRemote("bob", 1<<40, 4096, 0, region.DRAM, nil)
			require.Equal(h, errcode.UnknownPeer, errcode.Of(err))
			_, _, err = a.Prep(transfer.Write, nil, nil, "bob")
			require.Equal(h, errcode.UnknownPeer, errcode.Of(err))
			require.Equal(h, errcode.UnknownPeer, errcode.Of(a.Disconnect("bob")))
			require.Equal(h, errcode.UnknownPeer, errcode.Of(a.Connect("bob")))
			return a.Notify("bob", nil)
		},
		errcode.ForeignBlob: loads(func([]byte) []byte { return []byte("another plugin's") }),
		errcode.BadBlob:     loads(func(b []byte) []byte { return b[:len(b)-1] }),
		errcode.PeerOptions: func(h *harness) error {
			a, b := h.agent("ann", certified(certs.New(h), "ann")...), h.agent("bob")
			return a.LoadConn("bob", b.Conn())
		},
		errcode.BadMetadata: func(h *harness) error {
			p := h.pair(4096)
			_, err := p.a.LoadRemote("bob", p.theirs.addr(), 4096, 0, region.DRAM, p.theirs.blob[:10])
			require.Equal(h, errcode.BadMetadata, errcode.Of(err))
			_, err = p.a.LoadRemote("bob", p.theirs.addr()+1, 4096, 0, region.DRAM, p.theirs.blob)
			return err
		},
		errcode.StaleMetadata: func(h *harness) error {
			p := h.pair(4096)
			_, err := p.a.LoadRemote("bob", p.mine.addr(), 4096, 0, region.DRAM, p.mine.blob)
			return err
		},
		errcode.BadPeerRange: func(h *harness) error {
			a, b := h.agent("ann"), h.agent("bob", "mr_max", "1MiB")
			loadBoth(a, b)
			blob, err := wire.RegionBlob{Engine: b.blob.Engine, Addr: 1 << 40, Len: 1 << 46}.Encode()
			require.NoError(h, err)
			_, err = a.LoadRemote("bob", 1<<40, 1<<46, 0, region.DRAM, blob)
			return err
		},
		errcode.PeerUnreachable: func(h *harness) error {
			a, blob := h.agent("ann"), h.agent("bob").conn()
			for i := range blob.Rails {
				blob.Rails[i].Fabric = "another"
			}
			raw, err := blob.Encode()
			require.NoError(h, err)
			return a.LoadConn("bob", raw)
		},
		errcode.PeerGone: func(h *harness) error {
			p := h.pair(4096)
			x := p.a.whole(transfer.Write, p.mine, p.theirs)
			x.run()
			require.NoError(h, p.b.Close())
			until(h, "the loss is known", func() bool { return p.a.Notify("bob", nil) != nil })
			require.True(h, h.log.has("peer lost", "code=GR-1038"))
			_, err := x.Post()
			return err
		},
		errcode.PeerRemoved: func(h *harness) error {
			p := h.pair(4096)
			x := p.a.whole(transfer.Write, p.mine, p.theirs)
			x.run()
			require.NoError(h, p.a.Disconnect("bob"))
			_, err := x.Post()
			return err
		},
		errcode.SessionLost: func(h *harness) error {
			a, b := h.agent("ann", "connect_timeout", "200ms"), h.agent("bob")
			g := h.gate(b)
			require.NoError(h, a.LoadConn("bob", g.blob))
			x := a.whole(transfer.Write, a.memory(4096), b.memory(4096).seenBy(a)).post()
			x.fails(errcode.SessionLost.Status)
			require.True(h, h.log.has("peer not reached", "code=GR-1041"))
			return nil
		},
	}.provoke(t)
}

func TestCodesOfTransfers(t *testing.T) {
	t.Parallel()
	const n = 1 << 20
	preps := func(op int, f func(p *pair) (local, remote []Desc)) func(h *harness) error {
		return func(h *harness) error {
			p := h.pair(n)
			local, remote := f(p)
			_, _, err := p.a.Prep(op, local, remote, "bob")
			return err
		}
	}
	whole := func(p *pair) (local, remote []Desc) {
		return []Desc{p.mine.desc(0, n)}, []Desc{p.theirs.desc(0, n)}
	}
	stuck := func(h *harness, op int, params ...string) (*pair, *request) {
		p := h.pair(n, params...)
		p.allUp(2)
		for _, name := range []string{"fake0", "fake1"} {
			p.b.prov.Rail(name).Stall()
		}
		return p, p.a.whole(op, p.mine, p.theirs).post()
	}
	provoked{
		errcode.TransferTimedOut: func(h *harness) error {
			_, x := stuck(h, transfer.Write, "xfer_timeout", "150ms")
			x.fails(errcode.TransferTimedOut.Status)
			require.True(h, h.log.has("transfer timed out", "code=GR-1042"))
			require.True(h, h.log.has("transfer failed", "code=GR-1042"))
			return nil
		},
		errcode.UnknownTransfer: func(h *harness) error {
			a := h.agent("ann")
			_, err := a.Engine.Post(12345, false, nil)
			require.Equal(h, errcode.UnknownTransfer, errcode.Of(err))
			_, _, err = a.Estimate(12345)
			require.Equal(h, errcode.UnknownTransfer, errcode.Of(err))
			return a.Release(12345)
		},
		errcode.ListsDiffer: preps(transfer.Write, func(p *pair) (local, remote []Desc) {
			return []Desc{p.mine.desc(0, 8)}, []Desc{p.theirs.desc(0, 16)}
		}),
		errcode.BadOperation: preps(7, whole),
		errcode.LocalUnknown: preps(transfer.Write, func(p *pair) (local, remote []Desc) {
			local, remote = whole(p)
			require.NoError(p.a.t, p.a.Deregister(p.mine.md.region))
			return local, remote
		}),
		errcode.LocalRefused: func(h *harness) error {
			p := h.pair(n)
			for _, name := range []string{"fake0", "fake1"} {
				p.a.prov.Rail(name).OnRegister(func(uint64, uint64) error { return errors.New("no locked memory") })
			}
			_, _, err := p.a.Prep(transfer.Write, []Desc{p.a.memory(4096).desc(0, 8)}, []Desc{p.theirs.desc(0, 8)}, "bob")
			return err
		},
		errcode.RemoteUnknown: preps(transfer.Write, func(p *pair) (local, remote []Desc) {
			local, remote = whole(p)
			require.NoError(p.a.t, p.a.UnloadRemote(p.theirs.md.region))
			return local, remote
		}),
		errcode.OutOfRegion: preps(transfer.Write, func(p *pair) (local, remote []Desc) {
			return []Desc{p.mine.desc(1, n)}, []Desc{p.theirs.desc(0, n)}
		}),
		errcode.PlanRefused: func(h *harness) error {
			a, b := h.agent("ann"), h.agent("bob")
			loadBoth(a, b)
			huge := func(owner *agent) Desc {
				id, err := owner.Register(1<<40, 1<<62, 0, region.DRAM, nil)
				require.NoError(h, err)
				m := &memory{owner: owner, md: &metaObject{region: id}}
				if owner == b {
					blob, err := b.RegionBlob(id)
					require.NoError(h, err)
					m.md.region, err = a.LoadRemote("bob", 1<<40, 1<<62, 0, region.DRAM, blob)
					require.NoError(h, err)
				}
				return Desc{Addr: 1 << 40, Len: 1 << 62, MD: unsafe.Pointer(m.md)}
			}
			l, r := huge(a), huge(b)
			_, _, err := a.Prep(transfer.Write, []Desc{l, l, l}, []Desc{r, r, r}, "bob")
			return err
		},
		errcode.StillPosted: func(h *harness) error {
			_, x := stuck(h, transfer.Write)
			_, err := x.Post()
			return err
		},
		errcode.AccessDenied: func(h *harness) error {
			p := &pair{a: h.agent("ann"), b: h.agent("bob", "remote_access", "read")}
			loadBoth(p.a, p.b)
			p.mine, p.theirs = p.a.memory(n), p.b.memory(n).seenBy(p.a)
			p.a.whole(transfer.Read, p.mine, p.theirs).run() // the keys are known
			_, err := p.a.whole(transfer.Write, p.mine, p.theirs).Post()
			return err
		},
		errcode.NoCommonRail: func(h *harness) error {
			a, b := h.agent("ann"), h.agent("bob")
			a.prov.Rail("fake0").OnRegister(func(uint64, uint64) error { return errors.New("no locked memory") })
			b.prov.Rail("fake1").OnRegister(func(uint64, uint64) error { return errors.New("no locked memory") })
			loadBoth(a, b)
			a.whole(transfer.Write, a.memory(n), b.memory(n).seenBy(a)).post().fails(errcode.NoCommonRail.Status)
			return nil
		},
		errcode.RemoteGone: func(h *harness) error {
			p := h.pair(n)
			m := p.b.memory(n)
			there := m.seenBy(p.a)
			require.NoError(h, p.b.Deregister(m.md.region))
			p.a.whole(transfer.Write, p.mine, there).post().fails(errcode.RemoteGone.Status)
			return nil
		},
		errcode.LocalGone: func(h *harness) error {
			p, x := stuck(h, transfer.Write, "cancel_timeout", "50ms")
			require.NoError(h, p.a.Deregister(p.mine.md.region))
			x.fails(errcode.LocalGone.Status)
			return nil
		},
		errcode.Disconnected: func(h *harness) error {
			p, x := stuck(h, transfer.Write)
			require.NoError(h, p.a.Disconnect("bob"))
			p.b.prov.Rail("fake0").Release()
			p.b.prov.Rail("fake1").Release()
			x.fails(errcode.Disconnected.Status)
			return nil
		},
		errcode.NotifTooLong: func(h *harness) error {
			p := h.pair(4096)
			_, err := p.a.whole(transfer.Write, p.mine, p.theirs).Post(string(body(core.MaxNotif+1, 0)))
			require.Equal(h, errcode.NotifTooLong, errcode.Of(err))
			return p.a.Notify("bob", body(core.MaxNotif+1, 0))
		},
		errcode.NotifQueueFull: func(h *harness) error {
			p := h.pair(4096, "notif_queue", "64KiB")
			var err error
			until(h, "the queue is full", func() bool { err = p.a.Notify("bob", body(10_000, 0)); return err != nil })
			return err
		},
	}.provoke(t)
}

// A released READ on a shared endpoint: the first release is refused, and then the request ends as released.
func TestCodesOfReleases(t *testing.T) {
	t.Parallel()
	caps := fake.EFACaps()
	caps.SharedEndpoint = true
	h := onFake(t, caps)
	p := h.pair(1<<20, "release_wait", "1ms", "cancel_timeout", "20ms")
	x := p.a.whole(transfer.Read, p.mine, p.theirs)
	x.run()
	p.b.rail().Stall()
	x.post().posted()
	require.Equal(t, errcode.ReadMayWrite, errcode.Of(p.a.Release(x.handle)))
	p.b.rail().Release()
	x.fails(errcode.Released.Status)
	until(t, "the end is in the log", func() bool { return h.log.has("transfer failed", "code="+errcode.Released.String()) })
	x.release()
}

// An operation fails on a shared endpoint. It cannot be sent again, because the endpoint cannot be fenced.
func TestCodesOfRails(t *testing.T) {
	t.Parallel()
	caps := fake.EFACaps()
	caps.SharedEndpoint = true
	h := onFake(t, caps)
	p := h.pair(1 << 20)
	x := p.a.whole(transfer.Write, p.mine, p.theirs)
	x.run()
	p.b.connected("ann") // from now on ann's rail posts nothing for bob's session
	h.failAt(p.a, 1)
	x.post().fails(errcode.RailError.Status)
	require.True(t, h.log.has("transfer failed", "code="+errcode.RailError.String()), h.log)
}
