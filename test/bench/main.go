// Command bench compares NIXL backends on one host: two agents in two
// processes, one notification a transfer, the backends interleaved in one run.
//
//	go run ./test/bench -backends GORAIL,UCX -out section.md
//
// The timed loops run inside the worker processes. The initiator polls the
// status of its request flat out, the target its notifications.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"gorail/test/nixl"
	"gorail/test/testenv"
	"gorail/test/worker"
)

type config struct {
	backends []string
	progress []string
	ops      []nixl.Op
	sizes    []uint64
	lists    bool
	repeat   int
	budget   time.Duration
	tls      string
	modes    []string
	env      testenv.Env
}

func main() {
	worker.MaybeRun()
	var c config
	list := func(name, value, usage string) *string { return flag.String(name, value, usage+", comma-separated") }
	backends := list("backends", "GORAIL,UCX", "plugins to compare; ratios are to the last")
	progress := list("progress", "0,1", "progress thread off and on")
	ops := list("ops", "WRITE,READ", "directions")
	sizes := list("sizes", "4K,64K,1M,16M,64M", "block sizes of single-block transfers")
	modes := list("modes", "transfer", "what to measure: transfer, post, start, idle")
	flag.BoolVar(&c.lists, "lists", true, "also 64 x 4 KiB and 10,000 x 8 KiB")
	flag.IntVar(&c.repeat, "repeat", 3, "pairs of processes for each backend and setting")
	flag.DurationVar(&c.budget, "time", 500*time.Millisecond, "time for each case and pair")
	flag.StringVar(&c.tls, "ucx-tls", os.Getenv("UCX_TLS"), "UCX_TLS for the backend UCX, such as tcp")
	out := flag.String("out", "", "also write the tables to this file")
	flag.Parse()
	split := func(s *string) []string { return strings.Split(*s, ",") }
	c.backends, c.progress, c.modes = split(backends), split(progress), split(modes)
	for _, o := range split(ops) {
		op := nixl.Write
		if o == "READ" {
			op = nixl.Read
		}
		c.ops = append(c.ops, op)
	}
	for _, s := range split(sizes) {
		n, err := parseSize(s)
		if err != nil {
			fail(err)
		}
		c.sizes = append(c.sizes, n)
	}
	c.env = testenv.Load()
	for _, b := range c.backends {
		if err := c.envOf(b).Check(); err != nil {
			fail(err)
		}
	}
	text, err := c.run()
	fmt.Print(text)
	if err == nil && *out != "" {
		err = os.WriteFile(*out, []byte(text), 0o644)
	}
	if err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "bench:", err)
	os.Exit(1)
}

func (c *config) run() (string, error) {
	var b strings.Builder
	for _, m := range c.modes {
		var err error
		var text string
		switch m {
		case "transfer":
			text, err = c.transfers()
		case "post":
			text, err = c.posts()
		case "start":
			text, err = c.starts()
		case "idle":
			text, err = c.idle()
		default:
			err = fmt.Errorf("no mode %q", m)
		}
		if err != nil {
			return "", err
		}
		b.WriteString(text)
	}
	return b.String(), nil
}

func (c *config) envOf(backend string) testenv.Env {
	e := c.env
	e.Backend, e.PluginDir = backend, c.env.PluginDirOf(backend)
	return e
}

// title is how a backend appears in the tables.
func (c *config) title(backend string) string {
	if backend == "UCX" && c.tls != "" {
		return "UCX (" + c.tls + ")"
	}
	return backend
}

func parseSize(s string) (uint64, error) {
	var n uint64
	var unit string
	if k, _ := fmt.Sscanf(s, "%d%s", &n, &unit); k == 0 {
		return 0, fmt.Errorf("no size: %q", s)
	}
	switch unit {
	case "":
		return n, nil
	case "K":
		return n << 10, nil
	case "M":
		return n << 20, nil
	case "G":
		return n << 30, nil
	}
	return 0, fmt.Errorf("no unit: %q", s)
}

func sizeName(n uint64) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}
