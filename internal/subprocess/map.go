package subprocess

import "encoding/json"

// Map is a map in a command or an answer. Package gob makes a map as large as its sender says before it reads one entry of it; a Map
// travels as JSON, and takes memory for what has come.
type Map[V any] map[string]V

// GobEncode implements gob.GobEncoder.
func (m Map[V]) GobEncode() ([]byte, error) { return json.Marshal(map[string]V(m)) }

// GobDecode implements gob.GobDecoder.
func (m *Map[V]) GobDecode(b []byte) error { return json.Unmarshal(b, (*map[string]V)(m)) }
