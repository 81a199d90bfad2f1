package node

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRemote: a node for a study on another host refuses files, libraries and pools without a bound; ids outside its lists are none.
func TestRemote(t *testing.T) {
	good := OpenArgs{Backend: "GORAIL", Decode: true, Prefills: 2, Shape: Shape{Layers: 2, Blocks: 4, Block: 4096, Slots: 2}}
	require.NoError(t, good.afar())
	for says, change := range map[string]func(*OpenArgs){
		"environment":           func(in *OpenArgs) { in.Env = map[string]string{"LD_PRELOAD": "x"} },
		"parameter stats_file":  func(in *OpenArgs) { in.Params = map[string]string{"stats_file": "/x"} },
		"backend \"POSIX\"":     func(in *OpenArgs) { in.Backend = "POSIX" },
		"may ask for a decode":  func(in *OpenArgs) { in.Decode = false },
		"for 2 prefill nodes":   func(in *OpenArgs) { in.Shape.Blocks = 1 << 62 },
		"for 2000 prefill":      func(in *OpenArgs) { in.Prefills = 2000 },
		"half of what is free ": func(in *OpenArgs) { in.Shape.Block, in.Shape.Blocks = 1<<30, 1<<20 },
	} {
		in := good
		change(&in)
		require.ErrorContains(t, Remote().Open(in, nil), says)
	}
	s := &Server{in: good, orders: map[uint64][]int32{}}
	require.Len(t, s.ids(true, 1, 0, 1, 0, 2), 8)
	for _, bad := range [][4]int{{2, 0, 0, 1}, {0, 2, 0, 1}, {-1, 0, 0, 1}, {0, -1, 0, 1}, {0, 0, 2, 1}, {0, 0, 0, 3}, {0, 0, 1 << 62, 1 << 62}, {0, 0, -1, 1}} {
		require.Nil(t, s.ids(true, bad[0], 0, bad[1], bad[2], bad[3]), bad)
	}
	require.Error(t, s.Check(CheckArgs{Slots: []SlotOf{{Prefill: 9}}}, nil))
}
