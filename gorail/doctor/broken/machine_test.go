package broken

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing/fstest"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/topo/topotest"
	"gorail/test/fabric"
	"gorail/test/skip"
	"gorail/test/verbs"
)

// variable is a set-up that consists of an environment variable.
func variable(broken, remedied string) func(*scene, bool) found {
	return func(s *scene, fixed bool) found {
		s.set(map[bool]string{false: broken, true: remedied}[fixed])
		return s.doctor()
	}
}

var options = []setup{
	{name: "wrong device", made: "GORAIL_DEVICES=nosuch7", id: "devices-option", says: `"nosuch7", and no device has such a name`, remedy: "GORAIL_DEVICES=lo, a name of that line",
		user: true, quick: true, try: variable("GORAIL_DEVICES=nosuch7", "GORAIL_DEVICES=lo")},
	{name: "refused value", made: "--param max_rails=0", id: "options", says: "max_rails=\"0\"", remedy: "--param max_rails=2", user: true, quick: true,
		try: func(s *scene, remedied bool) found {
			return s.doctor("--param", "max_rails="+map[bool]string{false: "0", true: "2"}[remedied])
		}},
	{name: "stats_file in a folder without write access", made: "GORAIL_STATS_FILE=/proc/stats.json", id: "disk", says: "cannot write to /proc", remedy: "GORAIL_STATS_FILE in another folder",
		user: true, quick: true, try: func(s *scene, remedied bool) found {
			s.set("GORAIL_STATS_FILE=" + filepath.Join(map[bool]string{false: "/proc", true: s.temp()}[remedied], "stats.json"))
			return s.doctor()
		}},
	{name: "log_file in a missing folder", made: "GORAIL_LOG_FILE=/nowhere/gorail.log", id: "disk", says: "cannot write to /nowhere (option log_file)", remedy: "GORAIL_LOG_FILE in another folder",
		user: true, try: func(s *scene, remedied bool) found {
			s.set("GORAIL_LOG_FILE=" + filepath.Join(map[bool]string{false: "/nowhere", true: s.temp()}[remedied], "gorail.log"))
			return s.doctor()
		}},
	{name: "full disk", made: "TMPDIR on a tmpfs of 128 KiB, filled", id: "disk", says: "no space left on device", remedy: "free the space", try: fullDisk},
}

func fullDisk(s *scene, remedied bool) found {
	dir := s.temp()
	s.set("TMPDIR=" + dir)
	s.before(mounts, func() error {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=128k"); err != nil {
			return os.NewSyscallError("mount", err)
		}
		data := filepath.Join(dir, "data")
		if err := os.WriteFile(data, make([]byte, 112<<10), 0o644); err != nil || !remedied {
			return err
		}
		return os.Remove(data)
	})
	return s.doctor()
}

