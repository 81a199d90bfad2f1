package side

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"

	"gorail/gorail/bench/host"
	"gorail/gorail/bench/memory"
	"gorail/gorail/door"
	"gorail/gorail/limits"
	"gorail/gorail/measure"
	"gorail/internal/procstat"
	"gorail/internal/subprocess"
	"gorail/nixlapi"
)

const (
	service   = "Side"
	envRemote = "GORAIL_BENCH_REMOTE" // set if the driver is on another host
)

// Main serves the driver until the driver closes the connection.
func Main() error {
	debug.SetGCPercent(400)
	return Serve(New(), nil)
}

// New returns a Server for this process.
func New() *Server { return &Server{remote: os.Getenv(envRemote) != ""} }

// Serve serves the driver with a Server, or with a type around one. others are further services of the process, by their names.
func Serve(server any, others map[string]any) error {
	all := map[string]any{service: server}
	maps.Copy(all, others)
	var far subprocess.Far
	if os.Getenv(envRemote) != "" {
		far = door.Commands()
		door.Last()
	}
	err := subprocess.ServeFar(all, far)
	if errors.Is(err, subprocess.ErrAlone) {
		return errors.New("only gorail bench and gorail doctor may start this command")
	}
	return err
}

// Server is the process. Its exported methods are the commands. The driver sends one command after the other.
type Server struct {
	remote     bool
	opened     atomic.Bool
	in         OpenArgs
	agents     []engine
	buf        *memory.Memory
	copyTarget *memory.Memory // memcpy
	peer       *Peer          // once it is loaded

	point  point
	listen net.Listener // tcp, target
	serve  *nixlapi.Server
	poll   func()        // ends the polling of a limit's target
	cpu    time.Duration // at the start of polling
}

// engine is an agent with its backend.
type engine struct {
	*nixlapi.Agent
	back *nixlapi.Backend
}

// Hello answers whether this process and the driver understand each other.
func (s *Server) Hello(in HelloArgs, out *HelloOut) error {
	*out = HelloOut{Protocol, host.Machine()}
	return nil
}

// Alive says that the driver is there. It does nothing.
func (s *Server) Alive(None, *None) error { return nil }

// Open creates the buffer, the agents and their backends. It is called once.
func (s *Server) Open(in OpenArgs, out *OpenOut) error {
	if s.remote {
		if s.opened.Swap(true) {
			return errors.New("the process is open")
		}
		if err := in.afar(); err != nil {
			return err
		}
	}
	s.in = in
	if err := s.environ(); err != nil {
		return err
	}
	var err error
	if s.buf, err = memory.Alloc(in.Memory, in.GPU, in.Room); err != nil {
		return fmt.Errorf("%s of memory: %w", measure.SizeName(in.Room), err)
	}
	out.Base, out.Pid, out.Kind, out.Dev, out.GPU = s.buf.Addr(), os.Getpid(), s.buf.Kind, uint64(s.buf.GPU), s.buf.Name
	if in.Limit != "" {
		limits.Allow()
		if in.Limit == "memcpy" {
			s.copyTarget, err = memory.Alloc(in.Memory, in.GPU, in.Room)
		}
		return err
	}
	return s.open(out)
}

// environ sets the variables that NIXL and the backend read when they are loaded.
func (s *Server) environ() error {
	if s.remote {
		s.in.Wheel, s.in.PluginDir = "", ""
	}
	s.in.Wheel = cmp.Or(s.in.Wheel, os.Getenv("NIXL_WHEEL_DIR"))
	return Environ(s.in.PluginDir, s.in.Env)
}

// Environ sets the variables that NIXL and a backend read when they are loaded. Without a folder of plugins that of the environment stays.
func Environ(pluginDir string, env map[string]string) error {
	err := os.Setenv("UCX_HANDLE_ERRORS", "none") // UCX would replace the Go runtime's fault handlers
	if pluginDir != "" {
		err = errors.Join(err, os.Setenv("NIXL_PLUGIN_DIR", pluginDir))
	}
	for k, v := range env {
		err = errors.Join(err, os.Setenv(k, v))
	}
	return err
}

var syncs = map[string]nixlapi.Sync{"none": nixlapi.SyncNone, "strict": nixlapi.SyncStrict, "rw": nixlapi.SyncRW}

func (s *Server) open(out *OpenOut) error {
	in := s.in
	lib, err := nixlapi.Open(in.Wheel)
	if err != nil {
		return err
	}
	cfg := nixlapi.Config{ProgThread: in.Prog, Sync: syncs[in.Sync]}
	for i := range max(1, in.Agents) {
		name := in.Name
		if i > 0 {
			name = fmt.Sprintf("%s-%d", in.Name, i)
		}
		took, err := s.engine(lib, name, cfg)
		if err != nil {
			return err
		}
		if i == 0 {
			out.Create = took
		}
	}
	for _, a := range s.agents {
		if err := a.Register(s.buf.Kind, []nixlapi.Desc{s.buf.Desc(0, in.Room)}, a.back); err != nil {
			return err
		}
		out.Names = append(out.Names, a.Name())
		md, err := a.Metadata()
		if err != nil {
			return err
		}
		out.MD = append(out.MD, md)
	}
	out.Versions = Versions(in.Wheel)
	return nil
}

// engine adds an agent, and returns the time that its backend took.
func (s *Server) engine(lib *nixlapi.Lib, name string, cfg nixlapi.Config) (time.Duration, error) {
	a, err := lib.NewAgent(name, cfg)
	if err != nil {
		return 0, err
	}
	s.agents = append(s.agents, engine{Agent: a})
	began := time.Now()
	b, err := a.CreateBackend(s.in.Backend, s.in.Params)
	if err != nil {
		return 0, fmt.Errorf("backend %s (NIXL_PLUGIN_DIR=%s): %w", s.in.Backend, os.Getenv("NIXL_PLUGIN_DIR"), err)
	}
	s.agents[len(s.agents)-1].back = b
	return time.Since(began), nil
}

// Load loads a target's metadata into the initiator's agents: the first agent's into the first, and so on.
func (s *Server) Load(in Peer, _ *None) error {
	if s.remote {
		return errInitiator
	}
	for i, a := range s.agents {
		if _, err := a.Load(in.MD[i]); err != nil {
			return err
		}
	}
	s.peer = &in
	return nil
}

// Close releases everything but memory. The process ends with its connection.
func (s *Server) Close(None, *None) error {
	if s.serve != nil { // the other side has failed
		_, _ = s.serve.Want(0, 0)
		s.serve = nil
	}
	err := s.drop()
	for _, a := range s.agents {
		err = errors.Join(err, a.Close())
	}
	return err
}

// CPU returns the CPU time of the process.
func (s *Server) CPU(_ None, out *time.Duration) error {
	*out = procstat.CPUTime()
	return nil
}

// Versions names the wheel by its dist-info folder.
func Versions(wheel string) string {
	found, _ := filepath.Glob(filepath.Join(wheel, "nixl_cu*.dist-info"))
	name := "NIXL"
	if len(found) > 0 {
		name = filepath.Base(found[0][:len(found[0])-len(".dist-info")])
	}
	return name + ", " + runtime.Version()
}
