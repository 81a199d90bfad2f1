package page

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"regexp"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/gorail/result"
)

var update = flag.Bool("update", false, "write docs/example-study.html again")

const docs = "../../docs/"

// mostExample bounds the example page: it is in the repository.
const mostExample = 100_000

// TestExample: the example page is what HTML makes of its JSON today. With -update the test writes it.
func TestExample(t *testing.T) {
	text, err := os.ReadFile(docs + "example-study.json")
	require.NoError(t, err)
	r := &result.Result{}
	require.NoError(t, json.Unmarshal(text, r))
	require.Equal(t, result.Version, r.Version, "run the study of the command in it again")
	require.Empty(t, r.Ended)
	require.Empty(t, r.Failed)
	var b bytes.Buffer
	require.NoError(t, HTML(&b, r))
	require.Less(t, b.Len(), mostExample)
	if *update {
		require.NoError(t, os.WriteFile(docs+"example-study.html", b.Bytes(), 0o644))
	}
	kept, err := os.ReadFile(docs + "example-study.html")
	require.NoError(t, err)
	same := string(kept) == b.String()
	if runtime.GOARCH != "amd64" { // other processors round the last digit of a plot's coordinates elsewhere
		numbers := regexp.MustCompile(`[0-9.]+`)
		same = numbers.ReplaceAllString(string(kept), "") == numbers.ReplaceAllString(b.String(), "")
	}
	require.True(t, same, "docs/example-study.html is not of the present format: go test ./gorail/page -run TestExample -update")
}
