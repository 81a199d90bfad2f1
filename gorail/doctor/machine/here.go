// Package machine is the machine that gorail doctor runs on. It tries with the plugin's own code.
package machine

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"gorail/backend/gpu"
	"gorail/backend/provider/ofi/libfabric"
	"gorail/backend/provider/verbs/ibverbs"
	"gorail/backend/stats"
	"gorail/backend/topo"
	"gorail/gorail/doctor"
)

// Here returns this machine. params are those of createBackend, version is this tool's.
func Here(version string, params map[string]string) *doctor.Host {
	h := &doctor.Host{
		NCCL: topo.NCCLFile(os.LookupEnv),
		Sys:  os.DirFS("/sys"), Proc: os.DirFS("/proc"), Dev: os.DirFS("/dev"), Env: os.Environ(), Params: params, UID: os.Geteuid(),
		NoFile: limit(unix.RLIMIT_NOFILE), MemLock: limit(unix.RLIMIT_MEMLOCK),
		Try: doctor.Try{Open: open, Write: write, Libfabric: loadLibfabric, Verbs: loadVerbs, CUDA: loadCUDA, NVML: nvml, Channels: gpu.Channels, FabricMemory: gpu.TryFabric,
			Reach: reach, LocalDir: localDir, Socket: stats.Try, Rails: choose, Engine: newEngine, NIXL: newAgent},
	}
	h.Software = software(version)
	return h
}

// limit is a limit of this process. Go's runtime has raised the descriptors to the hard limit, as it does in the plugin.
func limit(which int) uint64 {
	var l unix.Rlimit
	if unix.Getrlimit(which, &l) != nil || l.Cur == unix.RLIM_INFINITY {
		return doctor.Unlimited
	}
	return l.Cur
}

// open opens a device for reading and writing, as its library does. It does not wait.
func open(node string) error {
	fd, err := unix.Open("/dev/"+node, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// written is more than a file system keeps inside an inode.
const written = 64 << 10

// write tries a folder, or a file that is there.
func write(at string) error {
	if i, err := os.Stat(at); err == nil && !i.IsDir() {
		f, err := os.OpenFile(at, os.O_WRONLY|os.O_APPEND, 0)
		if err == nil {
			err = f.Close()
		}
		return reason(err)
	}
	f, err := os.CreateTemp(at, ".gorail-doctor-*")
	if err != nil {
		return reason(err)
	}
	defer os.Remove(f.Name())
	_, err = f.Write(make([]byte, written))
	return reason(errors.Join(err, f.Close()))
}

// reason is the kernel's reason alone: the caller names the folder.
func reason(err error) error {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	return err
}

func loadLibfabric(path string) (string, error) {
	if path == "" {
		path = libfabric.Default
	}
	l, err := libfabric.Load(path)
	if err != nil {
		return "", err
	}
	return l.Describe() + ", " + mapped("libfabric"), nil
}

func loadVerbs(path string) (string, error) {
	if path == "" {
		path = ibverbs.Default
	}
	if _, err := ibverbs.Load(path); err != nil {
		return "", err
	}
	file := mapped("libibverbs")
	text := file
	if parts := strings.Split(filepath.Base(file), "."); len(parts) > 4 { // libibverbs.so.1.14.44.0: the third number is rdma-core's
		text = "rdma-core " + parts[4] + ", " + file
	}
	return text, nil
}

func nvml(cuda string) ([]gpu.FabricInfo, error) {
	if err := loadCUDA(cuda); err != nil {
		return nil, err
	}
	return gpu.Fabric(gpu.NVMLPath(cuda))
}

func loadCUDA(path string) error {
	if path == "" {
		path = gpu.DefaultPath
	}
	err := gpu.Present(path)
	if errors.Is(err, gpu.NoDevice) {
		return errors.New("this process sees no GPU")
	}
	return err
}

// mapped is the file of a library in this process.
func mapped(library string) string {
	maps, _ := os.ReadFile("/proc/self/maps")
	for line := range strings.Lines(string(maps)) {
		if f := strings.Fields(line); len(f) > 5 && strings.HasPrefix(filepath.Base(f[5]), library) {
			return f[5]
		}
	}
	return library + " (path unknown)"
}
