// Package live reads the sockets of running engines (backend/stats): their counters, transfers in flight and traces.
package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"gorail/backend/stats"
)

// answerTime is how long an engine has to answer. A stopped process does not.
const answerTime = 2 * time.Second

// mostAnswer is the size of an answer at most, in bytes: a trace of 65,536 transfers has some 16 MiB.
const mostAnswer = 64 << 20

// Source says which engines to ask.
type Source struct {
	Folder string // of sockets; "": those of option stats_socket=auto
	Agent  string // "": all
}

// Engine is the answer of one engine.
type Engine struct {
	Socket string `json:"socket"`
	Error  string `json:"error,omitempty"` // why there is no answer
	*stats.Live
}

// Sockets lists the sockets of engines. It is an error if no folder can be read.
func (s Source) Sockets() (list []string, err error) {
	folders := []string{s.Folder}
	if s.Folder == "" {
		folders = stats.Folders(os.Getenv)
	}
	var errs []error
	for _, folder := range folders {
		found, err := stats.Sockets(folder)
		list = append(list, found...)
		if err != nil && (s.Folder != "" || !errors.Is(err, fs.ErrNotExist)) {
			errs = append(errs, err)
		}
	}
	if len(list) == 0 {
		return nil, errors.Join(errs...)
	}
	return list, nil
}

// Read asks all engines at once. Sockets of dead processes are left out. The order is that of agents and processes.
func (s Source) Read(ctx context.Context) ([]Engine, error) {
	sockets, err := s.Sockets()
	if err != nil {
		return nil, err
	}
	engines := make([]Engine, len(sockets))
	each(sockets, func(i int, path string) {
		l := new(stats.Live)
		engines[i].Socket = path
		if err := ask(ctx, path, "snapshot", answerTime, l); err == nil {
			engines[i].Live = l
		} else if !dead(err) {
			engines[i].Error = explain(err)
		}
	})
	engines = slices.DeleteFunc(engines, func(e Engine) bool {
		return e.Live == nil && e.Error == "" || s.Agent != "" && (e.Live == nil || e.Agent != s.Agent)
	})
	slices.SortStableFunc(engines, func(a, b Engine) int { return strings.Compare(a.name(), b.name()) })
	return engines, nil
}

// ID is the name of the engine in its socket. No two engines have the same.
func (e *Engine) ID() string {
	return strings.TrimSuffix(strings.TrimPrefix(filepath.Base(e.Socket), "stats-"), ".sock")
}

func (e *Engine) name() string {
	if e.Live == nil {
		return "\xff" + e.Socket // last
	}
	return fmt.Sprintf("%s %10d %s", e.Agent, e.PID, e.Socket)
}

// Trace traces all engines for a time at once, or until ctx ends. Engines that do not answer are in errs.
func (s Source) Trace(ctx context.Context, d time.Duration) (list []stats.Trace, errs error) {
	sockets, err := s.Sockets()
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	each(sockets, func(_ int, path string) {
		var t stats.Trace
		err := ask(ctx, path, fmt.Sprintf("trace %g", d.Seconds()), d+answerTime, &t)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err == nil && (s.Agent == "" || s.Agent == t.Agent):
			list = append(list, t)
		case err != nil && !dead(err):
			errs = errors.Join(errs, fmt.Errorf("%s: %s", path, explain(err)))
		}
	})
	slices.SortFunc(list, func(a, b stats.Trace) int { return a.Now.Compare(b.Now) })
	return list, errs
}

func each(sockets []string, f func(i int, path string)) {
	var wg sync.WaitGroup
	for i, path := range sockets {
		wg.Go(func() { f(i, path) })
	}
	wg.Wait()
}

// ask sends one request and decodes the answer.
func ask(ctx context.Context, path, request string, most time.Duration, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	if _, err = io.WriteString(c, request+"\n"); err != nil {
		return err
	}
	b, err := io.ReadAll(io.LimitReader(c, mostAnswer))
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return err
	}
	var f stats.Failure
	if err := json.Unmarshal(b, &f); err != nil {
		return fmt.Errorf("no answer that this version understands: %w", err)
	}
	if f.Error != "" {
		return errors.New(f.Error)
	}
	return json.Unmarshal(b, answer)
}

// dead reports that nobody listens on a socket.
func dead(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist)
}

func explain(err error) string {
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, syscall.EAGAIN):
		return "no answer: the process is stopped, or has no CPU time"
	case errors.Is(err, fs.ErrPermission):
		return "it belongs to another user: run this command as that user or as root"
	}
	return err.Error()
}
