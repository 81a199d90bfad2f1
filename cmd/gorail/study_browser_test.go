package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"html"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/cmd/gorail/study/page"
	"gorail/cmd/gorail/study/result"
)

// browser runs headless Chromium and returns its output, standard error after standard output.
func browser(t *testing.T, args ...string) string {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed: apt-get install chromium") // 300 MB, which setup does not ask of everyone
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, path, append([]string{"--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--enable-logging=stderr",
		"--user-data-dir=" + t.TempDir()}, args...)...)
	c.WaitDelay = time.Second
	var out, log bytes.Buffer
	c.Stdout, c.Stderr = &out, &log
	require.NoError(t, c.Run(), log.String())
	return out.String() + log.String()
}

// wide is a result with what makes a page wide: long words, long names, many columns, a plot with many lines.
func wide() *result.Result {
	r := &result.Result{Version: result.Version, Study: "small", Title: "A page", Asked: strings.Repeat("long", 40), When: time.Unix(0, 0), Command: "gorail study small --output=" + strings.Repeat("x", 200),
		Findings: []string{strings.Repeat("word ", 60), strings.Repeat("w", 300)}, Checks: []result.Check{{Status: "WARN", What: "rails", Text: strings.Repeat("a/b:", 80)}}}
	t := result.Table{Title: "Table", Keys: 2, Columns: result.Columns("a", "b")}
	p := result.Plot{Title: "Plot", X: "bytes", Y: "us", LogX: true, LogY: true, Bytes: true}
	for i := range 12 {
		t.Columns = append(t.Columns, result.Column{Name: fmt.Sprintf("number %d", i)})
		l := result.Line{Name: fmt.Sprintf("backend with a long name %d", i)}
		for n := range 8 {
			l.Add(float64(int(64)<<(2*n)), float64((n+1)*(i+1)))
		}
		p.Lines = append(p.Lines, l)
	}
	for i := range 5 {
		row := []result.Cell{result.Word("GORAIL over a rail"), result.Word("64 KiB")}
		for n := range 12 {
			row = append(row, result.Num(float64(n*i)*12345.6))
		}
		t.Rows = append(t.Rows, row)
	}
	r.Sections = []result.Section{{Title: "Section", Text: "Text", Tables: []result.Table{t, t}, Plots: []result.Plot{p, p}}}
	return r
}

// TestStudyPageInBrowser: the page has something to see in both colour schemes, no errors, and on a telephone it is not wider than the screen.
func TestStudyPageInBrowser(t *testing.T) {
	if testing.Short() {
		t.Skip("a browser takes seconds: without -short")
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "page.html")
	var b bytes.Buffer
	require.NoError(t, page.HTML(&b, wide()))
	require.NoError(t, os.WriteFile(file, b.Bytes(), 0o600))
	for _, width := range []int{390, 1280} {
		for scheme, number := range map[string]int{"dark": 0, "light": 1} {
			shot := filepath.Join(dir, fmt.Sprintf("%d-%s.png", width, scheme))
			log := browser(t, "--screenshot="+shot, fmt.Sprintf("--window-size=%d,1200", width), fmt.Sprintf("--blink-settings=preferredColorScheme=%d", number), "file://"+file)
			require.NotContains(t, log, "CONSOLE", scheme)
			f, err := os.Open(shot)
			require.NoError(t, err)
			image, err := png.Decode(f)
			require.NoError(t, err)
			require.NoError(t, f.Close())
			require.Equal(t, width, image.Bounds().Dx())
			colours := map[[3]uint32]bool{}
			for y := 0; y < image.Bounds().Dy(); y += 3 {
				for x := 0; x < width; x += 3 {
					r, g, b, _ := image.At(x, y).RGBA()
					colours[[3]uint32{r, g, b}] = true
				}
			}
			require.Greater(t, len(colours), 50, "%s at %d: the screen shows text, plots and colours", scheme, width)
			r, _, _, _ := image.At(1, 1).RGBA()
			require.Equal(t, scheme == "light", r > 0x8000, "the background of %s", scheme)
		}
	}
	// A page of the test has this page in a frame of a telephone's width, and measures it. A window of Chromium is wider.
	text := `<title></title><iframe style="width:390px;height:844px;border:0" srcdoc="` + html.EscapeString(b.String()) + `"></iframe><script>
onload=()=>{const d=document.querySelector("iframe").contentDocument
document.title=JSON.stringify({screen:d.defaultView.innerWidth,page:d.documentElement.scrollWidth,small:[...d.querySelectorAll("svg text")].filter(e=>e.getBoundingClientRect().height<6).length})}</script>`
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	found := regexp.MustCompile(`<title>(.*?)</title>`).FindStringSubmatch(browser(t, "--dump-dom", "file://"+file))
	require.NotNil(t, found)
	var got struct{ Screen, Page, Small int }
	require.NoError(t, json.Unmarshal([]byte(strings.ReplaceAll(found[1], "&quot;", `"`)), &got))
	require.Equal(t, 390, got.Screen)
	require.LessOrEqual(t, got.Page, got.Screen, "the page scrolls sideways")
	require.Zero(t, got.Small, "text of plots that is too small to read")
}
