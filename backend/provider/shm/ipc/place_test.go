package ipc

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzPlace: what Decode accepts, Append writes.
func FuzzPlace(f *testing.F) {
	p := Place{Abstract: []byte("\x00abcde"), File: File{1, 2}, NetNS: 5, PidNS: 3}
	f.Add(p.Append(nil))
	f.Add(make([]byte, PlaceSize))
	f.Add([]byte{15, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, ok := Decode(b); ok {
			require.Equal(t, b[:PlaceSize], p.Append(nil))
			require.LessOrEqual(t, len(p.Abstract), MaxName)
		}
	})
}
