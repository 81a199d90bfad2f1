package campaign

import (
	"math"
	"slices"
	"strings"
	"time"
)

// sums are what a round did to requests.
type sums struct {
	first       []time.Duration // from the peer's return to a good request, of each pair of the victim that had one
	undisturbed time.Duration   // the longest good request of all pairs before the fault, as the router sees it
	inFlight    int             // failed: to or from the victim, in flight when the fault began
	during      int             // begun while it lasted
	after       int             // begun after its end
	others      int             // of pairs without the victim, or before the fault
	hung        int             // of all these: no end, or no answer
	wrong       []string        // bytes that are not the owner's
	pairs       int             // without the victim, that had requests before and meanwhile
	slower      int             // of them: the median is more than a tenth above that before
	requests    int             // of these pairs meanwhile
	slow        int             // of them: more than a tenth above the slowest but one of 100 before
	why         []string        // what failed requests said, once each
}

// fewest is the number of requests that a median wants.
const fewest = 3

// tenth is what counts as slower.
const tenth = 1.1

// sum fills in the sums of all rounds.
func (c *campaign) sum() {
	all := c.traffic.all
	slices.SortFunc(all, func(a, b request) int { return int(a.end - b.end) })
	before := map[int][]time.Duration{} // of each pair: what good requests took in quiet times
	for k, r := range c.rounds {
		end := time.Duration(math.MaxInt64)
		if k+1 < len(c.rounds) {
			end = c.rounds[k+1].quiet
		}
		from := r.quiet
		if k == 0 {
			from = 0
		}
		meanwhile := map[int][]time.Duration{}
		victims := c.pairsOf(r.victim)
		for _, q := range all {
			switch {
			case q.end < from || q.end >= end:
			case q.wrong != "":
				r.wrong = append(r.wrong, q.wrong)
			case q.failed != "":
				r.count(q, slices.Contains(victims, q.pair))
			case q.end < r.began:
				if q.began >= r.quiet { // not the first, which connects
					r.undisturbed = max(r.undisturbed, q.end-q.began)
					before[q.pair] = append(before[q.pair], q.took)
				}
			case q.began >= r.began && q.began < r.back && !slices.Contains(victims, q.pair):
				meanwhile[q.pair] = append(meanwhile[q.pair], q.took)
			}
		}
		for p, took := range meanwhile {
			r.compare(before[p], took)
		}
		for _, p := range victims {
			if i := slices.IndexFunc(all, func(q request) bool { return q.pair == p && q.failed == "" && q.wrong == "" && q.end > r.back }); i >= 0 && !slices.Contains(r.waiting, p) {
				r.first = append(r.first, all[i].end-r.back)
			}
		}
		slices.Sort(r.first)
	}
}

// count counts a failed request.
func (r *round) count(q request, victims bool) {
	switch {
	case !victims || q.end < r.began:
		r.others++
	case q.began < r.made:
		r.inFlight++
	case q.began < r.back:
		r.during++
	default:
		r.after++
	}
	if strings.Contains(q.failed, "no end within") || strings.Contains(q.failed, "hangs: no answer") {
		r.hung++
	}
	if !slices.Contains(r.why, q.failed) {
		r.why = append(r.why, q.failed)
	}
}

// compare compares a pair's requests while another node had a fault with those before.
func (r *round) compare(before, meanwhile []time.Duration) {
	if len(before) < fewest || len(meanwhile) < fewest {
		return
	}
	before = slices.Sorted(slices.Values(before))
	slices.Sort(meanwhile)
	r.pairs++
	if float64(at(meanwhile, 0.5)) > tenth*float64(at(before, 0.5)) {
		r.slower++
	}
	r.requests += len(meanwhile)
	for _, d := range meanwhile {
		if float64(d) > tenth*float64(at(before, 0.99)) {
			r.slow++
		}
	}
}

// at is a quantile of sorted times; 0 without any.
func at(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// add adds the sums of another round.
func (s *sums) add(o sums) {
	s.first = slices.Sorted(slices.Values(append(s.first, o.first...)))
	for _, f := range []struct {
		to   *int
		more int
	}{{&s.inFlight, o.inFlight}, {&s.during, o.during}, {&s.after, o.after}, {&s.others, o.others}, {&s.hung, o.hung}, {&s.pairs, o.pairs}, {&s.slower, o.slower}, {&s.requests, o.requests}, {&s.slow, o.slow}} {
		*f.to += f.more
	}
	s.undisturbed = max(s.undisturbed, o.undisturbed)
	s.wrong, s.why = append(s.wrong, o.wrong...), append(s.why, o.why...)
}
