package engine

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gorail/backend/errcode"
	"gorail/backend/provider"
	"gorail/backend/region"
	"gorail/backend/transfer"
	"gorail/test/cuda"
	"gorail/test/fake"
	"gorail/test/nofile"
)

// provoked maps codes to what provokes them on two rails. A cause returns the error of the call that fails. nil: the code
// is in the log.
type provoked map[*errcode.Code]func(h *harness) error

// provoke requires that each cause gives its code, and that the log names no error without a code.
func (c provoked) provoke(t *testing.T) {
	t.Helper()
	for code, cause := range c {
		t.Run(code.String(), func(t *testing.T) {
			t.Parallel()
			h := onRails(t, 2, fake.TCPCaps())
			if err := cause(h); err != nil {
				require.Equal(t, code.String(), errcode.Of(err).String(), err)
			} else {
				t.Cleanup(func() {
					if t.Failed() {
						t.Log(h.log)
					}
				})
				until(t, "the code is in the log", func() bool { return h.log.has("code=" + code.String()) })
			}
			assert.False(t, h.log.has(errcode.Unclassified.String()), h.log)
		})
	}
}

// opens is a cause: an engine with these options cannot be made.
func opens(params ...string) func(h *harness) error {
	return func(h *harness) error {
		_, err := h.open("ann", params...)
		return err
	}
}

// shut is a provider whose devices do not open.
type shut struct{ provider.Provider }

func (shut) Open(provider.Device) (provider.Rail, error) { return nil, errors.New("no rights") }

// halfShut is a provider whose first device does not open.
type halfShut struct{ provider.Provider }

func (p halfShut) Open(d provider.Device) (provider.Rail, error) {
	if d.Name == "fake0" {
		return nil, errors.New("no rights")
	}
	return p.Provider.Open(d)
}

func TestCodesOfStart(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "none", "file")
	provoked{
		errcode.StatsFileUnusable: opens("stats_file", missing),
		errcode.EngineClosed: func(h *harness) error {
			a, err := h.open("ann")
			require.NoError(h, err)
			require.NoError(h, a.Close())
			_, err = a.Snapshot()
			require.Equal(h, errcode.EngineClosed, errcode.Of(err))
			_, err = a.Register(1<<40, 4096, 0, region.DRAM, nil)
			require.Equal(h, errcode.EngineClosed, errcode.Of(err))
			return a.LoadConn("bob", nil)
		},
		errcode.DiscoverFailed: func(h *harness) error {
			h.wrap = func(p provider.Provider) provider.Provider { return failing{p} }
			return opens()(h)
		},
		errcode.CannotEncrypt: opens("encryption", "on"),
		errcode.NoRail: func(h *harness) error {
			h.wrap = func(p provider.Provider) provider.Provider { return shut{p} }
			return opens()(h)
		},
		errcode.IdentityUnusable: opens("secret_file", missing),
		errcode.NoControlAddress: opens("control_devices", "nosuch*"),
		errcode.NoControlPort: func(h *harness) error {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(h, err)
			defer l.Close()
			return opens("control_port", strconv.Itoa(l.Addr().(*net.TCPAddr).Port))(h)
		},
		errcode.BlobTooLarge: func(h *harness) error {
			_, err := h.open(strings.Repeat("a", 1<<16))
			return err
		},
	}.provoke(t)
}

// registers is a cause: this range cannot be registered.
func registers(addr, length uint64, mem int32, meta ...string) func(h *harness) error {
	return func(h *harness) error {
		_, err := h.agent("ann", "mr_max", "1MiB").Register(addr, length, 0, mem, []byte(strings.Join(meta, " ")))
		return err
	}
}

func TestCodesOfMemory(t *testing.T) {
	t.Parallel()
	provoked{
		errcode.MemoryKind:    registers(1<<40, 4096, 4),
		errcode.BadRange:      registers(0, 4096, region.DRAM),
		errcode.BadMetaInfo:   registers(1<<40, 4096, region.DRAM, "remote_access=all"),
		errcode.TooManySlices: registers(1<<40, 1<<46, region.DRAM),
		errcode.AccessConflict: func(h *harness) error {
			a := h.agent("ann")
			m := a.withAccess(4096, "remote_access=read")
			_, err := a.Register(m.addr(), 4096, 0, region.DRAM, []byte("remote_access=write"))
			return err
		},
		errcode.NoGPUDriver: func(h *harness) error {
			h.params = append(h.params, "cuda_path", "/none/libcuda.so")
			return registers(1<<40, 4096, region.VRAM)(h)
		},
		errcode.NotGPUMemory: func(h *harness) error {
			h.withGPUs()
			a := h.agent("ann")
			m := a.memory(4096)
			_, err := a.Register(m.addr(), 4096, 1<<17, region.VRAM, nil)
			require.Equal(h, errcode.NotGPUMemory, errcode.Of(err), err)
			_, err = a.Register(m.addr(), 4096, 0, region.VRAM, nil)
			return err
		},
		errcode.GPURefused: func(h *harness) error {
			g := h.withGPUs()
			a := h.agent("ann")
			at := g.Alloc(0, cuda.Device, 1<<20)
			defer g.Free(0, cuda.Device, at)
			g.lib.Set("init", 999)
			defer g.lib.Set("init", 0)
			_, err := a.Register(at, 1<<20, 0, region.VRAM, nil)
			return err
		},
		errcode.UnknownRegion: func(h *harness) error {
			a := h.agent("ann")
			_, err := a.RegionBlob(1 << 40)
			require.Equal(h, errcode.UnknownRegion, errcode.Of(err))
			return a.Deregister(1 << 40)
		},
		errcode.NotDeregistered: func(h *harness) error {
			h.wrap = func(p provider.Provider) provider.Provider { return busyProvider{p} }
			a := h.agent("ann")
			m := a.memory(4096)
			err := a.Deregister(m.md.region)
			require.ErrorIs(h, err, errBusy)
			require.Equal(h, errcode.UnknownRegion, errcode.Of(a.Deregister(m.md.region)), "the registration has ended all the same")
			return err
		},
	}.provoke(t)
}

