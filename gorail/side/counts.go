package side

import (
	"context"
	"maps"
	"os"
	"time"

	"gorail/gorail/count"
	"gorail/gorail/live"
	"gorail/gorail/measure"
	"gorail/nixlapi"
)

// counts counts what transfers cost. Its methods do nothing with nil.
type counts struct {
	folder string // of the sockets of GORAIL's engines; "": another backend
	before look
}

// look is what the process has used at one time. Reading it uses some, too.
type look struct {
	count.Use
	ok      bool // the Go runtime of the backend is known
	objects uint64
	wait    time.Duration
}

// startCounts returns nil if nothing is to be counted. It lets GORAIL's engines of this process tell about their Go runtime, in a folder
// of their own: that changes in.
func startCounts(in *OpenArgs) (c *counts, err error) {
	if !in.Counts {
		return nil, nil
	}
	c = &counts{}
	if in.Backend != "GORAIL" {
		return c, nil
	}
	if c.folder, err = os.MkdirTemp("", "gorail-counts-*"); err != nil {
		return nil, err
	}
	in.Params = maps.Clone(in.Params)
	if in.Params == nil {
		in.Params = map[string]string{}
	}
	in.Params["stats_socket"] = c.folder
	return c, nil
}

// look reads what was used until now. All engines of a process have one Go runtime, so one tells.
func (c *counts) look() (l look) {
	if c.folder != "" {
		if list, err := (live.Source{Folder: c.folder}).Read(context.Background()); err == nil && len(list) > 0 && list[0].Live != nil {
			l.ok, l.objects, l.wait = true, list[0].Runtime.Objects, time.Duration(list[0].Runtime.LockWait*float64(time.Second))
		}
	}
	l.Use = count.Now()
	return l
}

// begin reads what was used until now: twice, because the first reading tells what one reading uses.
func (c *counts) begin() {
	if c == nil {
		return
	}
	first := c.look()
	c.before = c.look()
	c.before.objects += c.before.objects - first.objects // that of end's reading
}

// since is the cost of n transfers since begin.
func (c *counts) since(n uint64) (out measure.Cost) {
	if c == nil {
		return out
	}
	out.N, out.Use = n, count.Now().Sub(c.before.Use)
	if after := c.look(); after.ok && c.before.ok {
		out.Runtimes, out.GoN, out.Wait = 1, n, after.wait-c.before.wait
		out.Objects = max(after.objects, c.before.objects) - c.before.objects
	}
	return out
}

// timed replaces the counts by those of the time that the threads' clocks ran.
func timed(c *measure.Cost, threads []nixlapi.BenchOut) {
	if c.N == 0 || len(threads) == 0 {
		return
	}
	first, last := threads[0].Use[0], threads[0].Use[1]
	c.N = 0
	for _, o := range threads {
		c.N += o.Done
		for i := range first {
			first[i], last[i] = min(first[i], o.Use[0][i]), max(last[i], o.Use[1][i])
		}
	}
	c.Use = count.Of(last).Sub(count.Of(first))
}

// tracedEach is how many transfers of each thread show who allocates.
const tracedEach = 100

// trace posts some more transfers, and notes in c who allocates meanwhile.
func trace(c *measure.Cost, work []nixlapi.Work, limit time.Duration) (out []nixlapi.BenchOut) {
	c.Callers = count.Trace(func() { out = nixlapi.Bench(work, nixlapi.BenchArgs{Count: tracedEach, Limit: limit}) })
	for _, o := range out {
		c.Traced += o.Posted
	}
	return out
}

// end removes the folder.
func (c *counts) end() error {
	if c == nil || c.folder == "" {
		return nil
	}
	return os.RemoveAll(c.folder)
}
