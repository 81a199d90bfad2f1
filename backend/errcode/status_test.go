package errcode

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOf(t *testing.T) {
	with := func(status Status, err error) error { return (&Code{Status: status}).Errorf("%w", err) }
	notFound := with(ErrNotFound, io.EOF)

	require.Equal(t, Success, StatusOf(nil))
	require.Equal(t, ErrBackend, StatusOf(io.EOF), "an error without a code")
	require.Equal(t, ErrNotFound, StatusOf(notFound))
	require.Equal(t, ErrNotFound, StatusOf(fmt.Errorf("load: %w", notFound)), "through a wrapper")
	require.Equal(t, ErrNotFound, StatusOf(errors.Join(io.ErrClosedPipe, notFound)), "inside a join")
	require.Equal(t, ErrMismatch, StatusOf(with(ErrMismatch, notFound)), "the outermost code wins")
}

func TestTableIsComplete(t *testing.T) {
	seen := map[Status]bool{}
	for _, i := range Table {
		require.False(t, seen[i.Code], "%s twice", i.Name)
		require.NotEmpty(t, i.Doc)
		require.Equal(t, i.Name, i.Code.String())
		seen[i.Code] = true
	}
	for c := ErrCanceled; c <= InProg; c++ {
		require.True(t, seen[c], "code %d", c)
	}
	require.Equal(t, "nixl_status_t(-99)", Status(-99).String())
}