func TestCodesOfWarnings(t *testing.T) {
	t.Parallel()
	provoked{
		errcode.RailNotUsed: func(h *harness) error {
			h.wrap = func(p provider.Provider) provider.Provider { return halfShut{p} }
			h.agent("ann")
			return nil
		},
		errcode.MemoryNotOnRail: func(h *harness) error {
			a := h.agent("ann")
			a.rail().OnRegister(func(uint64, uint64) error { return errors.New("no locked memory") })
			a.memory(4096)
			return nil
		},
		errcode.RailDown: func(h *harness) error {
			p := h.pair(4096)
			p.allUp(2)
			p.b.rail().Down(5)
			x := p.a.whole(0, p.mine, p.theirs)
			until(h, "the rail is down", func() bool { x.run(); return h.log.has("rail down") })
			return nil
		},
		errcode.RailNotConnected: func(h *harness) error {
			a, b := h.agent("ann"), h.agent("bob")
			b.rail().Down(5)
			loadBoth(a, b)
			until(h, "a rail is not connected", func() bool { return h.log.has("rail not connected") })
			return nil
		},
		errcode.NotifsLost: func(h *harness) error {
			p := h.pair(4096)
			p.a.connected("bob")
			p.b.prov.Rail("fake0").Stall()
			p.b.prov.Rail("fake1").Stall()
			require.NoError(h, p.a.Notify("bob", body(200<<10, 0)))
			require.NoError(h, p.b.Close())
			return nil
		},
		errcode.PeerRefused: func(h *harness) error {
			secret := func(letter string) string {
				file := filepath.Join(t.TempDir(), letter)
				require.NoError(h, os.WriteFile(file, []byte(strings.Repeat(letter, 40)+"\n"), 0o600))
				return file
			}
			a, b := h.agent("ann", "secret_file", secret("a")), h.agent("bob", "secret_file", secret("b"))
			require.NoError(h, a.LoadConn("bob", b.Conn()))
			return nil
		},
	}.provoke(t)
}

// TestCodesOfDescriptors takes all descriptors of the process, so it runs alone.
func TestCodesOfDescriptors(t *testing.T) {
	h := onFake(t, fake.TCPCaps())
	restore := nofile.None(t)
	_, err := h.open("ann")
	restore()
	require.Equal(t, errcode.NoDescriptors.String(), errcode.Of(err).String(), err)
	require.ErrorContains(t, err, "ulimit -n")
}

func TestCodesOfStaging(t *testing.T) {
	t.Parallel()
	t.Run(errcode.NoStagingRoom.String(), func(t *testing.T) {
		t.Parallel()
		h := onFake(t, fake.TCPCaps())
		g := h.withGPUs()
		a, b := h.agent("ann"), h.agent("bob", "staging_memory", "2MiB")
		loadBoth(a, b)
		owned := g.block(b, 0, 1<<20)
		claim := b.claim(owned.md.region)
		to, offers := b.conn(), h.offer(b, 1)
		for i, room := 0, true; room; i++ { // strangers take all of it
			require.Less(t, i, 10)
			room = enters(t, to, strangerKey(i), 1, offers).asksForRing(t, claim).Range.Len > 0
		}
		a.whole2(transfer.Write, g.block(a, -1, 1<<20), owned.seenBy(a)).post().fails(errcode.NoStagingRoom.Status)
		require.True(t, h.log.has("transfer failed", "code="+errcode.NoStagingRoom.String()), h.log)
	})
	t.Run(errcode.StagingFailed.String(), func(t *testing.T) {
		t.Parallel()
		h := onFake(t, fake.TCPCaps())
		g := h.withGPUs()
		a, b := h.agent("ann"), h.agent("bob")
		loadBoth(a, b)
		mine, theirs := g.block(a, 0, 1<<20), g.block(b, 1, 1<<20).seenBy(a)
		g.lib.Fail("MemHostAlloc", 1, cuda.OutOfMemory)
		defer g.lib.Fail("MemHostAlloc", 0, 0)
		a.whole2(transfer.Write, mine, theirs).post().fails(errcode.StagingFailed.Status)
		require.True(t, h.log.has("transfer failed", "code="+errcode.StagingFailed.String()), h.log)
	})
	t.Run(errcode.StagingUnanswered.String(), func(t *testing.T) { // bob's GPU makes no copy
		t.Parallel()
		h := onFake(t, fake.TCPCaps())
		g := h.withGPUs()
		a, b := h.agent("ann", "xfer_timeout", "2s"), h.agent("bob") // the session must come up in this time, too
		loadBoth(a, b)
		mine, owned := g.block(a, -1, 1<<20), g.block(b, 1, 1<<20)
		g.lib.Set("hold", 1)
		defer func() { // bob may still take in requests: the memory is freed after the last copy
			g.lib.Set("hold", 0)
			require.NoError(t, b.Deregister(owned.md.region))
		}()
		a.whole2(transfer.Write, mine, owned.seenBy(a)).post().fails(errcode.StagingUnanswered.Status)
		require.True(t, h.log.has("transfer failed", "has not copied", "code="+errcode.StagingUnanswered.String()), h.log)
		require.True(t, h.log.has("session with a peer suspended", "has not copied"), h.log)
	})
}