var software = []setup{
	{name: "version skew", made: "the plugin of another version in NIXL_PLUGIN_DIR", id: "version", says: "is version 9", remedy: "plugin and tool of one release", user: true, quick: true, try: skew},
	{name: "half a plugin", made: "the first 4 KiB of libplugin_GORAIL.so in NIXL_PLUGIN_DIR", id: "plugin-dir", says: "its libplugin_GORAIL.so is not the plugin of GORAIL", remedy: "gorail plugins", user: true, quick: true, try: half},
	{name: "two wheels, and torch for a third CUDA", made: "site-packages with nixl-cu12, nixl-cu13 and torch for CUDA 11", id: "wheel", says: "torch is built for CUDA 11", remedy: "torch for CUDA 12",
		user: true, try: func(s *scene, remedied bool) found {
			return twoWheels(s, map[bool]string{false: "11.8", true: "12.8"}[remedied], "")
		}},
	{name: "two wheels, and the plugins of the other", made: "site-packages with nixl-cu12, nixl-cu13 and torch for CUDA 13; gorail plugins --cuda 12", id: "plugin-dir",
		says: "was made from nixl-cu12, and package nixl takes nixl-cu13", remedy: "gorail plugins --cuda 13", user: true, try: func(s *scene, remedied bool) found {
			return twoWheels(s, "13.0", map[bool]string{false: "12", true: "13"}[remedied])
		}},
	{name: "plugin folder without GORAIL", made: "NIXL_PLUGIN_DIR of the wheel", id: "plugin-dir", says: "has no GORAIL", remedy: "gorail plugins", user: true, quick: true,
		try: func(s *scene, remedied bool) found {
			if !remedied {
				found, err := filepath.Glob(filepath.Join(s.env.WheelDir, ".nixl_cu*.mesonpy.libs", "plugins"))
				require.NoError(s, err)
				require.NotEmpty(s, found)
				s.set("NIXL_PLUGIN_DIR=" + found[0])
			}
			return s.doctor()
		}},
	{name: "old libfabric", made: "LD_LIBRARY_PATH with a libfabric.so.1 that says 1.8; provider=tcp;ofi_rxm", id: "libfabric", says: "version 1.8 is too old", remedy: "LD_LIBRARY_PATH without it",
		user: true, try: oldLibfabric},
	{name: "no libfabric", made: "a mount namespace that hides libfabric.so.1; provider=tcp;ofi_rxm", id: "libfabric", says: "libfabric.so.1: cannot open shared object file", remedy: "a libfabric that is installed",
		try: noLibfabric},
}

const plugin = "libplugin_GORAIL.so"

func (s *scene) plugin() []byte {
	text, err := os.ReadFile(filepath.Join(s.env.PluginDir, plugin))
	require.NoError(s, err)
	return text
}

func skew(s *scene, remedied bool) found {
	text := s.plugin()
	const mark = "GORAIL-plugin-version="
	at := bytes.Index(text, []byte(mark))
	require.Positive(s, at)
	if !remedied {
		text[at+len(mark)] = '9'
	}
	s.set("NIXL_PLUGIN_DIR=" + filepath.Dir(s.file(plugin, string(text))))
	return s.doctor()
}

func half(s *scene, remedied bool) found {
	if !remedied {
		s.set("NIXL_PLUGIN_DIR=" + filepath.Dir(s.file(plugin, string(s.plugin()[:4096]))))
	}
	return s.doctor()
}

// twoWheels makes a site-packages folder where the installed wheel has both names.
func twoWheels(s *scene, cuda, of string) found {
	site := s.temp()
	entries, err := os.ReadDir(s.env.WheelDir)
	require.NoError(s, err)
	for _, e := range entries {
		if !strings.Contains(e.Name(), "nixl_cu12") {
			continue
		}
		for _, to := range []string{"cu12", "cu13"} {
			require.NoError(s, os.Symlink(filepath.Join(s.env.WheelDir, e.Name()), filepath.Join(site, strings.Replace(e.Name(), "cu12", to, 1))))
		}
	}
	require.NoError(s, os.Mkdir(filepath.Join(site, "torch"), 0o755))
	require.NoError(s, os.WriteFile(filepath.Join(site, "torch", "version.py"), []byte("cuda = '"+cuda+"'\n"), 0o644))
	if of == "" {
		of = "12"
	}
	s.set("NIXL_WHEEL_DIR="+site, "NIXL_PLUGIN_DIR="+s.folder("--wheel", site, "--cuda", of))
	return s.doctor()
}

func oldLibfabric(s *scene, remedied bool) found {
	s.set("GORAIL_PROVIDER=tcp;ofi_rxm")
	if !remedied {
		so := fabric.Build(s.T)
		s.set("LD_LIBRARY_PATH="+filepath.Dir(so), fabric.EnvConfig+"="+fabric.Config("cxi", 1, 1, fmt.Sprint("version=", 1<<16|8)))
	}
	return s.doctor()
}

var cacheRule = regexp.MustCompile(`libfabric\.so\.1 .*=> (\S+)`)

