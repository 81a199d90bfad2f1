package engine

import (
	"testing"
	"time"

	"gorail/backend/provider/fake"
	"gorail/backend/provider/fake/drive"
)

// BenchmarkRegions takes 1,000 regions of 1 MiB through their life: registered, encoded, loaded at a peer, forgotten there and
// deregistered. It reports the time of each step for one region. "keys" is from the first load to the last key.
func BenchmarkRegions(b *testing.B) {
	b.Run("host", func(b *testing.B) { benchRegions(b, onHost(b)) })
	b.Run("tcp", func(b *testing.B) {
		h := onTCP(b)
		h.params = nil
		benchRegions(b, h)
	})
	b.Run("fake", func(b *testing.B) { benchRegions(b, onFake(b, fake.TCPCaps())) })
	b.Run("8-rails", func(b *testing.B) { benchRegions(b, onRails(b, 8, fake.TCPCaps())) })
}

func benchRegions(b *testing.B, h *harness) {
	const n, size = 1000, 1 << 20
	p := &pair{a: h.agent("ann"), b: h.agent("bob")}
	loadBoth(p.a, p.b)
	p.allUp(max(1, len(h.links)))
	mem := drive.Addr(drive.Alloc(n * size))
	at := func(i int) uint64 { return mem + uint64(i)*size }
	ids, loaded, blobs := make([]uint64, n), make([]uint64, n), make([][]byte, n)
	room := make([]byte, RegionBlobSize)
	took := map[string]time.Duration{}
	best := func(step string, d time.Duration) {
		if old, known := took[step]; !known || d < old {
			took[step] = d
		}
	}
	each := func(step string, f func(i int) error) {
		start := time.Now()
		for i := range n {
			if err := f(i); err != nil {
				b.Fatal(err)
			}
		}
		best(step, time.Since(start))
	}
	for b.Loop() {
		each("register", func(i int) (err error) {
			ids[i], _, err = p.b.RegisterBlob(at(i), size, 0, 0, nil, room[:0])
			return err
		})
		each("encode", func(i int) (err error) {
			blobs[i], err = p.b.RegionBlob(ids[i])
			return err
		})
		start := time.Now()
		each("load", func(i int) (err error) {
			loaded[i], err = p.a.LoadRemote("bob", at(i), size, 0, 0, blobs[i])
			return err
		})
		r := p.a.connected("bob")
		until(b, "all keys are here", func() bool { return r.keysHere() == n })
		best("keys", time.Since(start))
		each("unload", func(i int) error { return p.a.UnloadRemote(loaded[i]) })
		each("deregister", func(i int) error { return p.b.Deregister(ids[i]) })
	}
	for step, d := range took {
		b.ReportMetric(float64(d.Nanoseconds())/n, "ns-"+step)
	}
	b.ReportMetric(0, "ns/op")
}
