package session

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestLoansPaced: a peer that asks for handles all the time gets a burst of the driver's time, then half of it. One that pauses gets a burst again.
func TestLoansPaced(t *testing.T) {
	const each, all = 250 * time.Millisecond, 10 * time.Minute
	var p pace
	began := time.Unix(1000, 0)
	now, spent, longest := began, time.Duration(0), time.Duration(0)
	for now.Sub(began) < all {
		w := p.wait(now)
		longest, now = max(longest, w), now.Add(w+each)
		p.spent += each
		if spent += each; spent <= burst {
			require.Zero(t, w, "an honest peer's %v", spent)
		}
	}
	require.Less(t, spent, 2*burst+all/2)
	require.Greater(t, spent, all/3)
	require.Less(t, longest, 2*time.Second, "the initiator waits for eight answers: nvAnswer")
	require.Zero(t, p.wait(now.Add(time.Minute)))
	p.spent += burst
	require.Zero(t, p.wait(now.Add(time.Minute)))
}

// TestLoansFlood: of a flood of requests a bounded number waits, also while the peer has to wait for its turn, and all leave when the peer is gone.
func TestLoansFlood(t *testing.T) {
	var l loans
	l.spent, l.at = time.Hour, time.Now()
	done, left, admitted := make(chan struct{}), make(chan bool), 0
	for range 10 * mostLoans {
		if !l.admit() {
			continue
		}
		admitted++
		go func() {
			defer l.mu.Unlock()
			left <- l.turn(done)
		}()
	}
	require.Equal(t, mostLoans, admitted)
	select {
	case <-left:
		t.Fatal("a request has not waited for its turn")
	default:
	}
	close(done)
	for range admitted {
		require.False(t, <-left)
	}
}
