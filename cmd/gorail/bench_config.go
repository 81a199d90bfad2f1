package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gorail/cmd/gorail/drive"
	"gorail/cmd/gorail/measure"
	"gorail/cmd/gorail/plugindir"
	"gorail/nixlapi"
)

// config converts flags to the configuration of a benchmark.
func (o *benchFlags) config() (*drive.Config, error) {
	points, err := o.points()
	if err != nil {
		return nil, err
	}
	subjects, err := measure.ParseSubjects(cmp.Or(o.compare, o.backend))
	if err != nil {
		return nil, fmt.Errorf("--compare: %w", err)
	}
	if o.connect != "" {
		o.limits = slices.DeleteFunc(slices.Clone(o.limits), func(l string) bool { return l == "process_vm" })
	}
	limits, err := measure.LimitSubjects(o.limits)
	if err != nil {
		return nil, fmt.Errorf("--limits: %w", err)
	}
	if o.wheel == "" {
		o.wheel = plugindir.FindWheel(o.cuda) // once: it may start an interpreter, which must not run beside a pair
	}
	if o.wheel != "" {
		if o.wheel, err = plugindir.OneWheel(o.wheel, o.cuda); err != nil {
			return nil, err
		}
	}
	c := &drive.Config{Points: points, Repeats: o.repeats, Prog: o.prog, Sync: o.sync, Target: o.target, Notify: !o.noNotify, Memory: o.memory,
		Check: o.check, Connect: o.connect, Wheel: o.wheel, PluginDir: o.pluginDir,
		Pace: measure.Pace{Warmup: o.warmup, Count: o.iterations, Time: o.time, Limit: o.timeout}}
	if c.Subjects = append(subjects, limits...); !slices.ContainsFunc(points, measure.Point.Transfers) {
		c.Subjects = subjects
	}
	if c.Sync == "" {
		c.Sync = "none"
		if slices.ContainsFunc(points, func(p measure.Point) bool { return p.Threads > 1 }) {
			c.Sync = "rw"
		}
	}
	if !slices.Contains([]string{"none", "strict", "rw"}, c.Sync) {
		return nil, fmt.Errorf("--sync %q: want none, strict or rw", c.Sync)
	}
	if !slices.Contains([]string{"polls", "naps", "sleeps"}, c.Target) {
		return nil, fmt.Errorf("--target %q: want polls, naps or sleeps", c.Target)
	}
	if !slices.Contains(measure.Memories, c.Memory) {
		return nil, fmt.Errorf("--memory %q: want %s", c.Memory, strings.Join(measure.Memories, " or "))
	}
	if c.Wheel == "" {
		return nil, errors.New("no NIXL wheel found: say where one is installed with --wheel (its site-packages folder)")
	}
	for _, s := range subjects {
		file := filepath.Join(o.pluginDir(s.Backend), "libplugin_"+s.Backend+".so")
		if _, err := os.Stat(file); err != nil {
			return nil, fmt.Errorf("no backend %s: no %s; choose a folder with --plugins", s.Backend, file)
		}
	}
	return c, nil
}

// pluginDir returns the folder that a backend is loaded from.
func (o *benchFlags) pluginDir(backend string) string {
	if o.plugins != "" {
		return o.plugins
	}
	if own := filepath.Dir(plugindir.FindPlugin()); exists(filepath.Join(own, "libplugin_"+backend+".so")) {
		abs, _ := filepath.Abs(own)
		return abs
	}
	return nixlapi.PluginDir(o.wheel)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// setup describes the settings that all points share.
func (o *benchFlags) setup(c *drive.Config) string {
	word := func(yes bool, a, b string) string {
		if yes {
			return a
		}
		return b
	}
	return fmt.Sprintf("Two processes %s, memory %s, progress thread %s, sync mode %s, %s, the target %s, %s, %v a point, %d repeats",
		word(c.Connect == "", "on one host", "on two hosts"), c.Memory, word(c.Prog, "on", "off"), c.Sync,
		word(c.Notify, "a notification a transfer", "no notifications"), c.Target,
		word(o.dense, "descriptors touch", "4 KiB between descriptors"), c.Pace.Time, c.Repeats)
}
