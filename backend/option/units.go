package option

import "log/slog"

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
)

// maxCopyThreads is LC_THREADS of provider/shm.
const maxCopyThreads = 15

// mostRails is the limit of max_rails, and defaultRails its default.
const mostRails, defaultRails = 32, 8

// levels of the option log.
var levels = map[string]slog.Level{"error": slog.LevelError, "warn": slog.LevelWarn, "info": slog.LevelInfo, "debug": slog.LevelDebug}
