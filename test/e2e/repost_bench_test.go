package e2e

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"gorail/nixlapi"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// BenchmarkRepost posts one small WRITE again and again, and reports the times of the post and of the transfer. With
// another build's plugin folder in GORAIL_OTHER_PLUGIN_DIR, it measures both builds in turns:
//
//	go test ./test/e2e -run NONE -bench Repost -benchtime 10x
func BenchmarkRepost(b *testing.B) {
	const turn = 2000
	env := ours(b)
	for _, size := range []uint64{4 << 10, 64 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			sides := []*side{newSide(b, env, "", size)}
			if dir := os.Getenv("GORAIL_OTHER_PLUGIN_DIR"); dir != "" {
				other := env
				other.PluginDir = dir
				sides = append(sides, newSide(b, other, "-other", size))
			}
			for b.Loop() {
				for _, s := range sides {
					l := s.x.Loop(worker.LoopArgs{N: turn, Timeout: limit, Times: true})
					s.post, s.lat = append(s.post, l.Post...), append(s.lat, l.Lat...)
				}
			}
			for _, s := range sides {
				b.ReportMetric(median(s.post), "ns-post"+s.name)
				b.ReportMetric(median(s.lat), "ns-transfer"+s.name)
			}
		})
	}
}

// side is a transfer that was posted before, between two agents with one build of the plugin, and its measured times.
type side struct {
	name      string
	x         *worker.Xfer
	post, lat []int64
}

func newSide(b *testing.B, env testenv.Env, name string, size uint64) *side {
	p := &pairOf{env: env, ini: agent(worker.Start(b, worker.Options{Env: env}), env, "alice"),
		tgt: agent(worker.Start(b, worker.Options{Env: env}), env, "bob")}
	mine, theirs := p.buffers(size)
	p.ini.Learn(p.tgt)
	x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: mine.All(), Remote: theirs.All(), Peer: "bob"})
	x.Do(limit)
	return &side{name: name, x: x}
}

func median(ns []int64) float64 {
	slices.Sort(ns)
	return float64(ns[len(ns)/2])
}
