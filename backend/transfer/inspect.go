package transfer

import "time"

// Sampled is the post whose time Estimate knows. Bulk reports whether the transfer is one post of a bulk rail. Unlogged reports
// that the path of its last run is not in the log yet.
func (t *Transfer) Sampled() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sampled
}
func (t *Transfer) Bulk() bool     { return t.bulk }
func (t *Transfer) Unlogged() bool { return t.unlogged.Load() }
