package status

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOf(t *testing.T) {
	coded := Errorf(ErrNotFound, "peer %q: %w", "b", io.EOF)

	require.Equal(t, Success, Of(nil))
	require.Equal(t, ErrBackend, Of(io.EOF), "an error without a code")
	require.Equal(t, ErrNotFound, Of(coded))
	require.Equal(t, ErrNotFound, Of(fmt.Errorf("load: %w", coded)), "through a wrapper")
	require.Equal(t, ErrNotFound, Of(errors.Join(io.ErrClosedPipe, coded)), "inside a join")
	require.Equal(t, ErrMismatch, Of(Errorf(ErrMismatch, "blob: %w", coded)), "the outermost code wins")
}

func TestErrorfKeepsTextAndCause(t *testing.T) {
	err := Errorf(ErrBackend, "rail 0: %w", io.EOF)

	require.EqualError(t, err, "rail 0: EOF")
	require.ErrorIs(t, err, io.EOF)
}

func TestTableIsComplete(t *testing.T) {
	seen := map[Code]bool{}
	for _, i := range Table {
		require.False(t, seen[i.Code], "%s twice", i.Name)
		require.NotEmpty(t, i.Doc)
		require.Equal(t, i.Name, i.Code.String())
		seen[i.Code] = true
	}
	for c := ErrCanceled; c <= InProg; c++ {
		require.True(t, seen[c], "code %d", c)
	}
	require.Equal(t, "nixl_status_t(-99)", Code(-99).String())
}
