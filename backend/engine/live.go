package engine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/stats"
	"gorail/backend/statsocket"
	"gorail/backend/status"
	"gorail/backend/transfer"
)

// mostShown is the number of transfers in flight that a reader gets.
const mostShown = 256

// openSocket makes the socket of option stats_socket. Without one the engine works as well.
func (e *Engine) openSocket() {
	var folders []string
	switch e.opt.StatsSocket {
	case "off":
		return
	case "auto":
		folders = statsocket.Folders(os.Getenv)
	default:
		folders = []string{e.opt.StatsSocket}
	}
	var errs []error
	for _, folder := range folders {
		err := statsocket.Folder(folder)
		if err == nil {
			if e.socket, err = statsocket.Listen(folder, e.blob.Engine.String()[:16], e, core.Forks{}); err == nil {
				e.log.Debug("the engine shows its state", "socket", e.socket.Path())
				return
			}
		}
		errs = append(errs, err)
	}
	level := e.log.Info
	if e.opt.StatsSocket != "auto" {
		level = e.log.Warn
	}
	level("no socket for gorail top, stats and metrics (option stats_socket)", "err", errors.Join(errs...))
}

// Live reads the counters and what is under way. No transfer waits for it. Implements statsocket.Source.
func (e *Engine) Live() (stats.Live, error) {
	if !e.life.Enter() {
		return stats.Live{}, errcode.EngineClosed.Errorf("the engine is closed")
	}
	defer e.life.Leave()
	l := stats.Live{Process: e.process(), Snapshot: e.snapshot(), Core: e.core.Counters(), Control: e.control(), Log: e.tap.Recent()}
	l.Transfers, l.LeftOut = e.transfers.InFlight(mostShown)
	return l, nil
}

func (e *Engine) process() stats.Process {
	host, _ := os.Hostname()
	command, _ := os.Executable()
	return stats.Process{Version: e.version, PID: os.Getpid(), Host: host, Command: filepath.Base(command), Started: e.started, Now: time.Now()}
}

// Trace notes transfers and log lines for a time, or until ctx ends. Implements statsocket.Source.
func (e *Engine) Trace(ctx context.Context, d time.Duration) (stats.Trace, error) {
	t, begin := stats.Trace{Agent: e.name, Process: e.process()}, core.Now()
	if err := e.trace(true, &t, begin); err != nil {
		return t, err
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	t.Seconds = time.Since(t.Now).Seconds()
	return t, e.trace(false, &t, begin)
}

// trace starts the notes, or stops them and takes them. The engine may close in between.
func (e *Engine) trace(start bool, t *stats.Trace, begin time.Duration) error {
	if !e.life.Enter() {
		return errcode.EngineClosed.Errorf("the engine is closed")
	}
	defer e.life.Leave()
	if start {
		err := e.core.StartTrace() // one at a time
		if err == nil {
			err = e.tap.Start()
		}
		return err
	}
	t.Lines, t.LostLines = e.tap.Stop()
	list, lost := e.core.StopTrace()
	t.Lost = lost
	peers := map[uint64]string{}
	for _, v := range append(e.past.Besides(nil), e.views()...) {
		peers[v.Session()] = v.Agent()
	}
	t.Transfers = make([]stats.TracedTransfer, 0, len(list))
	for _, x := range list {
		if x.Ended < begin {
			continue // a thread wrote it late, for an earlier trace
		}
		one := stats.TracedTransfer{Peer: peers[x.Session], Op: transfer.OpName(x.Op), Bytes: x.Bytes, Rails: []string{}, Begin: micros(x.Posted - begin),
			End: micros(x.Ended - begin), Status: status.Code(x.Err).String(), Coarse: x.Coarse}
		for _, i := range x.Rails {
			if i < len(e.rails.List) {
				one.Rails = append(one.Rails, e.rails.List[i].Name())
			}
		}
		t.Transfers = append(t.Transfers, one)
	}
	return nil
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