func noLibfabric(s *scene, remedied bool) found {
	s.set("GORAIL_PROVIDER=tcp;ofi_rxm")
	ldconfig := "/sbin/ldconfig"
	out, err := exec.Command(ldconfig, "-p").Output()
	skip.OrFail(s, err)
	m := cacheRule.FindSubmatch(out)
	if m == nil {
		skip.OrFail(s, fmt.Errorf("libfabric.so.1 is not installed"))
	}
	if !remedied {
		s.before(mounts, hide(filepath.Dir(string(m[1])), s.temp(), "libfabric.so.1"))
	}
	return s.doctor()
}

// rdmaMachine is a /sys with one RoCE device, which our libibverbs imitates.
const rdmaMachine = `
net lo ifindex=1 operstate=unknown carrier=1 mtu=65536 type=772
net ens1 ifindex=2 operstate=up carrier=1 speed=400000 pci=pci0000:15/0000:15:01.0/0000:18:00.0 driver=mlx5_core
rdma hca0 nets=ens1 state="4: ACTIVE" rate="400 Gb/sec (4X NDR)" link_layer=Ethernet driver=mlx5_core numa=0 pci=pci0000:15/0000:15:01.0/0000:18:00.0
`

// rdma puts a /sys with one RDMA device and a /dev/infiniband in place of the machine's, and our libibverbs.
func (s *scene) rdma(width int, nodes bool) {
	sys := topotest.Parse(s.T, rdmaMachine)
	for name, f := range verbs.Sys(1, 1, true) {
		sys[strings.Replace(name, "class/infiniband/hca0", s.real(sys, "class/infiniband/hca0"), 1)] = f
	}
	card := "devices/pci0000:15/0000:15:01.0/0000:18:00.0/"
	for name, text := range map[string]string{"current_link_width": fmt.Sprint(width), "max_link_width": "16", "current_link_speed": "32.0 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe"} {
		sys[card+name] = &fstest.MapFile{Data: []byte(text + "\n")}
	}
	sys["class/infiniband_verbs/uverbs0/ibdev"] = &fstest.MapFile{Data: []byte("hca0\n")}
	s.before(mounts, mount("/sys", sys))
	s.before(devFolder)
	if nodes {
		s.before(mount("/dev/infiniband", fstest.MapFS{"uverbs0": {}, "rdma_cm": {}}))
	}
	s.set("GORAIL_IBVERBS_PATH="+verbs.Build(s.T).Path, "GORAIL_PROVIDER=verbs,tcp")
}

// real resolves a link in a /sys.
func (*scene) real(sys fstest.MapFS, name string) string {
	return strings.TrimLeft(string(sys[name].Data), "./")
}

// devFolder gives the thread a /dev with the standard files, and with an empty folder for InfiniBand.
func devFolder() error {
	standard := []string{"null", "zero", "full", "random", "urandom", "tty"}
	if err := unix.Mount("tmpfs", "/mnt", "tmpfs", 0, "mode=755"); err != nil {
		return os.NewSyscallError("mount", err)
	}
	for _, name := range standard {
		var st unix.Stat_t
		if err := unix.Stat("/dev/"+name, &st); err != nil {
			return err
		}
		if err := unix.Mknod("/mnt/"+name, unix.S_IFCHR|0o666, int(st.Rdev)); err != nil {
			return err
		}
	}
	for _, name := range []string{"shm", "infiniband"} {
		if err := os.Mkdir("/mnt/"+name, 0o777); err != nil {
			return err
		}
	}
	if err := os.Symlink("/proc/self/fd", "/mnt/fd"); err != nil {
		return err
	}
	return os.NewSyscallError("mount", unix.Mount("/mnt", "/dev", "", unix.MS_MOVE, ""))
}

