package initiator

import (
	"log/slog"
	"time"
)

// logEvery is how often a peer that cannot be reached is logged while the application goes on trying.
const logEvery = time.Minute

// failedDials is what the log has of a peer that is dialed in vain.
type failedDials struct {
	n    int // since the last session that was ready
	told time.Time
}

// lost counts the end of a session, and gives the level to log it at.
func (f *failedDials) lost(wasReady bool) slog.Level {
	if f.n++; wasReady {
		f.n = 0
	}
	if f.n > 1 && time.Since(f.told) < logEvery {
		return slog.LevelDebug
	}
	f.told = time.Now()
	return slog.LevelWarn
}

// dialing is the level of the line before a dial.
func (f *failedDials) dialing() slog.Level {
	if f.n > 0 {
		return slog.LevelDebug // what comes of it is logged
	}
	return slog.LevelInfo
}
