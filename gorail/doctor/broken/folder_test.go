package broken

import (
	"os"
	"path/filepath"

	"github.com/stretchr/testify/require"
)

// folders are set-ups of the folder in which pods of one node meet: option local_dir.
var folders = []setup{
	{name: "no folder for pods of one node", made: "GORAIL_LOCAL_DIR of a folder that is missing", id: "local-dir", says: "no such file or directory", remedy: "the folder", user: true, quick: true,
		try: func(s *scene, remedied bool) found {
			at := filepath.Join(s.temp(), "gorail")
			if remedied {
				require.NoError(s, os.Mkdir(at, 0o755))
			}
			s.set("GORAIL_LOCAL_DIR=" + at)
			return s.doctor()
		}},
	{name: "folder without sticky bit", made: "GORAIL_LOCAL_DIR of a folder of mode 0777", id: "local-dir", says: "other users may write to it and could replace sockets", remedy: "chmod +t", user: true,
		try: func(s *scene, remedied bool) found {
			s.set("GORAIL_LOCAL_DIR=" + s.meet(map[bool]os.FileMode{false: 0o777, true: 0o777 | os.ModeSticky}[remedied]))
			return s.doctor()
		}},
	{name: "folder of another user", made: "GORAIL_LOCAL_DIR of a folder of user 54321", id: "local-dir", says: "it belongs to user 54321", remedy: "chown root",
		try: func(s *scene, remedied bool) found {
			at := s.meet(0o755)
			if !remedied {
				require.NoError(s, os.Chown(at, 54321, 54321))
			}
			s.set("GORAIL_LOCAL_DIR=" + at)
			return s.doctor()
		}},
	{name: "two folders of one name", made: "the peer in a network namespace of its own, with a wire, and another folder in GORAIL_LOCAL_DIR", id: "peer-host", says: "do both mount the same folder of the host?",
		remedy: "one folder in both", quick: true, try: func(s *scene, remedied bool) found {
			one := s.meet(0o755)
			other := one
			if !remedied {
				other = s.meet(0o755)
			}
			return s.apart(one, other)
		}},
}

// meet makes a folder with a mode.
func (s *scene) meet(mode os.FileMode) string {
	s.Helper()
	at := filepath.Join(s.temp(), "gorail")
	require.NoError(s, os.Mkdir(at, 0o755))
	require.NoError(s, os.Chmod(at, mode))
	return at
}

// apart runs gorail doctor --peer between two network namespaces with a wire. here and there are their GORAIL_LOCAL_DIR.
func (s *scene) apart(here, there string) found {
	s.Helper()
	a, b := s.wires(1)
	vars := s.vars
	s.set("GORAIL_LOCAL_DIR=" + there)
	s.steps = []func() error{network(b)}
	addr := s.listen("10.98.0.2:0")
	s.vars = append(vars[:len(vars):len(vars)], "GORAIL_LOCAL_DIR="+here)
	s.steps = []func() error{network(a)}
	return s.doctor("--peer", addr)
}
