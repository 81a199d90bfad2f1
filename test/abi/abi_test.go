package abi

import (
	"debug/elf"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/skip"
	"gorail/test/testenv"
)

// base and ours are the classes whose virtual tables are compared.
const (
	base = "nixlBackendEngine"
	ours = "GorailEngine"
)

// plugin opens the plugin under test.
func plugin(t *testing.T) *Library {
	env := testenv.Load()
	path := filepath.Join(env.PluginDir, testenv.PluginFile("GORAIL"))
	lib, err := Open(path)
	skip.OrFail(t, err)
	t.Cleanup(func() { lib.Close() })
	return lib
}

// wheels lists the site-packages folders to compare with: NIXL_WHEELS (joined by ':'), else the installed one.
func wheels(t *testing.T) []string {
	if list := os.Getenv("NIXL_WHEELS"); list != "" {
		return filepath.SplitList(list)
	}
	env := testenv.Load()
	if env.WheelDir == "" {
		skip.OrFail(t, os.ErrNotExist)
	}
	return []string{env.WheelDir}
}

// TestABISlots compares order and mangled signatures of the virtual functions with those of the wheels' own plugins.
func TestABISlots(t *testing.T) {
	mine, err := plugin(t).VTable(ours)
	require.NoError(t, err)

	for _, wheel := range wheels(t) {
		for file, class := range map[string]string{"UCX": "nixlUcxEngine", "POSIX": "nixlPosixEngine"} {
			t.Run(filepath.Base(wheel)+"/"+file, func(t *testing.T) {
				theirs, err := Open(filepath.Join(nixlapi.PluginDir(wheel), testenv.PluginFile(file)))
				require.NoError(t, err)
				defer theirs.Close()
				abstract, err := theirs.VTable(base)
				require.NoError(t, err)
				slots, err := theirs.VTable(class)
				require.NoError(t, err)

				// 25 functions and the destructor's two entries. Derived classes may append functions.
				require.Len(t, abstract, 27)
				require.Len(t, mine, len(abstract))
				for i := range abstract {
					require.NotEmpty(t, slots[i], "slot %d", i)
					want, known := Signature(slots[i][0], class, base)
					require.True(t, known, "slot %d is %s", i, slots[i][0])
					require.Contains(t, signatures(mine[i]), want, "slot %d", i)
				}
			})
		}
	}
}

func signatures(mangled []string) []string {
	var all []string
	for _, m := range mangled {
		if s, ok := Signature(m, ours); ok {
			all = append(all, s)
		}
	}
	return all
}

func TestExports(t *testing.T) {
	var exported []string
	for _, s := range plugin(t).dynamic {
		if s.Section != elf.SHN_UNDEF && elf.ST_BIND(s.Info) != elf.STB_LOCAL {
			exported = append(exported, s.Name)
		}
	}
	require.ElementsMatch(t, []string{"nixl_plugin_init", "nixl_plugin_fini"}, exported)
}

func TestImports(t *testing.T) {
	lib := plugin(t)

	imported, err := lib.ImportedSymbols()
	require.NoError(t, err)
	for _, s := range imported {
		low := strings.ToLower(s.Name)
		for _, foreign := range []string{"nixl", "absl", "fi_", "ibv_", "cuda"} {
			require.False(t, strings.HasPrefix(low, foreign) || foreign != "fi_" && strings.Contains(low, foreign),
				"needs %s at load time", s.Name)
		}
	}

	needed, err := lib.ImportedLibraries()
	require.NoError(t, err)
	system := []string{"libc.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libpthread.so.0", "libdl.so.2", "libm.so.6"}
	for _, n := range needed {
		if !slices.Contains(system, n) && !strings.HasPrefix(n, "ld-linux") {
			t.Errorf("needs %s at load time", n)
		}
	}
}

func TestFlags(t *testing.T) {
	lib := plugin(t)

	flags, err := lib.DynValue(elf.DT_FLAGS)
	require.NoError(t, err)
	require.NotEmpty(t, flags)
	require.NotZero(t, flags[0]&uint64(elf.DF_SYMBOLIC), "-Bsymbolic")
	flags1, err := lib.DynValue(elf.DT_FLAGS_1)
	require.NoError(t, err)
	require.NotEmpty(t, flags1)
	require.NotZero(t, flags1[0]&uint64(elf.DF_1_NODELETE), "-z nodelete: Go's runtime can't be unloaded")
}

// TestSize: crypto/tls and crypto/x509 are 2.8 MiB of it, NVLink between hosts 0.1, the GPU's kernels of compression 0.2.
func TestSize(t *testing.T) {
	size := plugin(t).StrippedSize()
	t.Logf("%.2f MiB stripped", float64(size)/(1<<20))
	require.Less(t, size, uint64(13<<20))
}
