package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/test/testenv"
)

// instructions returns the Dockerfile's lines without comments, as word and rest. A line is an instruction: none continues.
func instructions(t *testing.T) (list [][2]string) {
	t.Helper()
	text, err := read("Dockerfile")
	require.NoError(t, err)
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			require.False(t, strings.HasSuffix(line, `\`), "tools/wheel/image.sh reads single lines: %s", line)
			word, rest, _ := strings.Cut(line, " ")
			list = append(list, [2]string{word, rest})
		}
	}
	return list
}

// values returns what follows each instruction of a kind.
func values(t *testing.T, kind string) (list []string) {
	for _, i := range instructions(t) {
		if i[0] == kind {
			list = append(list, i[1])
		}
	}
	require.NotEmpty(t, list, kind)
	return list
}

// imageUser returns the user and group that the image runs as.
func imageUser(t *testing.T) (uid, gid int) {
	t.Helper()
	users := values(t, "USER")
	user, group, _ := strings.Cut(users[len(users)-1], ":")
	uid, err := strconv.Atoi(user)
	require.NoError(t, err)
	gid, err = strconv.Atoi(group)
	require.NoError(t, err)
	require.NotZero(t, uid)
	runs := values(t, "RUN")
	require.Contains(t, strings.Join(runs, "\n"), "getent group "+group+" || groupadd --gid "+group+" ", "Ubuntu's image has the group")
	require.Contains(t, strings.Join(runs, "\n"), "getent passwd "+user+" || useradd --uid "+user+" --gid "+group+" ")
	return uid, gid
}

func source(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(testenv.Root(), file))
	require.NoError(t, err)
	return string(b)
}

// TestCommands: what RUN calls is in the base image, or a console script of the wheel. Nothing is compiled.
func TestCommands(t *testing.T) {
	scripts := regexp.MustCompile(`(?m)^(\S+) = "nixl_gorail\.`).FindAllStringSubmatch(source(t, "python/pyproject.toml"), -1)
	known := []string{"apt-get", "rm", "test", "pip", "getent", "groupadd", "useradd"}
	require.NotEmpty(t, scripts)
	for _, s := range scripts {
		known = append(known, s[1])
	}
	for _, run := range values(t, "RUN") {
		if option, rest, _ := strings.Cut(run, " "); strings.HasPrefix(option, "--") {
			run = rest
		}
		for _, command := range regexp.MustCompile(`&&|\|\|`).Split(run, -1) {
			require.Contains(t, known, strings.Fields(command)[0], run)
			require.NotRegexp(t, `\b(g\+\+|gcc|build-essential|make|golang\S*|\S+-dev)\b`, command)
		}
	}
}

// TestFiles: the wheel comes from the folder that make wheels fills, under the name that pack.py gives it. NIXL's release is the
// tested one. NIXL_PLUGIN_DIR is the folder that gorail plugins makes.
func TestFiles(t *testing.T) {
	runs := strings.Join(values(t, "RUN"), "\n")
	mount := regexp.MustCompile(`source=(\S+?),target=(\S+) pip install .*--no-index --find-links=(\S+) (\S+)`).FindStringSubmatch(runs)
	require.NotNil(t, mount)
	require.Equal(t, mount[2], mount[3])
	require.Contains(t, source(t, "tools/wheel/build.sh"), "--to "+mount[1])
	require.Contains(t, source(t, "python/pyproject.toml"), `name = "`+mount[4]+`"`)

	pinned := strings.Fields(source(t, "tools/requirements.txt"))
	nixl := slices.DeleteFunc(values(t, "ARG"), func(a string) bool { return !strings.HasPrefix(a, "NIXL=") })
	require.Len(t, nixl, 1)
	require.Regexp(t, `(?m)^test -z "\$\{NIXL\}" \|\| pip install .*\$\{NIXL\} numpy`, runs, "an empty NIXL leaves both out: the base has them")
	require.Contains(t, pinned, strings.TrimPrefix(nixl[0], "NIXL="))
	require.Contains(t, pinned, regexp.MustCompile(`numpy\S+`).FindString(runs))

	folder := regexp.MustCompile(`gorail plugins --dir (\S+)`).FindStringSubmatch(runs)
	require.NotNil(t, folder)
	require.Equal(t, []string{"NIXL_PLUGIN_DIR=" + folder[1] + "/plugins"}, values(t, "ENV"))
}

// TestModules: each module that an image or a pod runs is one of the package, and takes these arguments.
func TestModules(t *testing.T) {
	commands := [][]string{regexp.MustCompile(`[\w.-]+`).FindAllString(values(t, "CMD")[0], -1)}
	each(t, func(_ *testing.T, _ []object, _ object, c container) { commands = append(commands, c.Command) })
	for _, c := range commands {
		require.Greater(t, len(c), 2)
		require.Equal(t, []string{"python", "-m"}, c[:2])
		module := source(t, "python/"+strings.ReplaceAll(c[2], ".", "/")+".py")
		for _, argument := range c[3:] {
			if strings.HasPrefix(argument, "--") {
				require.Contains(t, module, `add_argument("`+argument+`"`)
			}
		}
	}
}
