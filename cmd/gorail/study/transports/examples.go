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

	"gorail/cmd/gorail/plugindir"
	"gorail/cmd/gorail/study/env"
	"gorail/cmd/gorail/study/result"
)

// programs are the example programs that move what training and serving move, with small sizes.
var programs = []struct {
	name string
	args []string
}{
	{"gradient_sync", []string{"--ranks", "2", "--buckets", "4", "--bucket-mib", "8", "--steps", "2", "--compute-ms", "20"}},
	{"checkpoint", []string{"--ranks", "2", "--mib", "64"}},
	{"weights", []string{"--workers", "2", "--versions", "4", "--mib", "32"}},
}

// programLimit bounds an example program, which waits a minute for its own processes.
const programLimit = 90 * time.Second

// examples runs the example programs over each fabric.
func (s *study) examples(ctx context.Context, r *result.Result) {
	dir := cmp.Or(s.Examples, filepath.Join(filepath.Dir(plugindir.FindPlugin()), "..", "examples"))
	if s.Examples == "none" || s.Effort == env.Smallest && s.Examples == "" {
		return
	}
	t := result.Table{Title: "Example programs", Keys: 2, Columns: result.Columns("program", "number")}
	for _, f := range s.fabrics {
		t.Columns = append(t.Columns, result.Column{Name: title(f)})
	}
	text := "Programs of the folder examples, which check all bytes, over each fabric of GORAIL."
	rows := map[string][]result.Cell{}
	var order []string
	for _, p := range programs {
		file := filepath.Join(dir, p.name+".py")
		if _, err := os.Stat(file); err != nil {
			continue
		}
		s.Progress.Expect(len(s.fabrics))
		for i, f := range s.fabrics {
			s.Progress.Step(p.name + " over " + f)
			numbers, err := s.program(ctx, file, p.args, f)
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
		}
	}
	for _, key := range order {
		t.Rows = append(t.Rows, rows[key])
	}
	if len(t.Rows) > 0 || strings.Contains(text, "did not run") {
		r.Sections = append(r.Sections, result.Section{Title: "Training and serving", Text: text, Tables: []result.Table{t}})
	}
}

// program runs one program, and returns the numbers of its results by their names: "ring bus_gb_per_s".
func (s *study) program(ctx context.Context, file string, args []string, fabric string) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, programLimit)
	defer cancel()
	out, err := os.CreateTemp("", "gorail-study-*.json")
	if err != nil {
		return nil, err
	}
	defer os.Remove(out.Name())
	defer out.Close()
	c := exec.CommandContext(ctx, cmp.Or(os.Getenv("GORAIL_PYTHON"), "python3"), append(append([]string{file}, args...), "--json", out.Name())...)
	c.Env = append(os.Environ(), "GORAIL_PROVIDER="+fabric, "NIXL_PLUGIN_DIR="+s.PluginDir("GORAIL"))
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
