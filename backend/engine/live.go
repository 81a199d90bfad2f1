package engine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime/metrics"
	"time"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/stats"
	"gorail/backend/transfer"
)

// mostShown is the number of transfers in flight that a reader gets.
const mostShown = 256

// openSocket makes the socket of option stats_socket. Without one the engine works as well.
func (e *Engine) openSocket() {
	folders := stats.FoldersOf(e.opt.StatsSocket, os.Getenv)
	if len(folders) == 0 {
		return
	}
	var errs []error
	for _, folder := range folders {
		err := stats.Folder(folder)
		if err == nil {
			if e.socket, err = stats.Listen(folder, e.blob.Engine.String()[:16], stats.Source{Live: e.Live, Trace: e.Trace}, core.CloseInForks); err == nil {
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

// Live reads the counters and the transfers in flight. A post may wait while the queues of one link are counted. Implements
// stats.Source.
func (e *Engine) Live() (l stats.Live, err error) {
	err = e.inside(func() error {
		l = stats.Live{Process: e.process(), Runtime: goRuntime(), Snapshot: e.snapshot(), Core: e.core.Counters(), Control: e.control(), Log: e.tap.Recent()}
		l.Transfers, l.LeftOut = e.transfers.InFlight(mostShown)
		return nil
	})
	return l, err
}

func (e *Engine) process() stats.Process {
	host, _ := os.Hostname()
	command, _ := os.Executable()
	return stats.Process{Version: e.version, PID: os.Getpid(), Host: host, Command: filepath.Base(command), Started: e.started, Now: time.Now()}
}

// goRuntime reads counters without stopping the world.
func goRuntime() (r stats.Runtime) {
	list := []metrics.Sample{{Name: "/gc/heap/allocs:objects"}, {Name: "/gc/heap/tiny/allocs:objects"}, {Name: "/sync/mutex/wait/total:seconds"}}
	metrics.Read(list)
	for _, m := range list[:2] {
		if m.Value.Kind() == metrics.KindUint64 {
			r.Objects += m.Value.Uint64()
		}
	}
	if list[2].Value.Kind() == metrics.KindFloat64 {
		r.LockWait = list[2].Value.Float64()
	}
	return r
}

// Trace notes transfers and log lines for a time, or until ctx ends. Implements stats.Source.
func (e *Engine) Trace(ctx context.Context, d time.Duration) (stats.Trace, error) {
	t, begin := stats.Trace{Agent: e.name, Process: e.process()}, core.Now()
	if err := e.inside(e.startTrace); err != nil {
		return t, err
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	t.Seconds = time.Since(t.Now).Seconds()
	return t, e.inside(func() error { e.stopTrace(&t, begin); return nil }) // the engine may have closed meanwhile
}

// inside makes a call inside the engine, unless its end has begun.
func (e *Engine) inside(call func() error) error {
	if err := e.enter(); err != nil {
		return err
	}
	defer e.life.Leave()
	return call()
}

func (e *Engine) startTrace() error {
	err := e.core.StartTrace() // one at a time
	if err == nil {
		if err = e.tap.Start(); err != nil {
			e.core.StopTrace()
		}
	}
	return err
}

// stopTrace takes the notes since begin, a value of core.Now.
func (e *Engine) stopTrace(t *stats.Trace, begin time.Duration) {
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
			End: micros(x.Ended - begin), Status: errcode.Status(x.Err).String(), Coarse: x.Coarse}
		for _, i := range x.Rails {
			if i < len(e.rails.List) {
				one.Rails = append(one.Rails, e.rails.List[i].Name())
			}
		}
		t.Transfers = append(t.Transfers, one)
	}
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
