package nixlapi

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestInUse: what malloc_info says of two arenas, of glibc 2.41, made shorter.
func TestInUse(t *testing.T) {
	n, err := inUse([]byte(`<malloc version="1"><heap nr="0"><sizes></sizes><total type="fast" count="1" size="32"/><total type="rest" count="2" size="1000"/>
<system type="current" size="135168"/></heap><heap nr="1"><total type="rest" count="1" size="500"/><system type="current" size="4096"/></heap>
<total type="fast" count="1" size="32"/><total type="rest" count="3" size="1500"/><total type="mmap" count="1" size="200000"/>
<system type="current" size="139264"/><system type="max" size="139264"/><aspace type="total" size="139264"/></malloc>`))
	require.NoError(t, err)
	require.Equal(t, uint64(139264-1532+200000), n)
	_, err = inUse([]byte("no XML"))
	require.Error(t, err)
	n, err = Malloced() // of this process
	require.NoError(t, err)
	require.NotZero(t, n)
}
