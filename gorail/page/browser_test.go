package page

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/gorail/result"
	"gorail/test/skip"
)

// measured is a frame's width and what sticks out of it, as measuring says in JSON.
type measured struct {
	Width, Cells int
	Out          []string
}

// measuring looks at every cell of the page in a frame: its right edge must be inside, and no text wider than its cell.
const measuring = `<!DOCTYPE html><iframe id="f" style="border:0;width:%dpx;height:800px" srcdoc="%s"></iframe><pre id="said"></pre><script>
document.getElementById("f").onload = e => {
  const d = e.target.contentDocument, w = d.documentElement.clientWidth, out = [];
  let cells = 0;
  for (const c of d.querySelectorAll("td,th")) {
    const r = c.getBoundingClientRect();
    if (!r.width) continue;
    cells++;
    if (r.right > w + 0.5 || c.scrollWidth > c.clientWidth + 1) out.push((c.dataset.column || "") + " " + c.textContent + " to " + r.right);
  }
  if (d.documentElement.scrollWidth > w) out.push("the page is " + d.documentElement.scrollWidth + " wide");
  document.getElementById("said").textContent = JSON.stringify({Width: w, Cells: cells, Out: out});
}</script>`

// TestColumns: a browser shows every column of every table whole, at the width of a desktop and of a phone, without scrolling to the side.
func TestColumns(t *testing.T) {
	if testing.Short() {
		t.Skip("a browser")
	}
	browser, err := exec.LookPath("chromium") // Debian's package has 300 MB: tools/test-all.sh brings it
	skip.OrFail(t, err)
	wide := result.Table{Title: "Wide", Keys: 2}
	var row []result.Cell
	for i := range 14 {
		wide.Columns = append(wide.Columns, fmt.Sprint("CPU s/GiB of column ", i))
		row = append(row, result.Num(12345.6+float64(i)))
	}
	row[0], row[1], row[13] = result.Word("64 x 4 KiB"), result.Word("GORAIL+provider=tcp"), result.Word("1.95 (1.85 .. 2.05)")
	wide.Rows = [][]result.Cell{row, row}
	made := &result.Result{Title: "T", Sections: []result.Section{{Title: "S", Tables: []result.Table{wide}, Plots: sample().Sections[0].Plots}}}
	var page bytes.Buffer
	require.NoError(t, HTML(&page, made))
	kept, err := os.ReadFile(docs + "example-study.html")
	require.NoError(t, err)
	for name, text := range map[string]string{"wide table": page.String(), "example": string(kept)} {
		for _, width := range []int{1280, 900, 400} {
			t.Run(fmt.Sprint(name, "/", width), func(t *testing.T) {
				got := look(t, browser, fmt.Sprintf(measuring, width, html.EscapeString(text)))
				require.InDelta(t, width, got.Width, 20, "less a scroll bar")
				require.Greater(t, got.Cells, 20)
				require.Empty(t, got.Out)
			})
		}
	}
}

// look opens a page in a browser without a screen, and returns what its script has measured.
func look(t *testing.T, browser, page string) (got measured) {
	file := filepath.Join(t.TempDir(), "page.html")
	require.NoError(t, os.WriteFile(file, []byte(page), 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, browser, "--headless", "--no-sandbox", "--disable-gpu", "--user-data-dir="+t.TempDir(), "--virtual-time-budget=10000", "--dump-dom", "file://"+file)
	cmd.WaitDelay = time.Second
	var said, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &log
	require.NoError(t, cmd.Run(), "%s", &log)
	m := regexp.MustCompile(`<pre id="said">(.*?)</pre>`).FindSubmatch(said.Bytes())
	require.NotNil(t, m, "%s", &log)
	require.NoError(t, json.Unmarshal([]byte(html.UnescapeString(string(m[1]))), &got), "%s", m[1])
	return got
}
