package core_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/core"
	"gorail/backend/wire"
)

// Go packages describe the layouts that the core has in C. TestHostileMessages finds differences in how both read messages.
func TestLayouts(t *testing.T) {
	require.EqualValues(t, wire.HeaderSize, core.HeaderSize)
	require.EqualValues(t, wire.Magic, core.HeaderMagic)
	require.EqualValues(t, wire.HeaderVersion, core.HeaderVersion)
	require.EqualValues(t, wire.KindProbe, core.KindProbe)
	require.EqualValues(t, wire.KindSkip, core.KindSkip)
	require.EqualValues(t, wire.OffMagic, core.OffMagic, "magic")
	require.EqualValues(t, wire.OffVersion, core.OffVersion, "version")
	require.EqualValues(t, wire.OffKind, core.OffKind, "kind")
	require.EqualValues(t, wire.OffSubs, core.OffSubs, "subs")
	require.EqualValues(t, wire.OffSub, core.OffSub, "sub")
	require.EqualValues(t, wire.OffSeq, core.OffSeq, "seq")
	require.EqualValues(t, wire.OffTotal, core.OffTotal, "total")
	require.EqualValues(t, wire.OffOffset, core.OffOffset, "offset")
	require.EqualValues(t, wire.OffCount, core.OffCount, "count")
	require.EqualValues(t, wire.OffSum, core.OffSum, "sum")
	require.EqualValues(t, wire.OffTo, core.OffTo, "to")
}
