package session

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLocks(t *testing.T) {
	var k Locks[string]
	free := k.Lock("a")
	k.Lock("b")() // another key: does not wait
	var all sync.WaitGroup
	n := 0
	for range 8 {
		all.Go(func() {
			for range 1000 {
				unlock := k.Lock("a")
				n++
				unlock()
			}
		})
	}
	require.Zero(t, n, "the lock is taken")
	free()
	all.Wait()
	require.Equal(t, 8000, n)
	require.Empty(t, k.used, "nothing is left of keys that nobody holds")
}
