package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/gorail/page"
	"gorail/gorail/result"
	"gorail/test/skip"
)

// browser runs headless Chromium and returns its output, standard error after standard output.
func browser(t *testing.T, args ...string) string {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil { // 300 MB, which tools/setup.sh does not ask of everyone, and tools/test-all.sh does
		skip.OrFail(t, errors.New("chromium is not installed: apt-get install chromium"))
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
	r := &result.Result{Version: result.Version, Study: "kv", Title: "A page", Asked: strings.Repeat("long", 40), When: time.Unix(0, 0), Command: "gorail study kv --output=" + strings.Repeat("x", 200),
		Findings: []string{strings.Repeat("word ", 60), strings.Repeat("w", 300)}, Checks: []result.Check{{Status: "WARN", What: "rails", Text: strings.Repeat("a/b:", 80)}}}
	t := result.Table{Title: "Table", Keys: 2, Columns: []string{"a", "b"}}
	p := result.Plot{Title: "Plot", X: "bytes", Y: "us", LogX: true, LogY: true, Bytes: true}
	for i := range 12 {
		t.Columns = append(t.Columns, fmt.Sprintf("number %d", i))
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
	example, err := os.ReadFile("../docs/example-study.html")
	require.NoError(t, err)
	for _, page := range [][]byte{b.Bytes(), example} {
		for _, width := range []int{390, 1280} {
			got := looked(t, page, width)
			require.Equal(t, width, got.Screen)
			require.LessOrEqual(t, got.Page, got.Screen, "the page scrolls sideways")
			require.Zero(t, got.Small, "text of plots that is too small to read")
			require.Empty(t, got.Over, "parts of the page, or texts of a plot, lie over each other")
		}
	}
	two := bytes.ReplaceAll(b.Bytes(), []byte("</h1>"), []byte(`</h1><p style="position:absolute;top:1rem">Over the title</p>`))
	require.NotEmpty(t, looked(t, two, 390).Over, "the test finds what lies over the title")
}

// shown is what a browser says about a page.
type shown struct {
	Screen, Page int // widths in pixels
	Small        int // texts of plots that nobody can read
	Over         []string
}

// looked shows a page in a frame of a width, because a window of Chromium has a least width, and measures it there.
func looked(t *testing.T, page []byte, width int) (l shown) {
	t.Helper()
	text := `<title></title><iframe style="width:` + strconv.Itoa(width) + `px;height:844px;border:0" srcdoc="` + html.EscapeString(string(page)) + `"></iframe><script>
onload=()=>{const d=document.querySelector("iframe").contentDocument, over=[]
const pairs=list=>list.forEach((a,i)=>list.slice(i+1).forEach(b=>{const p=a.getBoundingClientRect(),q=b.getBoundingClientRect()
if(!a.contains(b)&&!b.contains(a)&&p.left<q.right-1&&q.left<p.right-1&&p.top<q.bottom-1&&q.top<p.bottom-1)over.push(a.textContent.slice(0,40)+" / "+b.textContent.slice(0,40))}))
pairs([...d.querySelectorAll("h1,h2,h3,p,figcaption,figure svg,.scroll,li,summary")].filter(e=>e.checkVisibility())) // a closed list has places, too
d.querySelectorAll("svg").forEach(s=>pairs([...s.querySelectorAll("text")].filter(e=>e.textContent.trim())))
document.title=JSON.stringify({screen:d.defaultView.innerWidth,page:d.documentElement.scrollWidth,small:[...d.querySelectorAll("svg text")].filter(e=>e.getBoundingClientRect().height<6).length,over})}</script>`
	file := filepath.Join(t.TempDir(), "frame.html")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	log := browser(t, "--dump-dom", "--window-size=1400,1200", "file://"+file)
	require.NotContains(t, log, "CONSOLE")
	found := regexp.MustCompile(`<title>(.*?)</title>`).FindStringSubmatch(log)
	require.NotNil(t, found, log)
	require.NoError(t, json.Unmarshal([]byte(html.UnescapeString(found[1])), &l), found[1])
	return l
}
