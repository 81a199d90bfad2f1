// Package live reads the sockets of running engines (backend/statsocket): their counters and transfers in flight.
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
	"unicode"

	"gorail/backend/stats"
)

// answerTime is how long an engine has to answer. A stopped process does not.
const answerTime = 2 * time.Second

// mostAnswer is the size of an answer at most, in bytes.
const mostAnswer = 16 << 20

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
	var wg sync.WaitGroup
	for i, path := range sockets {
		wg.Go(func() {
			l := new(stats.Live)
			engines[i].Socket = path
			if err := ask(ctx, path, "snapshot", l); err == nil {
				engines[i].Live = l
			} else if !dead(err) {
				engines[i].Error = explain(err)
			}
		})
	}
	wg.Wait()
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

// Memory lets the plugin's Go runtime collect garbage, and returns what is left. path is the socket of an engine.
func Memory(ctx context.Context, path string) (m stats.Memory, err error) {
	err = ask(ctx, path, "memory", &m)
	return m, err
}

// ask asks one engine.
func ask(ctx context.Context, path, what string, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	if _, err = io.WriteString(c, what+"\n"); err != nil {
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

// Printable keeps names and log lines, which peers may choose, from controlling the terminal.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case !unicode.IsPrint(r):
			return '?'
		}
		return r
	}, s)
}
