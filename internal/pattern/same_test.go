package pattern

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// failed keeps what a test would have failed with.
type failed struct{ text string }

func (*failed) Helper() {}

func (f *failed) Fatalf(format string, args ...any) { f.text = fmt.Sprintf(format, args...) }

func TestSame(t *testing.T) {
	want := bytes.Repeat([]byte{7}, 1<<20)
	got := bytes.Clone(want)
	var f failed
	Same(&f, want, got)
	require.Empty(t, f.text)
	got[1<<20-1], got[5] = 8, 9
	Same(&f, want, got, "round %d", 3)
	require.Equal(t, "round 3: 2 of 1048576 bytes differ, the first is 5: got 09 07 07 07 07 07 07 07 07 07 07 07 07 07 07 07, "+
		"want 07 07 07 07 07 07 07 07 07 07 07 07 07 07 07 07", f.text)
	Same(&f, want, got[1:])
	require.Equal(t, "1048575 bytes, want 1048576", f.text)
}
