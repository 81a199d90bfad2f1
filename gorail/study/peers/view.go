package peers

import (
	"fmt"
	"time"

	"gorail/gorail/result"
	"gorail/gorail/study/peers/crowd"
)

// Columns of the table, by name.
const (
	ColBackend, ColAdd, ColConnect = "backend", "us to add a peer", "ms until a first transfer to each has ended"
	ColFirst, ColFDs, ColMemory    = "ms of a first transfer: p99", "descriptors a peer", "KiB a peer"
	ColWriters, ColFair, ColSum    = "writers", "the fastest to the slowest", "GB/s of all"
	ColWithin, ColCPU, ColPerCPU   = "within one process, at most", "processor time of a writer", "bytes in a second of it"
	ColIdle                        = "% of a core of the hub, idle"
	ColAlone50, ColAlone99         = "us alone: p50", "p99 alone"
	ColIdle50, ColIdle99           = "beside idle peers: p50", "p99 beside idle"
	ColBusy50, ColBusy99           = "beside writers: p50", "p99 beside writers"
	ColWaveCPU                     = "processor ms a restarted peer, both ends"
	ColMesh                        = "s until all pairs have moved bytes"
	ColMeshCPU                     = "processor ms a pair and direction"
	ColWave                        = "s until all that were restarted are met again"
)

// fill fills in the result.
func fill(o Options, runs []*run, r *result.Result) {
	n := float64(o.Peers)
	t := result.Table{Title: fmt.Sprintf("A hub and %d peers", o.Peers), Keys: 1, Columns: []string{ColBackend, ColAdd, ColConnect, ColFirst, ColFDs, ColMemory, ColWriters, ColFair, ColSum, ColWave, ColIdle, ColWaveCPU}}
	for _, x := range runs {
		if len(x.meet.First) == 0 {
			continue
		}
		first := x.meet.First[min(len(x.meet.First)-1, len(x.meet.First)*99/100)]
		row := []result.Cell{result.Word(x.backend), result.Num(float64(x.meet.Add.Microseconds()) / n), result.Num(ms(x.meet.All)), result.Num(ms(first)),
			result.Num(float64(x.with.fds-x.before.fds) / n), result.Num(float64(x.with.memory-x.before.memory) / n), {}, {}, {}, {}, result.Num(100 * x.idleCPU), {}}
		text := fmt.Sprintf("%s: %d peers are added in %s us each, and a first transfer to each has ended after %s ms; a peer takes %s descriptors and %s KiB of the hub",
			x.backend, o.Peers, row[1], row[2], row[4], row[5])
		if k := len(x.writers); k > 0 {
			sum := 0.0
			for _, w := range x.writers {
				sum += w.rate
			}
			row[6], row[7], row[8] = result.Num(float64(k)), result.Num(spread(x.writers, rate)), result.Num(sum)
			text += fmt.Sprintf("; of %d that write at once the fastest moves %s times as much as the slowest", k, row[7])
		}
		if len(x.wave.First) > 0 {
			row[9] = result.Num((x.wave.Add + x.wave.All).Seconds())
			row[11] = result.Num(ms(x.waveCPU) / n)
			text += fmt.Sprintf("; after all were killed and started again, the hub has met them within %s s", row[9])
		}
		t.Rows = append(t.Rows, row)
		r.Findings = append(r.Findings, text+".")
	}
	for _, x := range runs {
		if m := x.found.mesh; m.agents > 0 {
			r.Findings = append(r.Findings, fmt.Sprintf("%s: %d agents that all meet at once have moved bytes between all pairs after %s s, at %s ms of processor time a pair and direction.",
				x.backend, m.agents, result.Num(m.took.Seconds()), result.Num(ms(m.cpu)/float64(m.agents*(m.agents-1)))))
		}
	}
	s := result.Section{Title: "Peers"}
	for _, of := range []result.Table{t, pairs(runs), meshes(runs), shares(runs)} {
		if len(of.Rows) > 0 {
			s.Tables = append(s.Tables, of)
		}
	}
	if len(s.Tables) > 0 {
		r.Sections = append(r.Sections, s)
	}
	r.Methods = append(r.Methods,
		fmt.Sprintf("The hub loads the metadata of all peers, then posts a WRITE of 4 KiB to each, without a wait between them. Descriptors and anonymous memory are the hub's, after that less before. Up to %d peers write 256 KiB again and again, each to its own place at the hub. Then all processes of peers are killed and started again under the same names; the time runs from when the hub has their metadata.", writers),
		"One pair: an agent in a process of its own and the hub, each in turn, one transfer at a time; it polls without a pause. Idle: processor time of all threads of the hub. All to all: each agent loads the metadata of all others and posts a WRITE of 4 KiB to each, all agents at once, with xfer_timeout and connect_timeout of 4 minutes.",
		"Over shared memory the writers' copies are made again without NIXL: process_vm_readv of as many bytes of the hub, with the same pauses, by the same threads. What these writers' shares differ by is the kernel's scheduler.")
}

