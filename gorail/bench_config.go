package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gorail/gorail/cli"
	"gorail/gorail/drive"
	"gorail/gorail/measure"
	"gorail/gorail/plugindir"
)

// config converts flags to the configuration of a benchmark.
func (o *benchFlags) config() (*drive.Config, error) {
	points, err := o.points()
	if err != nil {
		return nil, cli.Usage("%v", err)
	}
	subjects, err := measure.ParseSubjects(cmp.Or(o.compare, o.backend))
	if err != nil {
		return nil, cli.Usage("--compare: %v", err)
	}
	if o.connect.Given() {
		o.limits = slices.DeleteFunc(slices.Clone(o.limits), func(l string) bool { return l == "process_vm" })
	}
	limits, err := measure.LimitSubjects(o.limits)
	if err != nil {
		return nil, cli.Usage("--limits: %v", err)
	}
	if o.wheel, err = plugindir.OneWheel(o.wheel, o.cuda); err != nil { // once: it may start an interpreter, which must not run beside a pair
		return nil, err
	}
	c := &drive.Config{Points: points, Repeats: o.repeats, Prog: o.prog, Sync: "none", Target: o.target, Notify: true,
		Check: o.check, Connect: o.connect, Wheel: o.wheel, PluginDir: o.pluginDir,
		Pace: measure.Pace{Warmup: o.warmup, Count: o.iterations, Time: o.time, Limit: o.timeout}}
	if c.Setup, err = o.processes(); err != nil {
		return nil, err
	}
	c.Subjects = subjects
	if c.Limited() && slices.ContainsFunc(points, measure.Point.Transfers) {
		c.Subjects = append(subjects, limits...)
	}
	if slices.ContainsFunc(points, func(p measure.Point) bool { return p.Threads > p.Engines() }) {
		c.Sync = "rw"
	}
	if !slices.Contains(targets, c.Target) {
		return nil, cli.Usage("--target %q: want %s", c.Target, strings.Join(targets, ", "))
	}
	for _, s := range subjects {
		file := filepath.Join(o.pluginDir(s.Backend), "libplugin_"+s.Backend+".so")
		if _, err := os.Stat(file); err != nil {
			there := plugindir.Backends(o.pluginDir("GORAIL"), o.pluginDir(s.Backend))
			return nil, fmt.Errorf("no backend %s: no %s; backends that are there: %s; choose a folder with --plugins", s.Backend, file, cmp.Or(strings.Join(there, ", "), "none"))
		}
	}
	return c, nil
}

// processes returns the processes and their memory.
func (o *benchFlags) processes() (s drive.Setup, err error) {
	s.GPUs = o.gpus
	for _, m := range []struct {
		flag, name string
		to         *string
	}{{"memory", cmp.Or(o.initiatorType, o.memory), &s.Memory}, {"memory", cmp.Or(o.targetType, o.memory), &s.TargetMemory}} {
		if *m.to, err = measure.ParseMemory(m.name); err != nil {
			return s, cli.Usage("--memory, --initiator_seg_type, --target_seg_type: %v", err)
		}
		if o.vmm && *m.to == "vram" {
			*m.to = "vmm"
		}
	}
	device := measure.OnGPU(s.Memory) || measure.OnGPU(s.TargetMemory)
	if len(o.gpus) > 0 && !device {
		return s, cli.Usage("--gpus wants memory of a GPU: --memory vram")
	}
	return s, nil
}

// pluginDir returns the folder that a backend is loaded from.
func (o *benchFlags) pluginDir(backend string) string {
	return plugindir.FolderOf(backend, o.plugins, o.wheel)
}

// setup describes the settings that all points share.
func (o *benchFlags) setup(c *drive.Config) string {
	word := func(yes bool, a, b string) string {
		if yes {
			return a
		}
		return b
	}
	where := word(!c.Connect.Given(), "on one host", "on two hosts")
	kinds := c.Memory
	if c.TargetMemory != c.Memory {
		kinds = c.Memory + " to " + c.TargetMemory
	}
	return fmt.Sprintf("Two processes %s, memory %s, progress thread %s, sync mode %s, a notification a transfer, the target %s, %s, %v a point, %d repeats",
		where, kinds, word(c.Prog, "on", "off"), c.Sync,
		c.Target,
		o.distance(), c.Pace.Time, c.Repeats)
}

// distance says where the descriptors lie.
func (o *benchFlags) distance() string {
	if o.layout != whole {
		return fmt.Sprintf("layout %s, ids %s, pool %d", o.layout, o.ids, o.pool)
	}
	return "4 KiB between descriptors"
}
