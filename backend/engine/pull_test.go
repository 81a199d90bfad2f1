package engine

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"gorail/backend/session"
	"gorail/backend/transfer"
	"gorail/test/drive"
	"gorail/test/fake"
)

// Keys that no transfer waits for are requested with a few requests at a time. A key that a transfer waits for is requested at
// once.
func TestPullForTransfer(t *testing.T) {
	t.Parallel()
	const regions, size = 3000, 4096
	h := onRails(t, 2, fake.TCPCaps())
	p := h.pair(size)
	p.allUp(2)
	mem := drive.Alloc(regions * size)
	blobs := make([][]byte, regions)
	for i := range blobs {
		id, err := p.b.Register(drive.Addr(mem)+uint64(i*size), size, 0, 0, nil)
		require.NoError(t, err)
		blobs[i], err = p.b.RegionBlob(id)
		require.NoError(t, err)
	}
	r := p.a.connected("bob")
	until(t, "the first key is here", func() bool { return r.keysHere() == 1 })

	resume := p.b.regions.Pause() // the target answers no request
	ids := make([]uint64, regions)
	for i := range blobs {
		id, err := p.a.LoadRemote("bob", drive.Addr(mem)+uint64(i*size), size, 0, 0, blobs[i])
		require.NoError(t, err)
		ids[i] = id
	}
	last := Desc{Addr: drive.Addr(mem) + (regions-1)*size, Len: size, MD: unsafe.Pointer(&metaObject{region: ids[regions-1]})}
	x := p.a.prep(transfer.Write, []Desc{p.mine.fill(3).desc(0, size)}, []Desc{last}, "bob")
	require.Len(t, r.inside().Requests, session.MostPulled)
	x.post()
	requests := r.inside().Requests
	require.Len(t, requests, session.MostPulled+1)
	asked := 0
	for _, n := range requests {
		asked += n
	}
	require.Less(t, asked, regions/10)
	require.True(t, p.a.regions.Regions.Get(ids[regions-1]).Asked)
	resume()

	require.Equal(t, done, x.wait())
	require.Equal(t, p.mine.b, mem[(regions-1)*size:])
	until(t, "all keys are here", func() bool { return r.keysHere() == regions+1 })
	require.Zero(t, r.inside().Wanted)
	require.Empty(t, r.inside().Requests)
}

// A session uses the largest number of rails. Regions have keys on all of them.
func TestManyRails(t *testing.T) {
	t.Parallel()
	h := onRails(t, 32, fake.TCPCaps())
	p := h.pair(32<<20, "max_rails", "32")
	p.allUp(32)
	for op := range 2 {
		x := p.a.whole(op, p.mine.fill(1), p.theirs.fill(2))
		x.run("many")
		p.same()
		var sum uint64
		for _, n := range x.shares() {
			sum += n
		}
		require.EqualValues(t, 32<<20, sum)
	}
	require.EqualValues(t, 1<<32-1, p.a.regions.Regions.Get(p.theirs.md.region).Rails.Load())
	p.b.expect("ann:many", "ann:many")
}
