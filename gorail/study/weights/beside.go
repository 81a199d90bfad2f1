package weights

import (
	"cmp"
	"fmt"
	"time"

	"gorail/gorail/measure"
	"gorail/gorail/study/env"
	"gorail/gorail/study/weights/rank"
	"gorail/internal/subprocess"
)

// beside lets a worker read all tensors again and again, while a second thread of it, or the trainer, does nothing, computes, and registers further
// regions, in turn. What a thread that only computes takes away is the lack of cores; the rest is what registrations cost.
func (s *study) beside(all []*member, layout, backend string) error {
	span := cmp.Or(s.Time, env.Pick(s.Env, time.Second, 300*time.Millisecond, 50*time.Millisecond))
	if _, err := subprocess.Call[rank.RegisterOut](all[0].Client, "Beside", rank.Args{}, limit); err != nil { // the memory, before anything is timed
		return err
	}
	for _, who := range []string{"the reader", "the trainer"} {
		var bytes [3]uint64 // by what the second thread does
		var wall, gap [3]time.Duration
		var made rank.RegisterOut
		for i := range len(bytes) * env.Pick(s.Env, 5, 4, 1) {
			k := i % len(bytes)
			here, there := rank.Args{Second: rank.Second(k), Time: span, Limit: limit}, rank.Args{Second: rank.Second(k), Time: span}
			if who == "the trainer" {
				here.Second = rank.Nothing
			}
			read := subprocess.Go[rank.StreamOut](all[1].Client, "Stream", here, limit+time.Minute)
			if who == "the trainer" && k > 0 {
				out, err := subprocess.Call[rank.RegisterOut](all[0].Client, "Beside", there, limit)
				if made.Add(out); err != nil {
					_, _ = read.Result()
					return err
				}
			}
			out, err := read.Result()
			if err != nil {
				return err
			}
			made.Add(out.RegisterOut)
			bytes[k], wall[k], gap[k] = bytes[k]+out.Bytes, wall[k]+out.Wall, max(gap[k], out.Gap)
		}
		rate := func(k rank.Second) float64 { return float64(bytes[k]) / 1e9 / wall[k].Seconds() }
		s.row(beside, layout, who, backend, rate(rank.Nothing), rate(rank.Computes), rate(rank.Registers), rate(rank.Registers)/rate(rank.Nothing), rate(rank.Registers)/rate(rank.Computes),
			ms(gap[rank.Nothing]), ms(gap[rank.Registers]), made.Regions, made.Failed, env.Micros(&made.One, 0.5), float64(made.One.Max)/1e3, milli(&made.All, 0.5), float64(made.All.Max)/1e6)
		if made.Failed > 0 {
			s.Fail(s.r, fmt.Sprintf("%s, %s: %d registrations by %s beside a reader", layout, backend, made.Failed, who), fmt.Errorf("%s", made.Why))
		}
	}
	return nil
}

// milli is a percentile in milliseconds.
func milli(t *measure.Times, q float64) float64 { return t.Quantile(q) / 1e6 }
