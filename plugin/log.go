package plugin

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gorail/backend/host"
	"gorail/backend/option"
	"gorail/backend/stats"
)

// logLevel is shared by the process. The option `log` of the newest engine sets it. Before the first engine it is warn.
var logLevel slog.LevelVar

// logJSON is option log_format of the newest engine.
var logJSON atomic.Bool

// logs writes log lines to standard error, or to the file of option log_file of the newest engine.
var logs = newOutput()

// flushTime limits how long the end of an engine waits for an unread log.
const flushTime = 100 * time.Millisecond

// lastWords limits how long a refusal to serve this process waits for the log: a program without its backend often ends at once.
const lastWords = time.Second

func init() {
	logLevel.Set(slog.LevelWarn)
	slog.SetDefault(processLog())
}

// processLog makes the logger of the process.
func processLog() *slog.Logger { return slog.New(newFormats(logs)).With("backend", "GORAIL") }

// setLog sets what all engines log, and where. A file is opened once in a process. agent is the newest engine's.
func setLog(o *option.Logging, agent string) error {
	if err := logs.use(stats.Expand(o.LogFile, agent)); err != nil {
		return err
	}
	logJSON.Store(o.LogJSON)
	logLevel.Set(o.Log)
	return nil
}

// output passes lines to the queue of one descriptor. A pipe may have no reader, and a file server may be down.
type output struct {
	now atomic.Pointer[host.Queue]

	mu    sync.Mutex
	files []logFile // the last used is the last
}

// logFile is an open file with its queue. The path of standard error is "".
type logFile struct {
	path  string
	fd    int
	queue *host.Queue
}

// mostFiles bounds the open files: with %a each name of an agent has a file of its own.
const mostFiles = 64

func newOutput() *output {
	o := &output{files: []logFile{{fd: syscall.Stderr, queue: queueTo(syscall.Stderr)}}}
	o.now.Store(o.files[0].queue)
	return o
}

func queueTo(fd int) *host.Queue {
	return host.NewQueue(host.QueueOptions{Write: host.LinesTo(fd), Dropped: droppedLine, Bytes: 1 << 20,
		Patience: 10 * time.Millisecond, Recovery: time.Second})
}

// use makes lines go to a file from now on. An open file stays open: another engine may come back to it. If too many are open, the
// file takes the place of the one that was used last the longest time ago.
func (o *output) use(path string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	at := slices.IndexFunc(o.files, func(f logFile) bool { return f.path == path })
	if at < 0 {
		fd, err := stats.Append(path)
		if err != nil {
			return err
		}
		at = len(o.files)
		old := slices.IndexFunc(o.files, func(f logFile) bool { return f.fd > syscall.Stderr })
		if at < mostFiles || old < 0 {
			o.files = append(o.files, logFile{path, fd, queueTo(fd)})
		} else {
			at = old
			if err := o.files[at].replace(path, fd); err != nil {
				return err
			}
		}
	}
	f := o.files[at]
	o.files = append(slices.Delete(o.files, at, at+1), f)
	o.now.Store(f.queue)
	return nil
}

// replace puts another file under the number of this one. A writer may still have the number: its line goes to the newer file.
func (f *logFile) replace(path string, fd int) error {
	f.queue.Flush(flushTime)
	err := syscall.Dup3(fd, f.fd, syscall.O_CLOEXEC)
	_ = syscall.Close(fd)
	if err == nil {
		f.path = path
	}
	return err
}

func (o *output) Write(line []byte) (int, error) { return o.now.Load().Write(line) }

// Flush waits until the lines are written, at most for the given time.
func (o *output) Flush(most time.Duration) { o.now.Load().Flush(most) }

// formats is a handler with both formats. Loggers of engines live longer than a choice of the format.
type formats struct{ text, json slog.Handler }

func newFormats(w interface{ Write([]byte) (int, error) }) formats {
	o := &slog.HandlerOptions{Level: &logLevel}
	return formats{slog.NewTextHandler(w, o), slog.NewJSONHandler(w, o)}
}

func (f formats) chosen() slog.Handler {
	if logJSON.Load() {
		return f.json
	}
	return f.text
}

// The methods implement slog.Handler.
func (f formats) Enabled(ctx context.Context, l slog.Level) bool {
	return f.chosen().Enabled(ctx, l)
}

func (f formats) Handle(ctx context.Context, r slog.Record) error {
	return f.chosen().Handle(ctx, r)
}

func (f formats) WithAttrs(a []slog.Attr) slog.Handler {
	return formats{f.text.WithAttrs(a), f.json.WithAttrs(a)}
}

func (f formats) WithGroup(name string) slog.Handler {
	return formats{f.text.WithGroup(name), f.json.WithGroup(name)}
}

// droppedLine is the log line that replaces dropped lines.
func droppedLine(lines int) []byte {
	var b strings.Builder
	r := slog.NewRecord(time.Now(), slog.LevelWarn, "log lines dropped: the log was not read in time", 0)
	r.Add("backend", "GORAIL", "lines", lines)
	_ = newFormats(&b).Handle(context.Background(), r)
	return []byte(b.String())
}
