package broken

import (
	"bytes"
	"os"
	"path/filepath"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
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

var memory = []setup{
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
}
