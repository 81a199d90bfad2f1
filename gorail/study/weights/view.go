package weights

import (
	"fmt"
	"time"

	"gorail/gorail/measure"
	"gorail/gorail/result"
	"gorail/gorail/study/weights/rank"
)

func ms(d time.Duration) float64 { return d.Seconds() * 1e3 }

// The tables of a model.
const (
	refits = iota
	plain
	reposts
	registration
	beside
)

// row adds a row to a table of the model.
func (s *study) row(table int, cells ...any) {
	var row []result.Cell
	for _, c := range cells {
		switch v := c.(type) {
		case string:
			row = append(row, result.Word(v))
		case int:
			row = append(row, result.Num(float64(v)))
		case float64:
			row = append(row, result.Num(v))
		case result.Cell:
			row = append(row, v)
		}
	}
	s.tables[table].Rows = append(s.tables[table].Rows, row)
}

// begin makes the tables of a model.
func (s *study) begin() {
	s.rates = map[string]float64{}
	s.tables = []result.Table{
		{Title: "Refits", Keys: 3, Columns: []string{"layout", "way", "backend", "requests", "ranges", "GB", "GB/s", "to plain copies", "ms", "ms of the first", "us to make one", "us to post one p50", "mean"}},
		{Title: "Plain copies to the workers' tensors, as the limit", Keys: 3, Columns: []string{"layout", "copy", "threads", "workers", "GB/s"}},
		{Title: "Posts of small prepared READs, one after the other", Keys: 3, Columns: []string{"layout", "way", "backend", "requests", "bytes", "us to make one", "posts", "us to post p50", "mean", "p99",
			"us of the copy alone", "us of a turn", "through Go", "Go objects a post"}},
		{Title: "Registration of all regions", Keys: 3, Columns: []string{"layout", "process", "backend", "regions", "handles", "us of the first", "ms of all", "ms again", "us a region again"}},
		{Title: "Further regions while a worker reads", Keys: 3, Columns: []string{"layout", "registers", "backend", "GB/s", "beside a thread that computes", "that registers", "ratio to nothing", "to computing", "longest ms without an end", "while registering", "regions", "failed",
			"us to register one p50", "longest", "ms for 1,000 at once p50", "longest"}},
	}
}

// end makes a section and findings of a model.
func (s *study) end(m rank.Model) {
	if len(s.tables[refits].Rows) == 0 {
		return
	}
	s.r.Sections = append(s.r.Sections, result.Section{Title: m.Name, Text: fmt.Sprintf("%s in bfloat16: %s GB.", m.What, measure.Num(float64(m.Bytes(s.Scale))/1e9)), Tables: s.tables})
	for _, row := range s.tables[refits].Rows {
		if row[2].Text != "GORAIL" {
			continue
		}
		what := row[0].Text + ", " + row[1].Text
		text := fmt.Sprintf("%s, %s: %v GB take %v ms (%v GB/s, %v of a plain copy), the first time %v. A request takes %v us to make, %v to post.", m.Name, what, row[5], row[8], row[6], row[7], row[9], row[10], row[12])
		if u := s.rates[what+"UCX"]; u > 0 {
			text += fmt.Sprintf(" UCX moves %s GB/s; GORAIL %s it.", measure.Num(u), result.Ratio(s.rates[what+"GORAIL"], u))
		}
		s.r.Findings = append(s.r.Findings, text)
	}
	for _, row := range s.tables[registration].Rows {
		if row[2].Text == "GORAIL" {
			s.r.Findings = append(s.r.Findings, fmt.Sprintf("%s, %s, %s: the first region takes %v us to register, all %v take %v ms, and %v ms again.", m.Name, row[0].Text, row[1].Text, row[5], row[3], row[6], row[7]))
		}
	}
	for _, row := range s.tables[reposts].Rows {
		if row[2].Text == "GORAIL" {
			text := fmt.Sprintf("%s, %s, %s: to post one of %v prepared READs of %v bytes again takes %v us", m.Name, row[0].Text, row[1].Text, row[3], row[4], row[7])
			if row[10].Value != nil {
				text += fmt.Sprintf(", of which the kernel's copy takes %v", row[10])
			}
			if row[12].Value != nil {
				text += fmt.Sprintf("; %v of %v posts enter Go, which allocates %v objects a post", row[12], row[6], row[13])
			}
			s.r.Findings = append(s.r.Findings, text+".")
		}
	}
	for _, row := range s.tables[beside].Rows {
		if row[2].Text == "GORAIL" {
			s.r.Findings = append(s.r.Findings, fmt.Sprintf("%s, %s: while %s registers %v further regions and takes them back (%v calls fail), a worker reads %v of %v GB/s (%v beside a thread that only computes); no transfer ends for %v ms at most, without that %v.",
				m.Name, row[0].Text, row[1].Text, row[10], row[11], row[5], row[3], row[4], row[9], row[8]))
		}
	}
	if len(s.r.Methods) == 0 {
		s.r.Methods = []string{
			"A request for each tensor and peer is made once and posted for each refit. READ: all workers read from the trainer at the same time. WRITE: the trainer writes to all, and a notification follows each tensor. Tree: a worker sends each tensor on when it has come. A refit lasts from the first post until the last worker has all; medians. GB are those of all workers.",
			"tensors: an allocation and a region each. arena: one region; on GPUs of VMM handles as the table says, from 1,019 on unless they had less than 2 MiB. resharded: a worker has half of each tensor, by rows in one range, by columns in a range for each row.",
			"Plain copies: all workers at the same time copy as many bytes to the same tensors, whole, from other memory of theirs: by memcpy in one thread, and in as many as copy for an engine (the application's, the progress thread, copy_threads); or by cuMemcpyAsync from the trainer's GPU. Ratios are to the last of these.",
			"Every byte of every worker is compared after each way; the trainer's bytes differ from way to way.",
			"Each process registers one region, then the others in one call, takes all back and registers all again in one call; the pages of host memory were touched before. The trainer of each layout and backend is the first process, and the worker starts after it has registered. 1,000 further regions have the layout's sizes. They are registered and taken back in turn one a call and all in one call: by a second thread of the reader's agent (NIXL_THREAD_SYNC_RW), or by the trainer, which posts nothing. Spans in which that thread does nothing, computes and registers alternate: with fewer cores than threads, a thread that computes slows transfers, too.",
			"Posts of refits are timed in Go: a call into C is in each time.",
			"Prepared lists: one list of all ranges for each side, of which make_xfer_req takes a tensor's; otherwise create_xfer_req. The small READs read of all tensors in turn. A turn posts all, then waits for all; post_xfer_req is timed in C, from before the call to its return. A post in shared memory copies up to 64 KiB itself: the copy alone is process_vm_readv of the same bytes. Go objects are those of the plugin's whole process, its tickers' too.",
		}
	}
}
