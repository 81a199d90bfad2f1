package main

import (
	"log/slog"
	"os"
)

// logLevel is one for the process; the option `log` of the newest engine sets it. Errors and warnings before that.
var logLevel slog.LevelVar

func init() {
	logLevel.Set(slog.LevelWarn)
	h := slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: &logLevel})
	slog.SetDefault(slog.New(h).With("backend", "GORAIL"))
}
