package engine

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/region"
	"gorail/test/cuda"
)

// BenchmarkRecheck looks at 8,000 VMM handles that four rails have, while other GPU memory is registered and deregistered.
func BenchmarkRecheck(b *testing.B) {
	const handles = 8000
	h := onGPUDevices(b, 4)
	a := h.agent("ann")
	for range 80 {
		h.gpu(a, 0, handles/80*cuda.Granule, handles/80)
	}
	at := h.app.Alloc(1, cuda.Device, 4096)
	defer h.app.Free(1, cuda.Device, at)
	done, ended := make(chan struct{}), make(chan []time.Duration)
	go func() {
		var took []time.Duration
		for {
			select {
			case <-done:
				ended <- took
				return
			default:
			}
			id, err := a.Register(at, 4096, 1, region.VRAM, nil)
			if err != nil {
				continue
			}
			begun := time.Now()
			_ = a.Deregister(id)
			took = append(took, time.Since(begun))
		}
	}()
	b.ResetTimer()
	for range b.N {
		a.regions.Recheck()
	}
	b.StopTimer()
	close(done)
	took := <-ended
	require.NotEmpty(b, took)
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "us/deregistration")
	b.ReportMetric(float64(took[len(took)-1].Microseconds()), "us/slowest")
}
