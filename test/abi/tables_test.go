package abi

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/native"
	"gorail/test/testenv"
)

// checker is the plugin's comparison of tables as a program, with sanitizers.
var checker = native.Part{Name: "checker", Program: true, CPlusPlus: true, Flags: []string{"-fsanitize=address,undefined", "-fno-sanitize-recover=all"},
	Include: []string{"cshim"}, Sources: []string{"test/abi/checker/main.cpp", "cshim/identify/elf_vtables.cpp", "cshim/identify/known_tables.cpp"}}

func check(t *testing.T, args ...string) []string {
	t.Helper()
	program, err := checker.Make()
	require.NoError(t, err)
	out, err := exec.Command(program, args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

const slots = 27

// TestKnownTable: the known table equals the table of our own engine.
func TestKnownTable(t *testing.T) {
	source, err := os.ReadFile(filepath.Join(testenv.Root(), "cshim", "identify", "known_tables.cpp"))
	require.NoError(t, err)
	text := string(source)
	str := regexp.MustCompile(`#define STRING "(.*)"`).FindStringSubmatch(text)[1]
	row := regexp.MustCompile(`(?s)slots_1_0\[known_functions\] = \{(.*?)\n\};`).FindStringSubmatch(text)[1]
	mine, err := plugin(t).VTable(ours)
	require.NoError(t, err)
	require.Len(t, mine, slots)
	lines := strings.Split(strings.TrimSpace(row), "\n")
	require.Len(t, lines, slots)
	for i, line := range lines {
		name := strings.NewReplacer(`"`, "", " STRING ", str, " STRING", str, ",", "").Replace(strings.TrimSpace(line))
		require.Contains(t, signatures(mine[i]), name, "slot %d", i)
	}
}

// TestTables: the plugin's judgement of the stock plugins of each wheel. They have the known table, stripped or not.
// With an inserted function, swapped functions or another signature they differ. Without names the judgement is
// unknown, or that of the kinds of functions.
func TestTables(t *testing.T) {
	for _, wheel := range wheels(t) {
		for file, class := range map[string]string{"UCX": "nixlUcxEngine", "POSIX": "nixlPosixEngine"} {
			t.Run(filepath.Base(wheel)+"/"+file, func(t *testing.T) {
				stock := filepath.Join(nixlapi.PluginDir(wheel), testenv.PluginFile(file))
				dir := t.TempDir()
				// made judges a changed copy.
				made := func(change func(p *Patch)) string {
					p, err := NewPatch(stock)
					require.NoError(t, err)
					defer p.Close()
					change(p)
					path := filepath.Join(dir, "changed.so")
					require.NoError(t, p.Write(path))
					return check(t, "judge", path)[0]
				}
				require.Equal(t, "same", check(t, "judge", stock)[0])
				require.Equal(t, "same", made(func(*Patch) {}))

				stripped := filepath.Join(dir, "stripped.so")
				out, err := exec.Command("strip", "-o", stripped, stock).CombinedOutput()
				require.NoError(t, err, "%s", out)
				require.Equal(t, "same", check(t, "judge", stripped)[0])

				for k := range slots + 1 {
					if testing.Short() && k%9 != 0 { // a judgement reads the whole file
						continue
					}
					said := made(func(p *Patch) { require.NoError(t, p.InsertSlot(k, base, class)) })
					require.Contains(t, said, "different: ", "a slot in front of %d", k)
				}
				require.Equal(t, "different: function 8 is disconnect, not connect", made(func(p *Patch) { p.SwapSlots(class, 8, 9) }))
				require.Equal(t, "different: function 12 is postYfer, not postXfer", made(func(p *Patch) { require.NotZero(t, p.Rename("8postXferE", "8postYferE")) }))
				require.Equal(t, "different: function 13 is checkXfer with other parameters",
					made(func(p *Patch) {
						require.NotZero(t, p.Rename("9checkXferEP15nixlBackendReqH", "9checkXferER15nixlBackendReqH"))
					}))
				require.Equal(t, "unknown", made(func(p *Patch) { p.Nameless(func(string) bool { return true }) }))
				functions := func(n string) bool { return strings.HasPrefix(n, "_ZN") }
				require.Equal(t, "same", made(func(p *Patch) { p.Nameless(functions) }), "by the kinds of its functions")
				inserted := func(nameless func(string) bool) string {
					return made(func(p *Patch) {
						require.NoError(t, p.InsertSlot(5, base, class))
						p.Nameless(nameless)
					})
				}
				require.Equal(t, "different: 28 functions instead of 27", inserted(functions))
				require.Equal(t, "different: the functions have no names, and 5 instead of 27, the first of another kind at place 5",
					inserted(func(n string) bool { return functions(n) || strings.HasPrefix(n, "_ZTV") }))
			})
		}
	}
	for _, wheel := range wheels(t) { // with all classes beside their engine
		all, err := filepath.Glob(filepath.Join(nixlapi.PluginDir(wheel), testenv.PluginFile("*")))
		require.NoError(t, err)
		require.NotEmpty(t, all)
		for i, said := range check(t, append([]string{"judge"}, all...)...) {
			require.Equal(t, "same", said, all[i])
		}
	}
	require.Equal(t, "unknown", check(t, "judge", filepath.Join(testenv.Load().PluginDir, testenv.PluginFile("GORAIL")))[0], "the plugin's own table does not count as NIXL's")
	require.Equal(t, "unknown", check(t, "judge", "/dev/null")[0])
	require.Equal(t, "unknown", check(t, "judge", "/")[0])
}

// TestTablesMutated: truncated and corrupted files are read without a fault.
func TestTablesMutated(t *testing.T) {
	all := wheels(t)
	stock := filepath.Join(nixlapi.PluginDir(all[len(all)-1]), testenv.PluginFile("POSIX"))
	said := strings.Fields(check(t, "mutate", stock, "1", "1500")[0])
	t.Log(said)
	for _, i := range []int{1, 3} { // some mutations change nothing, and some make the file unreadable
		n, err := strconv.Atoi(said[i])
		require.NoError(t, err)
		require.NotZero(t, n, "%v", said)
	}
}
