package bed

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

var (
	//go:embed launch.sh
	launchScript string
	//go:embed init.sh
	initScript string
	//go:embed rails.sh
	railsScript string
)

// ownNamespaces are the clone flags for the namespaces of a guest's processes on the host.
const ownNamespaces = unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC

// firstRail is the first descriptor of a rail in launch.sh, after the status (3) and the console (4).
const firstRail = 5

// noMaps is the message of the guest's kernel when it cannot map a page into a process. The kernel then kills the process.
const noMaps = "UML ran out of memory on the host side"

// machine is a guest that is ready to start.
type machine struct {
	cmd     *exec.Cmd
	memory  int // MiB
	limit   time.Duration
	out     [2]bytes.Buffer
	status  *os.File // the guest's ends of the pipes
	console *os.File
	answer  *os.File // the ends of this process
	words   *os.File
}

// machine prepares a guest and does not start it. The machine owns the rails' descriptors; run closes them.
func (g Guest) machine(side string, rails []*os.File, command []string) (m *machine, err error) {
	if len(command) == 0 {
		return nil, errors.New("guest: no command")
	}
	cpu, err := cpuFor(side)
	if err != nil {
		return nil, err
	}
	memory := g.Memory
	if memory == 0 {
		memory = 2048
	}
	m = &machine{limit: g.Limit, memory: memory}
	if m.limit == 0 {
		m.limit = 2 * time.Minute
	}
	if m.answer, m.status, err = os.Pipe(); err != nil {
		return nil, err
	}
	if m.words, m.console, err = os.Pipe(); err != nil {
		return nil, err
	}
	var parameters []string
	for i := range rails {
		parameters = append(parameters, fmt.Sprintf("vec%d:transport=fd,fd=%d,depth=128,mtu=%d,vec=0", i, firstRail+i, g.mtu()))
	}
	c := exec.Command("/bin/sh", "-c", launchScript, "launch.sh")
	c.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"BED_KERNEL=" + kernel(), "BED_MB=" + strconv.Itoa(memory), "BED_CPU=" + strconv.Itoa(cpu),
		"BED_APPEND=" + strings.Join(parameters, " "),
		"BED_INIT=" + initScript, "BED_RAILS=" + railsScript, "BED_CMD=" + g.script(side, command)}
	c.Dir = "/"
	c.Stdout, c.Stderr = both(&m.out[0], g.Stdout), both(&m.out[1], g.Stderr)
	c.ExtraFiles = append([]*os.File{m.status, m.console}, rails...)
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: ownNamespaces, Pdeathsig: syscall.SIGKILL, Setpgid: true}
	m.cmd = c
	return m, nil
}

func both(kept io.Writer, also io.Writer) io.Writer {
	if also == nil {
		return kept
	}
	return io.MultiWriter(kept, also)
}

// run starts the guest and waits for its end. The guest's first process dies with the thread that started it (Pdeathsig). Therefore this
// goroutine locks its thread. All processes of the guest die with the first process, so none outlives the test.
func (m *machine) run() (Result, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := time.Now()
	err := m.cmd.Start()
	for _, f := range m.cmd.ExtraFiles {
		_ = f.Close()
	}
	if err != nil {
		return Result{}, fmt.Errorf("guest: %w", err)
	}
	ended := make(chan struct{})
	console := &tail{keep: 16 << 10}
	go func() {
		defer close(ended)
		_, _ = io.Copy(console, m.words)
		_ = m.words.Close()
	}()
	killer := time.AfterFunc(m.limit, func() { _ = m.cmd.Process.Kill() })
	answer, _ := io.ReadAll(io.LimitReader(m.answer, 64))
	_ = m.answer.Close()
	err = m.cmd.Wait()
	late := !killer.Stop()
	<-ended

	r := Result{Stdout: m.out[0].String(), Stderr: m.out[1].String(), Took: time.Since(began)}
	status, bad := strconv.Atoi(strings.TrimSpace(string(answer)))
	if bad == nil {
		r.Status = status
	}
	if bytes.Contains(console.buf.Bytes(), []byte(noMaps)) {
		return r, fmt.Errorf("guest: the kernel killed a process with SIGSEGV: the host's vm.max_map_count allows no more mappings, and each page may need one; raise the "+
			"sysctl, to %d at most, or let the test touch less memory; output:\n%s", m.memory<<20/os.Getpagesize(), r)
	}
	if bad == nil {
		return r, nil
	}
	why := fmt.Sprintf("guest ended without a status (%v)", err)
	if late {
		why = fmt.Sprintf("guest was killed after its limit of %v", m.limit)
	}
	return r, fmt.Errorf("%s; output:\n%s%s\nkernel messages:\n%s", why, r.Stdout, r.Stderr, console.buf.String())
}

// cpuFor returns the CPU to which a guest is pinned. A guest has one CPU, and its system calls are ten times faster on a fixed CPU. The
// CPU depends on the process id, so that guests of several processes use several CPUs. Host B gets the CPU after host A's.
func cpuFor(side string) (int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return 0, fmt.Errorf("sched_getaffinity: %w", err)
	}
	var ours []int
	for i := range len(set) * 64 {
		if set.IsSet(i) {
			ours = append(ours, i)
		}
	}
	n := os.Getpid()
	if side == "B" {
		n++
	}
	return ours[n%len(ours)], nil
}

// namespaces returns an error if this process cannot create namespaces, as in some containers.
func namespaces() error {
	c := exec.Command("/bin/true")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: ownNamespaces}
	if err := c.Run(); err != nil {
		return fmt.Errorf("guests with RDMA devices need CAP_SYS_ADMIN to create namespaces: %w", err)
	}
	return nil
}
