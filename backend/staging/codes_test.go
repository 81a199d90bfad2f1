package staging

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/errcode"
	"gorail/backend/transfer"
)

// Bounce buffers help no group without memory of a GPU: the error has its code, and the caller tries links again.
func TestNoPath(t *testing.T) {
	_, err := (&Run{}).rings(&group{})
	require.Equal(t, errcode.NoPath, errcode.Of(err))
	require.ErrorIs(t, err, transfer.ErrUnreachable)
}