func rate(w writer) float64 { return w.rate }

// pairs is one pair, alone and beside others.
func pairs(runs []*run) result.Table {
	t := result.Table{Title: "One pair, a WRITE of 4 KiB", Keys: 2, Columns: []string{ColBackend, "direction", ColAlone50, ColAlone99, ColIdle50, ColIdle99, ColBusy50, ColBusy99}}
	for _, x := range runs {
		for i, direction := range []string{"to the hub", "from the hub"} {
			if i >= len(x.beside.alone) {
				continue
			}
			row := []result.Cell{result.Word(x.backend), result.Word(direction)}
			for _, list := range [][]crowd.LatencyOut{x.beside.alone, x.beside.idle, x.beside.busy} {
				if i >= len(list) {
					row = append(row, result.Cell{}, result.Cell{})
					continue
				}
				row = append(row, result.Num(us(list[i].P50)), result.Num(us(list[i].P99)))
			}
			t.Rows = append(t.Rows, row)
		}
	}
	return t
}

// meshes is what it takes when all meet all.
func meshes(runs []*run) result.Table {
	t := result.Table{Title: "All to all", Keys: 1, Columns: []string{ColBackend, "agents", ColMesh, ColMeshCPU, "descriptors a pair and direction", "KiB a pair and direction"}}
	for _, x := range runs {
		m := x.found.mesh
		if m.agents == 0 {
			continue
		}
		n := float64(m.agents * (m.agents - 1))
		t.Rows = append(t.Rows, []result.Cell{result.Word(x.backend), result.Num(float64(m.agents)), result.Num(m.took.Seconds()), result.Num(ms(m.cpu) / n), result.Num(float64(m.fds) / n), result.Num(float64(m.memory) / n)})
	}
	return t
}

func us(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// shares is what the writers' processes got of the processors, and what they made of it.
func shares(runs []*run) result.Table {
	t := result.Table{Title: "Where the shares of writers come from", Keys: 2, Columns: []string{ColBackend, "what", ColFair, ColWithin, ColCPU, ColPerCPU, ColSum}}
	for _, x := range runs {
		for _, k := range []struct {
			what string
			list []writer
		}{{"transfers", x.writers}, {"process_vm_readv alone", x.plain}} {
			if len(k.list) == 0 {
				continue
			}
			sum, within := 0.0, 1.0
			by := map[int][]writer{}
			for _, w := range k.list {
				sum += w.rate
				by[w.process] = append(by[w.process], w)
			}
			for _, list := range by {
				within = max(within, spread(list, rate))
			}
			t.Rows = append(t.Rows, []result.Cell{result.Word(x.backend), result.Word(k.what), result.Num(spread(k.list, rate)), result.Num(within),
				result.Num(spread(k.list, func(w writer) float64 { return w.cpu })), result.Num(spread(k.list, func(w writer) float64 { return w.perCPU })), result.Num(sum)})
		}
	}
	return t
}

func ms(d time.Duration) float64 { return d.Seconds() * 1e3 }
