package stats

import (
	"bytes"
	"encoding/json"
	"reflect"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSnapshotNamesEveryCounter(t *testing.T) {
	var c Counters
	fields := reflect.TypeFor[Counters]()
	want := 0
	for i := range fields.NumField() {
		if f := fields.Field(i).Type; f.Kind() == reflect.Array {
			want += f.Len()
		} else {
			want++
		}
	}
	assert.Len(t, c.Snapshot(), want, "a counter without a name, or two with one name")
}

func TestSinceAndJSON(t *testing.T) {
	var c Counters
	c.BytesWritten.Add(5)
	c.CToGo[Prep].Add(1)
	before := c.Snapshot()
	c.BytesWritten.Add(7)
	c.GoToC[Post].Add(2)
	assert.Equal(t, Snapshot{"bytes_written": 7, "go_to_c_post": 2}, c.Snapshot().Since(before))

	var out bytes.Buffer
	require.NoError(t, c.Snapshot().WriteJSON(&out))
	var back Snapshot
	require.NoError(t, json.Unmarshal(out.Bytes(), &back))
	assert.Equal(t, c.Snapshot(), back)
}

func TestConcurrent(t *testing.T) {
	var c Counters
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				c.Completions.Add(1)
				c.Snapshot()
			}
		})
	}
	wg.Wait()
	assert.EqualValues(t, 8000, c.Completions.Load())
}

func TestKindNames(t *testing.T) {
	assert.Equal(t, "prep", Prep.String())
	assert.Equal(t, "other", Other.String())
	assert.Equal(t, "unknown", Kinds.String())
	assert.Equal(t, "unknown", Kind(-1).String())
}
