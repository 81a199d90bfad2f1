package main

import (
	"context"
	"log/slog"
	"strings"
	"syscall"
	"time"

	"gorail/backend/logqueue"
)

// logLevel is shared by the process. The option `log` of the newest engine sets it. Before the first engine it is warn.
var logLevel slog.LevelVar

// logs writes log lines to standard error, which may be a pipe that nobody reads.
var logs = logqueue.New(logqueue.Options{Write: logqueue.To(syscall.Stderr), Dropped: droppedLine, Bytes: 1 << 20,
	Patience: 10 * time.Millisecond, Recovery: time.Second})

// flushTime limits how long the end of an engine waits for an unread log.
const flushTime = 100 * time.Millisecond

func init() {
	logLevel.Set(slog.LevelWarn)
	h := slog.NewTextHandler(logs, &slog.HandlerOptions{Level: &logLevel})
	slog.SetDefault(slog.New(h).With("backend", "GORAIL"))
}

// droppedLine is the log line that replaces dropped lines.
func droppedLine(lines int) []byte {
	var b strings.Builder
	r := slog.NewRecord(time.Now(), slog.LevelWarn, "log lines dropped: standard error was not read in time", 0)
	r.Add("backend", "GORAIL", "lines", lines)
	_ = slog.NewTextHandler(&b, nil).Handle(context.Background(), r)
	return []byte(b.String())
}
