package transfer

import "time"

// Sampled is the post whose time Estimate knows, Bulk says that the transfer is one post of a rail that copies GPUs' memory, and Unlogged that the log
// lacks the path of its last run.
func (t *Transfer) Sampled() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sampled
}
func (t *Transfer) Bulk() bool     { return t.bulk }
func (t *Transfer) Unlogged() bool { return t.unlogged.Load() }
