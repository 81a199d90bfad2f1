package initiator

import (
	"log/slog"
	"time"
)

// logEvery is the interval of the log lines about an unreachable peer while the application keeps trying.
const logEvery = time.Minute

// failedDials limits the log lines about an unreachable peer.
type failedDials struct {
	n int // dials since the last session that was ready
	// last log line at level WARN
	logged time.Time
}

// lost counts the end of a session, and returns the level to log it at.
func (f *failedDials) lost(wasReady bool) slog.Level {
	if f.n++; wasReady {
		f.n = 0
	}
	if f.n > 1 && time.Since(f.logged) < logEvery {
		return slog.LevelDebug
	}
	f.logged = time.Now()
	return slog.LevelWarn
}

// dialing is the level of the log line before a dial.
func (f *failedDials) dialing() slog.Level {
	if f.n > 0 {
		return slog.LevelDebug // the result of the dial is logged
	}
	return slog.LevelInfo
}
