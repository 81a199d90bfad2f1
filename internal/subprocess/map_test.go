package subprocess_test

import (
	"bytes"
	"encoding/gob"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/internal/subprocess"
)

// A Map arrives as it was sent, and one that claims to be huge takes no memory.
func TestMap(t *testing.T) {
	type frame struct{ M subprocess.Map[uint64] }
	for _, m := range []subprocess.Map[uint64]{nil, {}, {"a": 1, "b\x00\xff": 1 << 63}} {
		var b bytes.Buffer
		require.NoError(t, gob.NewEncoder(&b).Encode(frame{m}))
		var got frame
		require.NoError(t, gob.NewDecoder(&b).Decode(&got))
		require.Len(t, got.M, len(m))
		require.Equal(t, m["a"], got.M["a"])
	}
	var b bytes.Buffer
	require.NoError(t, gob.NewEncoder(&b).Encode(struct{ M map[string]uint64 }{map[string]uint64{"a": 1}}))
	var got frame
	require.Error(t, gob.NewDecoder(&b).Decode(&got), "a plain map is another type")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	require.Error(t, got.M.GobDecode([]byte("\xf8\xff\xff\xff\xff\xff\xff\xff\xff")))
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
}
