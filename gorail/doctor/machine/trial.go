package machine

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"gorail/backend/engine"
	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/provider/auto"
	"gorail/backend/rails"
	"gorail/backend/topo"
	"gorail/gorail/doctor"
	"gorail/gorail/plugindir"
	"gorail/gorail/side"
)

// choose finds and chooses devices as an engine does, and opens none.
func choose(o option.Options) (out doctor.Rails, err error) {
	p := auto.New(o, nil)
	if out.Found, err = p.Discover(context.Background(), provider.Filter{Fabrics: o.Provider, Devices: o.Devices}); err != nil {
		return out, err
	}
	out.Now, out.Late, out.Left = rails.New(o, quiet, p, nil).Choose(out.Found, topo.Read(os.DirFS("/sys")))
	return out, nil
}

// engineTime bounds the creation of an engine: a device or a driver may hang.
const engineTime = 4 * time.Second

// newEngine creates an engine as the plugin does, and closes it.
func newEngine(o option.Options) ([]string, error) {
	w := &warnings{}
	log := slog.New(w)
	o.StatsFile = "" // its file is the application's
	ended := make(chan error, 1)
	go func() {
		e, err := engine.New(engine.Config{Agent: "doctor", Options: o, Provider: auto.New(o, log), Log: log})
		if err == nil {
			err = e.Close()
		}
		ended <- err
	}()
	select {
	case err := <-ended:
		return w.list(), err
	case <-time.After(engineTime):
		return w.list(), fmt.Errorf("no engine within %v: a device or its driver hangs", engineTime)
	}
}

// warnings is a log handler that keeps warnings and errors.
type warnings struct {
	mu    sync.Mutex
	lines []string
}

func (*warnings) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }
func (w *warnings) WithAttrs([]slog.Attr) slog.Handler         { return w }
func (w *warnings) WithGroup(string) slog.Handler              { return w }

func (w *warnings) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	b.WriteString(r.Message)
	r.Attrs(func(a slog.Attr) bool {
		fmt.Fprintf(&b, " %s=%v", a.Key, a.Value)
		return true
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines = append(w.lines, b.String())
	return nil
}

func (w *warnings) list() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lines
}

// agentTime bounds a second process with a NIXL agent. It needs half a second.
const agentTime = 10 * time.Second

// newAgent starts a process with a NIXL agent of the wheel, which loads the plugin.
func newAgent(params map[string]string) (string, error) {
	s, err := side.Spawn()
	if err != nil {
		return "", err
	}
	defer s.End(time.Second)
	out, err := side.Call[side.OpenOut](s, "Open", OpenArgs("doctor", params), agentTime)
	nixl, tool, _ := strings.Cut(out.Versions, ", ")
	return nixl + " (driven by " + tool + ")", err
}

// OpenArgs are the arguments of a process with an agent: the wheel and the plugin of this machine.
func OpenArgs(name string, params map[string]string) side.OpenArgs {
	return side.OpenArgs{Name: name, Backend: "GORAIL", Params: params, Wheel: plugindir.FindWheel(""), PluginDir: pluginDir(), Prog: true, Sync: "rw", Room: 8 << 20, Threads: 1}
}

// pluginDir is NIXL_PLUGIN_DIR if it has GORAIL, else the folder of the plugin: an application loads it from there.
func pluginDir() string {
	path := plugindir.FindPlugin()
	if dir := os.Getenv("NIXL_PLUGIN_DIR"); dir != "" {
		if linked := filepath.Join(dir, filepath.Base(path)); plugindir.Ours(linked) {
			path = linked
		}
	}
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	return filepath.Dir(path)
}
