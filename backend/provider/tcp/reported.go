package tcp

import "time"

const logEvery = time.Minute

// reported is a counter that warnings name, once a minute at most.
type reported struct {
	count uint64 // as last reported
	at    time.Time
}

// more returns what has come since the last report, if another one is due.
func (r *reported) more(count uint64) uint64 {
	if count == r.count || time.Since(r.at) < logEvery {
		return 0
	}
	n := count - r.count
	r.count, r.at = count, time.Now()
	return n
}
