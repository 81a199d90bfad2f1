package broken

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"gorail/test/lab"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"gorail/gorail/doctor"
	"gorail/test/skip"
	"gorail/test/testenv"
)

// scene is where one run of a set-up takes place. Its steps change a thread that ends with the run; processes that the thread starts
// inherit the changes, and nothing else of the machine sees them.
type scene struct {
	*testing.T
	env   testenv.Env
	vars  []string       // environment variables
	steps []func() error // on the thread, before it starts a process
	shell []string       // commands of sh that come before the tool
	tool  string
	user  *syscall.Credential // nil: this user
}

func newScene(t *testing.T, env testenv.Env) *scene {
	t.Helper()
	s := &scene{T: t, env: env, tool: filepath.Join(env.PluginDir, "gorail")}
	_, err := os.Stat(s.tool)
	require.NoError(t, err, "make build")
	s.set("GORAIL_PLUGIN_DIR="+env.PluginDir, "NIXL_WHEEL_DIR="+env.WheelDir, "NIXL_PLUGIN_DIR="+s.folder("--wheel", env.WheelDir))
	return s
}

func (s *scene) set(vars ...string)           { s.vars = append(s.vars, vars...) }
func (s *scene) before(steps ...func() error) { s.steps = append(s.steps, steps...) }
func (s *scene) limit(flag, value string)     { s.shell = append(s.shell, "ulimit -"+flag+" "+value) }
func (s *scene) temp() string                 { return open(s.T, s.TempDir()) }
func (s *scene) file(name, text string) (at string) {
	at = filepath.Join(s.temp(), name)
	syscall.ForkLock.RLock() // a fork meanwhile would inherit the descriptor: ETXTBSY
	defer syscall.ForkLock.RUnlock()
	require.NoError(s, os.WriteFile(at, []byte(text), 0o755))
	return at
}

// open lets other users into a folder of a test. TempDir makes the folder and the one above it; those further up are not the test's.
func open(t *testing.T, dir string) string {
	t.Helper()
	for _, at := range []string{dir, filepath.Dir(dir)} {
		require.NoError(t, os.Chmod(at, 0o755))
	}
	return dir
}

// folder makes a plugin folder with the tool.
func (s *scene) folder(args ...string) string {
	s.Helper()
	dir := s.temp()
	c := exec.Command(s.tool, append([]string{"plugins", "--dir", dir, "--plugin", filepath.Join(s.env.PluginDir, "libplugin_GORAIL.so")}, args...)...)
	out, err := c.CombinedOutput()
	require.NoError(s, err, "%s", out)
	return filepath.Join(dir, "plugins")
}

// aside runs f on a changed thread that ends with f.
func (s *scene) aside(f func() error) {
	s.Helper()
	done := make(chan error, 1)
	var ran error
	go func() {
		runtime.LockOSThread() // without an unlock: the thread ends with the goroutine
		defer close(done)      // f may end the goroutine by a failure of the test
		for _, step := range s.steps {
			if err := step(); err != nil {
				done <- err
				return
			}
		}
		ran = f()
		done <- nil
	}()
	err := <-done
	if s.Failed() {
		s.FailNow()
	}
	for _, lacks := range []error{unix.EPERM, unix.ENOSYS, unix.ENODEV, unix.EOPNOTSUPP} {
		if errors.Is(err, lacks) {
			skip.OrFail(s, err)
		}
	}
	require.NoError(s, err)
	require.NoError(s, ran)
}

// command is the tool as the set-up starts it.
func (s *scene) command(args ...string) *exec.Cmd {
	c := exec.Command(s.tool, args...)
	if len(s.shell) > 0 {
		line := strings.Join(s.shell, " && ") + ` && exec "$0" "$@"`
		c = exec.Command("sh", append([]string{"-c", line, s.tool}, args...)...)
	}
	own := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "GORAIL_") }) // what the caller has set is no part of a set-up
	c.Env = append(own, s.vars...)
	if s.user != nil {
		c.SysProcAttr = &syscall.SysProcAttr{Credential: s.user}
	}
	return c
}

// doctor runs the tool and returns what it found. A report of failures has the exit status 1.
func (s *scene) doctor(args ...string) (f found) {
	s.Helper()
	var out []byte
	var log strings.Builder
	code := 0
	s.aside(func() (err error) {
		c := s.command(append([]string{"doctor", "--json"}, args...)...)
		c.Stderr = &log
		out, err = c.Output()
		if e, ok := errors.AsType[*exec.ExitError](err); ok {
			code, err = e.ExitCode(), nil
		}
		return err
	})
	var r doctor.Report
	require.NoError(s, json.Unmarshal(out, &r), "%s%s", out, log.String())
	f.report = &r
	for _, c := range r.Checks {
		if c.Status == doctor.Fail {
			f.id, f.text, f.remedy = c.ID, c.Text, c.Remedy
			break
		}
	}
	require.Equal(s, map[bool]int{true: 0, false: 1}[f.id == ""], code, "the exit status")
	return f
}

// listen starts gorail doctor --listen there, and returns its address.
func (s *scene) listen(at string) (addr string) {
	s.Helper()
	c := s.command("doctor", "--listen", at)
	log, err := c.StderrPipe()
	require.NoError(s, err)
	s.aside(c.Start)
	s.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	lines := bufio.NewReader(log)
	first, err := lines.ReadString('\n')
	require.NoError(s, err)
	go func() { _, _ = lines.WriteTo(os.Stderr) }()
	_, addr, ok := strings.Cut(strings.TrimSpace(first), "--peer ")
	require.True(s, ok, first)
	return addr
}

// mounts gives the thread mounts of its own.
func mounts() error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	return os.NewSyscallError("mount", unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
}

// bind puts a file in place of another.
func bind(file, at string) func() error {
	return func() error { return os.NewSyscallError("bind "+at, unix.Mount(file, at, "", unix.MS_BIND, "")) }
}

// network moves the thread to a host, with a /sys of its interfaces.
func network(h *lab.Host) func() error {
	return func() error {
		if err := netns.Set(h.NS); err != nil {
			return err
		}
		if err := mounts(); err != nil {
			return err
		}
		return os.NewSyscallError("mount sysfs", unix.Mount("sysfs", "/sys", "sysfs", unix.MS_RDONLY, ""))
	}
}

// forbid makes a system call fail with EPERM, as seccomp profiles of containers do.
func forbid(call uint32) func() error {
	return func() error {
		filter := []unix.SockFilter{
			{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the call's number
			{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: call, Jt: 1},
			{Code: unix.BPF_RET, K: 0x7fff0000},                      // SECCOMP_RET_ALLOW
			{Code: unix.BPF_RET, K: 0x00050000 | uint32(unix.EPERM)}, // SECCOMP_RET_ERRNO
		}
		program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return os.NewSyscallError("prctl", err)
		}
		const modeFilter = 2
		return os.NewSyscallError("seccomp", unix.Prctl(unix.PR_SET_SECCOMP, modeFilter, uintptr(unsafe.Pointer(&program)), 0, 0))
	}
}
