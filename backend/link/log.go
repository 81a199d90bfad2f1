package link

import (
	"context"
	"log/slog"
	"time"
)

// burstLines is how many lines of one link the log takes at once. From then on it takes one line a second.
const burstLines = 10

// Log logs a line about the link. A link that goes down and up all the time has one line a second: the attribute
// suppressed counts the lines before that were not written.
func (l *Link) Log(log *slog.Logger, level slog.Level, text string, args ...any) {
	if !log.Enabled(context.Background(), level) {
		return
	}
	lost, ok := l.lines.Next(time.Now())
	if !ok {
		return
	}
	if lost > 0 {
		args = append(args, "suppressed", lost)
	}
	log.Log(context.Background(), level, text, args...)
}
