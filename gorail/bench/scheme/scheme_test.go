package scheme

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEdges(t *testing.T) {
	for _, tt := range []struct {
		name string
		n, m int
		want []Edge
		says string
	}{
		{name: "pairwise", n: 2, m: 2, want: []Edge{{0, 0, 0, 1, false}, {1, 1, 0, 1, false}}},
		{name: "manytoone", n: 2, m: 1, want: []Edge{{0, 0, 0, 1, false}, {1, 0, 0, 1, false}}},
		{name: "onetomany", n: 1, m: 2, want: []Edge{{0, 0, 0, 1, false}, {0, 1, 0, 1, false}}},
		{name: "tp", n: 2, m: 2, want: []Edge{{0, 0, 0, 1, false}, {1, 1, 0, 1, false}}},
		{name: "tp", n: 4, m: 2, want: []Edge{{0, 0, 0, 2, true}, {1, 0, 1, 2, true}, {2, 1, 0, 2, true}, {3, 1, 1, 2, true}}},
		{name: "tp", n: 1, m: 2, want: []Edge{{0, 0, 0, 2, false}, {0, 1, 1, 2, false}}},
		{name: "pairwise", n: 1, m: 2, says: "as many targets"},
		{name: "manytoone", n: 1, m: 2, says: "one target"},
		{name: "onetomany", n: 2, m: 2, says: "one initiator"},
		{name: "tp", n: 2, m: 3, says: "divides"},
		{name: "ring", n: 1, m: 1, says: "no scheme"},
		{name: "tp", n: 0, m: 1, says: "one of each"},
	} {
		got, err := Edges(tt.name, tt.n, tt.m)
		if tt.says != "" {
			require.ErrorContains(t, err, tt.says)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, tt.want, got, "%s %d %d", tt.name, tt.n, tt.m)
	}
}