var devices = []setup{
	{name: "no /dev/infiniband", made: "a described /sys with an RDMA device (our libibverbs), and a /dev without its files", id: "rdma-nodes", says: "/dev/infiniband has no file for hca0",
		remedy: "/dev/infiniband with its files", try: func(s *scene, remedied bool) found {
			s.rdma(16, remedied)
			return s.doctor()
		}},
}

var links = []setup{
	{name: "PCIe x8 in an x16 need", made: "a described /sys: a port of 400 Gbit/s whose card has 8 of 16 lanes", id: "pcie", says: "x8 at 32 GT/s", remedy: "the card in a slot with 16 lanes",
		try: func(s *scene, remedied bool) found {
			s.rdma(map[bool]int{false: 8, true: 16}[remedied], true)
			return s.doctor()
		}},
}

var memory = []setup{
	{name: "memlock 64 KiB", made: "ulimit -l 64 for root without CAP_IPC_LOCK; a described /sys with an RDMA device", id: "memlock", says: "may lock 64 KiB", remedy: "CAP_IPC_LOCK",
		try: func(s *scene, remedied bool) found {
			s.rdma(16, true)
			s.limit("l", "64") // not every root may raise it again
			if !remedied {
				s.before(without(unix.CAP_IPC_LOCK))
			}
			return s.doctor()
		}},
	{name: "64 descriptors", made: "ulimit -n 64", id: "nofile", says: "may open 64 descriptors", remedy: "ulimit -n 4096", user: true, quick: true, try: func(s *scene, remedied bool) found {
		s.limit("n", map[bool]string{false: "64", true: "4096"}[remedied])
		return s.doctor()
	}},
}

var processes = []setup{
	{name: "seccomp", made: "a seccomp filter that forbids process_vm_readv", id: "seccomp", says: "a seccomp filter forbids direct copies", remedy: "a profile that allows the call", warns: true, user: true, quick: true,
		try: func(s *scene, remedied bool) found {
			if !remedied {
				s.before(forbid(unix.SYS_PROCESS_VM_READV))
			}
			return s.doctor()
		}},
	{name: "seccomp, shared memory not needed", made: "the same filter", id: "seccomp", says: "a seccomp filter forbids direct copies", remedy: "GORAIL_PROVIDER=tcp", warns: true, user: true,
		try: func(s *scene, remedied bool) found {
			s.before(forbid(unix.SYS_PROCESS_VM_READV))
			if remedied {
				s.set("GORAIL_PROVIDER=tcp")
			}
			return s.doctor()
		}},
	{name: "Yama 1", made: "imitated: a mounted ptrace_scope and the errno of Yama by seccomp (`make test-rdma` has a kernel with Yama)", id: "yama", says: "Yama's ptrace_scope 1 forbids direct copies", remedy: "kernel.yama.ptrace_scope=0", warns: true,
		try: func(s *scene, remedied bool) found { return yama(s, "1", remedied) }},
	{name: "Yama 2", made: "the same with scope 2", id: "yama", says: "Yama's ptrace_scope 2 forbids direct copies", remedy: "kernel.yama.ptrace_scope=0", warns: true,
		try: func(s *scene, remedied bool) found { return yama(s, "2", remedied) }},
}

// yama imitates Yama: its file, and its errno for process_vm_readv. Few kernels can give their scope to one process alone.
func yama(s *scene, scope string, remedied bool) found {
	files := fstest.MapFS{}
	for _, name := range []string{"cap_last_cap", "osrelease", "pid_max", "threads-max", "random/boot_id"} {
		text, err := os.ReadFile("/proc/sys/kernel/" + name)
		require.NoError(s, err)
		files[name] = &fstest.MapFile{Data: text}
	}
	if remedied {
		scope = "0"
	}
	files["yama/ptrace_scope"] = &fstest.MapFile{Data: []byte(scope + "\n")}
	s.before(mounts, mount("/proc/sys/kernel", files))
	if !remedied {
		s.before(forbid(unix.SYS_PROCESS_VM_READV))
	}
	return s.doctor()
}
