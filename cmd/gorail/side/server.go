package side

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"time"

	"gorail/cmd/gorail/limits"
	"gorail/cmd/gorail/measure"
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
	return Serve(New())
}

// New returns a Server for this process.
func New() *Server { return &Server{remote: os.Getenv(envRemote) != ""} }

// Serve serves the driver with a Server, or with a type around one.
func Serve(server any) error {
	err := subprocess.Serve(service, server)
	if errors.Is(err, subprocess.ErrAlone) {
		return errors.New("only gorail bench and gorail doctor may start this command")
	}
	return err
}

// Server is the process. Its exported methods are the commands. The driver sends one command after the other.
type Server struct {
	remote     bool
	in         OpenArgs
	agent      *nixlapi.Agent
	back       *nixlapi.Backend
	buf        *nixlapi.Buffer
	copyTarget *nixlapi.Buffer // memcpy
	peer       PeerArgs
	name       string // the peer's agent

	reqs   [][]*nixlapi.Xfer // of the point, by thread
	jobs   []limits.Job
	op     string // operation of the jobs
	socks  []*os.File
	listen net.Listener // tcp, target
	serve  *nixlapi.Server
	poll   func()        // ends the polling of a limit's target
	cpu    time.Duration // at the start of polling
	watch  *watch
}

// Open creates the buffer, the agent and the backend. It is called once.
func (s *Server) Open(in OpenArgs, out *OpenOut) error {
	s.in = in
	if err := s.environ(); err != nil {
		return err
	}
	var err error
	if s.buf, err = alloc(in.Memory, int(in.Room)); err != nil {
		return fmt.Errorf("%s of memory: %w", measure.SizeName(in.Room), err)
	}
	touch(s.buf.B)
	out.Base, out.Pid = s.buf.Addr(), os.Getpid()
	threads(in.Threads + 4)
	fds := countFDs()
	s.watch = startWatch()
	if in.Limit != "" {
		limits.Allow()
		if in.Limit == "memcpy" {
			if s.copyTarget, err = alloc(in.Memory, int(in.Room)); err == nil {
				touch(s.copyTarget.B)
			}
		}
		return err
	}
	if err := s.open(out); err != nil {
		return err
	}
	out.FDs = countFDs() - fds
	return nil
}

// alloc maps memory of a kind.
func alloc(memory string, size int) (*nixlapi.Buffer, error) {
	switch memory {
	case "", "dram":
		return nixlapi.Alloc(size)
	case "memfd":
		return nixlapi.AllocShared(size)
	}
	return nil, fmt.Errorf("no memory %q in this version of gorail", memory)
}

// environ sets the variables that NIXL and the backend read when they are loaded.
func (s *Server) environ() error {
	if s.remote {
		if len(s.in.Env) > 0 {
			return errors.New("environment variables have to be set where --listen runs, for all backends")
		}
		s.in.Wheel, s.in.PluginDir = "", ""
	}
	if s.in.Wheel == "" {
		s.in.Wheel = os.Getenv("NIXL_WHEEL_DIR")
	}
	// UCX would replace the Go runtime's fault handlers.
	set := map[string]string{"UCX_HANDLE_ERRORS": "none"}
	if s.in.PluginDir != "" {
		set["NIXL_PLUGIN_DIR"] = s.in.PluginDir
	}
	for _, m := range []map[string]string{set, s.in.Env} {
		for k, v := range m {
			if err := os.Setenv(k, v); err != nil {
				return err
			}
		}
	}
	return nil
}

var syncs = map[string]nixlapi.Sync{"none": nixlapi.SyncNone, "strict": nixlapi.SyncStrict, "rw": nixlapi.SyncRW}

func (s *Server) open(out *OpenOut) error {
	in := s.in
	lib, err := nixlapi.Open(in.Wheel)
	if err != nil {
		return err
	}
	cfg := nixlapi.Config{ProgThread: in.Prog, Sync: syncs[in.Sync]}
	if s.agent, err = lib.NewAgent(in.Name, cfg); err != nil {
		return err
	}
	began := time.Now()
	if s.back, err = s.agent.CreateBackend(in.Backend, in.Params); err != nil {
		return fmt.Errorf("backend %s (NIXL_PLUGIN_DIR=%s): %w", in.Backend, os.Getenv("NIXL_PLUGIN_DIR"), err)
	}
	out.Create = time.Since(began)
	if out.Later, err = again(lib, cfg, in); err != nil {
		return err
	}
	if err := s.agent.Register(nixlapi.DRAM, []nixlapi.Desc{s.buf.Desc(0, in.Room)}, s.back); err != nil {
		return err
	}
	if out.MD, err = s.agent.Metadata(); err != nil {
		return err
	}
	out.Versions = versions(in.Wheel)
	return nil
}

// again creates a second agent with the backend, measures that, and closes the agent.
func again(lib *nixlapi.Lib, cfg nixlapi.Config, in OpenArgs) (time.Duration, error) {
	a, err := lib.NewAgent(in.Name+"-again", cfg)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	_, err = a.CreateBackend(in.Backend, in.Params)
	took := time.Since(began)
	return took, errors.Join(err, a.Close())
}

// Load loads the target's metadata into the initiator.
func (s *Server) Load(in PeerArgs, _ *None) error {
	s.peer = in
	if s.agent == nil {
		return nil
	}
	var err error
	s.name, err = s.agent.Load(in.MD)
	return err
}

// Close releases everything. The process ends with its connection.
func (s *Server) Close(None, *None) error {
	err := s.drop()
	if s.agent != nil {
		err = errors.Join(err, s.agent.Close())
	}
	return err
}

// Stats returns the growth of the process.
func (s *Server) Stats(_ None, out *Stats) error {
	*out = s.watch.peak()
	return nil
}

// versions names the wheel by its dist-info folder.
func versions(wheel string) string {
	found, _ := filepath.Glob(filepath.Join(wheel, "nixl_cu*.dist-info"))
	name := "NIXL"
	if len(found) > 0 {
		name = filepath.Base(found[0][:len(found[0])-len(".dist-info")])
	}
	return name + ", " + runtime.Version()
}
