package wire

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The decoder bounds what a snapshot brings into the log of the initiator.
func TestSnapshotLimits(t *testing.T) {
	for name, c := range map[string]struct {
		change func(f *Snapshot)
		want   error
	}{
		"no state":          {func(f *Snapshot) { f.State = 0 }, ErrFormat},
		"unknown state":     {func(f *Snapshot) { f.State = SnapshotRefused + 1 }, ErrFormat},
		"long ago":          {func(f *Snapshot) { f.Heard = maxAgo + 1 }, ErrLimit},
		"begun long ago":    {func(f *Snapshot) { f.Uptime = math.MaxUint64 }, ErrLimit},
		"late":              {func(f *Snapshot) { f.Late = maxAgo + 1 }, ErrLimit},
		"many links":        {func(f *Snapshot) { f.Links = make([]LinkView, MaxRails+1) }, ErrLimit},
		"a link twice":      {func(f *Snapshot) { f.Links = []LinkView{{Number: 3}, {Number: 3}} }, ErrFormat},
		"links not in turn": {func(f *Snapshot) { f.Links = []LinkView{{Number: 3}, {Number: 2}} }, ErrFormat},
		"a link too high":   {func(f *Snapshot) { f.Links = []LinkView{{Number: MaxRails}} }, ErrLimit},
		"state of a link":   {func(f *Snapshot) { f.Links = []LinkView{{State: LinkStopped + 1}} }, ErrFormat},
		"progress long ago": {func(f *Snapshot) { f.Links = []LinkView{{Progress: maxAgo + 1}} }, ErrLimit},
	} {
		f := &Snapshot{State: SnapshotServing}
		_, err := AppendFrame(nil, f)
		require.NoError(t, err, name)
		c.change(f)
		_, err = AppendFrame(nil, f)
		assert.ErrorIs(t, err, c.want, name)
	}
}

func TestAgo(t *testing.T) {
	for d, want := range map[time.Duration]time.Duration{0: 0, -time.Second: 0, 1500 * time.Microsecond: 2 * time.Millisecond, time.Hour: time.Hour,
		math.MaxInt64: (maxAgo - 1) * time.Millisecond} {
		a := NewAgo(d)
		require.NoError(t, checkAgo(a))
		got, ok := a.Duration()
		require.True(t, ok)
		require.Equal(t, want, got)
	}
	_, ok := Ago(0).Duration()
	require.False(t, ok, "it never was")
	assert.Equal(t, "serving", SnapshotServing.String())
	assert.Equal(t, "refused", SnapshotRefused.String())
	assert.Equal(t, "state(0)", SnapshotState(0).String())
	assert.Equal(t, "state(9)", SnapshotState(9).String())
	assert.Equal(t, "not proved", LinkUnproved.String())
	assert.Equal(t, "state(9)", LinkState(9).String())
}
