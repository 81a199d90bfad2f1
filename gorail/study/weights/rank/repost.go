package rank

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"gorail/gorail/live"
	"gorail/gorail/measure"
	"gorail/nixlapi"
)

const (
	Reposted = 1000 // requests of Repost
	small    = 4096 // bytes of each
)

// RepostOut is what Repost did.
type RepostOut struct {
	Requests    int
	Size        uint64 // of each, at most
	Make        time.Duration
	Posts, Turn measure.Times // of each post by itself; of all requests, from the first post to the last end
	Copies      measure.Times // of the same bytes by process_vm_readv alone; none for memory of GPUs
	Counted     bool          // the engine's socket answers
	ThroughGo   uint64        // posts that entered the plugin's Go code
	Objects     float64       // that the plugin's Go runtime allocated, for each post
}

// Repost makes READs of a few bytes of all tensors in turn, and posts them all at once again and again, as for each version of the weights.
func (s *Server) Repost(in Args, out *RepostOut) (err error) {
	defer s.mems[0].Hold()()
	if err := errors.Join(s.drop(), s.load(in.Peers)); err != nil {
		return err
	}
	pairs := make([]pair, Reposted)
	for i := range pairs {
		r := s.descs(i%len(s.tensors), in.Peers[0])
		size := min(small, r.here[0].Len)
		off := uint64(i/len(s.tensors)) * size
		if off+size > r.here[0].Len {
			off = 0
		}
		cut := func(d nixlapi.Desc) []nixlapi.Desc {
			return []nixlapi.Desc{{Addr: d.Addr + off, Len: size, Dev: d.Dev}}
		}
		pairs[i], out.Size = pair{cut(r.here[0]), cut(r.there[0]), size}, max(out.Size, size)
	}
	made, took, err := s.requests(nixlapi.Read, in.Peers[0], pairs, in.Prepared)
	defer func() {
		for _, x := range made {
			err = errors.Join(err, x.Release())
		}
		err = errors.Join(err, s.drop())
	}()
	if err != nil {
		return err
	}
	out.Requests, out.Make = len(made), took
	for range 2 { // the first post of each goes through Go, and the second may: the peer's memory is mapped meanwhile
		if _, _, st := nixlapi.Turns(made, 0, in.Limit); st != nixlapi.Success {
			return st.Err("a first turn")
		}
	}
	before := engine()
	post, turn, st := nixlapi.Turns(made, in.Time, in.Limit)
	after := engine()
	if st != nixlapi.Success {
		return st.Err("a later turn")
	}
	out.Posts, out.Turn = measure.Times(post), measure.Times(turn)
	if before != nil && after != nil {
		out.Counted, out.ThroughGo = true, after.Core["cross_post"]-before.Core["cross_post"]
		out.Objects = float64(after.Runtime.Objects-before.Runtime.Objects) / float64(out.Posts.Count())
	}
	if s.in.Memory == "dram" { // refused where the processes may not: then there is no such way
		var all pair
		for _, r := range pairs {
			all.here, all.there = append(all.here, r.here...), append(all.there, r.there...)
		}
		copies, failed := nixlapi.ReadProcess(in.Peers[0].Pid, all.here, all.there, out.Posts.Count()/Reposted)
		if failed == nil {
			out.Copies = measure.Times(copies)
		}
	}
	return nil
}

// engine is what the socket of this process's engine says; nil: there is none.
func engine() *live.Engine {
	ctx, stop := context.WithTimeout(context.Background(), 5*time.Second)
	defer stop()
	all, _ := live.Source{}.Read(ctx)
	i := slices.IndexFunc(all, func(e live.Engine) bool { return e.Live != nil && e.PID == os.Getpid() })
	if i < 0 {
		return nil
	}
	return &all[i]
}
