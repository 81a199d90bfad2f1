package doctor

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestInfo compares what whole machines show.
func TestInfo(t *testing.T) {
	for _, name := range []string{"p5-48xlarge", "dgx-h100", "slingshot", "dgx-spark", "server", "half-container"} {
		t.Run(name, func(t *testing.T) {
			i, err := Look(load(t, "file "+name))
			require.NoError(t, err)
			var got, object bytes.Buffer
			require.NoError(t, i.Text(&got))
			golden(t, "testdata/"+name+".info.golden", got.Bytes())
			require.NoError(t, i.JSON(&object))
			var back Info
			require.NoError(t, json.Unmarshal(object.Bytes(), &back))
			require.Equal(t, *i, back)
		})
	}
	_, err := Look(load(t, "file server\nparam rail_timout=3s"))
	require.ErrorContains(t, err, "rail_timeout", "the nearest option")
	i, err := Look(load(t, "file server\nparam rail_timeout=3s\nenv GORAIL_MAX_RAILS=2\nfail reach=Yama"))
	require.NoError(t, err)
	require.Equal(t, []string{"rail_timeout=3s", "max_rails=2"}, i.Options)
	require.Contains(t, i.Ways[0].By, "as another host: Yama")
}
