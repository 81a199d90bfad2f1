package transports

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gorail/gorail/plugindir"
	"gorail/gorail/result"
	"gorail/gorail/study/env"
)

// program is an example program that moves what training and serving move.
type program struct {
	name string
	args []string
}

// programs are all of them. Buckets have the usual 25 MiB; three workers are the least of which a tree differs from flat.
func programs(e *env.Env) []program {
	return []program{
		{"gradient_sync", append([]string{"--bucket-mib", "25"}, env.Pick(e, []string{"--ranks", "4", "--buckets", "8", "--steps", "3", "--compute-ms", "50"}, []string{"--ranks", "2", "--buckets", "4", "--steps", "1", "--compute-ms", "50"}, nil)...)},
		{"checkpoint", env.Pick(e, []string{"--ranks", "4", "--mib", "128"}, []string{"--ranks", "2", "--mib", "64"}, nil)},
		{"weights", append([]string{"--workers", "3"}, env.Pick(e, []string{"--versions", "8", "--mib", "64"}, []string{"--versions", "3", "--mib", "32"}, nil)...)},
	}
}

// programLimit bounds an example program, which waits a minute for its own processes.
const programLimit = 90 * time.Second

// examples runs the example programs over each fabric.
func (s *study) examples(ctx context.Context, r *result.Result) {
	dir := cmp.Or(s.Examples, filepath.Join(filepath.Dir(plugindir.FindPlugin()), "..", "examples"))
	if s.Examples == "none" || s.Effort == env.Smallest && s.Examples == "" {
		return
	}
	t := result.Table{Title: "Example programs", Keys: 2, Columns: []string{"program", "number"}}
	for _, f := range s.fabrics {
		t.Columns = append(t.Columns, title(f))
	}
	text := "Programs of the folder examples, which check all bytes, over each fabric of GORAIL: an all-reduce of gradients by a ring and by a tree beside a backward pass, the shards of a checkpoint to a store's memory and by NIXL's POSIX plugin to a file, and back, weights to workers flat and by a tree."
	plugins, remove, err := s.beside()
	if err != nil {
		text += fmt.Sprintf(" Without NIXL's POSIX plugin: %v.", err)
	}
	defer remove()
	rows := map[string][]result.Cell{}
	var order []string
	for _, p := range programs(s.Env) {
		file := filepath.Join(dir, p.name+".py")
		if _, err := os.Stat(file); err != nil {
			continue
		}
		s.Progress.Expect(len(s.fabrics))
		for i, f := range s.fabrics {
			s.Progress.Step(p.name + " over " + f)
			numbers, err := s.program(ctx, file, p.args, f, plugins)
			if err != nil {
				text += fmt.Sprintf(" %s over %s did not run: %v.", p.name, f, err)
				continue
			}
			for _, n := range slices.Sorted(maps.Keys(numbers)) {
				key := p.name + " " + n
				if rows[key] == nil {
					rows[key] = make([]result.Cell, 2+len(s.fabrics))
					rows[key][0], rows[key][1] = result.Word(p.name), result.Word(n)
					order = append(order, key)
				}
				rows[key][2+i] = result.Num(numbers[n])
			}
			r.Findings = append(r.Findings, said(p.name, title(f), numbers)...)
		}
	}
	for _, key := range order {
		t.Rows = append(t.Rows, rows[key])
	}
	if len(t.Rows) > 0 || strings.Contains(text, "did not run") {
		r.Sections = append(r.Sections, result.Section{Title: "Training and serving", Text: text, Tables: []result.Table{t}})
	}
}

// beside makes a folder of plugins that has NIXL's own beside GORAIL, as checkpoint.py wants it. With --plugins it is that folder.
func (s *study) beside() (dir string, remove func(), err error) {
	dir, remove = s.PluginDir("GORAIL"), func() {}
	if s.Plugins != "" {
		return dir, remove, nil
	}
	made, err := os.MkdirTemp("", "gorail-study-*")
	if err != nil {
		return dir, remove, err
	}
	remove = func() { _ = os.RemoveAll(made) }
	both, err := plugindir.Make(plugindir.Spec{Dir: filepath.Join(made, "nixl"), Wheel: s.Wheel, Plugin: filepath.Join(dir, "libplugin_GORAIL.so")})
	if err != nil {
		return dir, remove, err
	}
	return both.Plugins, remove, nil
}

// said is the answer in words of what a program measured over a fabric.
func said(name, fabric string, n map[string]float64) (out []string) {
	has := func(keys ...string) bool {
		return !slices.ContainsFunc(keys, func(k string) bool { _, ok := n[k]; return !ok })
	}
	switch {
	case name == "gradient_sync" && has("ring overhead_percent", "tree overhead_percent", "ring bus_gb_per_s"):
		out = append(out, fmt.Sprintf("%s, gradients summed beside the backward pass: it takes %.0f %% longer by a ring, %.0f %% by a tree (ring alone: %s GB/s).", fabric,
			n["ring overhead_percent"], n["tree overhead_percent"], num(n["ring bus_gb_per_s"])))
	case name == "checkpoint" && has("memory save_gb_per_s", "memory restore_gb_per_s"):
		text := fmt.Sprintf("%s, a checkpoint: saved to a store's memory with %s GB/s, restored with %s", fabric, num(n["memory save_gb_per_s"]), num(n["memory restore_gb_per_s"]))
		if has("file save_gb_per_s", "file restore_gb_per_s") {
			text += fmt.Sprintf("; to a file with %s, restored with %s", num(n["file save_gb_per_s"]), num(n["file restore_gb_per_s"]))
		}
		out = append(out, text+".")
	case name == "weights" && has("flat gb_per_s", "tree gb_per_s"):
		out = append(out, fmt.Sprintf("%s, weights to three workers: %s GB/s flat, %s by a tree.", fabric, num(n["flat gb_per_s"]), num(n["tree gb_per_s"])))
	}
	return out
}

// program runs one program, and returns the numbers of its results by their names: "ring bus_gb_per_s".
func (s *study) program(ctx context.Context, file string, args []string, fabric, plugins string) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, programLimit)
	defer cancel()
	out, err := os.CreateTemp("", "gorail-study-*.json")
	if err != nil {
		return nil, err
	}
	defer os.Remove(out.Name())
	defer out.Close()
	c := exec.CommandContext(ctx, cmp.Or(os.Getenv("GORAIL_PYTHON"), "python3"), append(append([]string{file}, args...), "--json", out.Name())...)
	c.Env = append(os.Environ(), "GORAIL_PROVIDER="+fabric, "NIXL_PLUGIN_DIR="+plugins)
	c.WaitDelay = 5 * time.Second
	said, err := c.CombinedOutput()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(string(said)), "\n")
		return nil, fmt.Errorf("%w: %s", err, lines[len(lines)-1])
	}
	text, err := os.ReadFile(out.Name())
	if err != nil {
		return nil, err
	}
	var got struct {
		Results map[string]any `json:"results"`
	}
	if err := json.Unmarshal(text, &got); err != nil {
		return nil, fmt.Errorf("its JSON: %w", err)
	}
	numbers := map[string]float64{}
	flatten("", got.Results, numbers)
	return numbers, nil
}

// flatten takes the numbers of nested objects. Lists are left out.
func flatten(prefix string, in map[string]any, out map[string]float64) {
	for k, v := range in {
		switch v := v.(type) {
		case float64:
			out[prefix+k] = v
		case map[string]any:
			flatten(prefix+k+" ", v, out)
		}
	}
}
