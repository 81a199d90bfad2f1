package door

import (
	"errors"
	"reflect"

	"gorail/gorail/live"
	"gorail/internal/subprocess"
)

// What a connection carries, in bytes. The events of a node of a study are its largest answer, 16 bytes each; a struct of a list may take
// a hundred times its bytes in memory. The tasks of a node are the largest command.
const (
	mostAnswer  = 1 << 20
	mostEvents  = 4 << 20
	mostCommand = 8 << 20
	mostCalls   = 16   // commands at work at a time
	mostText    = 4096 // bytes of a text
)

// Answers are the bounds for what a process on another host answers. large is for nodes of a study.
func Answers(large bool) subprocess.Far {
	f := subprocess.Far{Most: mostAnswer, Look: func(v any) error { clean(reflect.ValueOf(v)); return nil }, Text: Text}
	if large {
		f.Most = mostEvents
	}
	return f
}

// Commands are the bounds for what a caller on another host sends.
func Commands() subprocess.Far {
	return subprocess.Far{Most: mostCommand, Calls: mostCalls, Look: func(v any) error {
		if clean(reflect.ValueOf(v)) {
			return errors.New("a command with a text that is too long, or would control a terminal, is refused from another host")
		}
		return nil
	}}
}

// Text makes text of another host fit for a terminal: one line, no control characters and escapes, no change of direction, valid UTF-8, and
// not long. All text of another host goes through it, as it comes in.
func Text(s string) string {
	const cut = "…"
	if len(s) > mostText {
		s = s[:mostText-len(cut)] + cut
	}
	return live.Printable(s)
}

// clean applies Text to all strings in v, and reports whether one has changed.
func clean(v reflect.Value) (changed bool) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		return !v.IsNil() && clean(v.Elem())
	case reflect.String:
		s := Text(v.String())
		if changed = s != v.String(); changed && v.CanSet() {
			v.SetString(s)
		}
	case reflect.Slice, reflect.Array:
		if v.Type().Elem().Kind() == reflect.Uint8 { // bytes, such as metadata
			return false
		}
		for i := range v.Len() {
			changed = clean(v.Index(i)) || changed
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				changed = clean(v.Field(i)) || changed
			}
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			k, e := settable(key), settable(v.MapIndex(key))
			if again := clean(e); clean(k) || again {
				changed = true
				v.SetMapIndex(key, reflect.Value{})
				v.SetMapIndex(k, e)
			}
		}
	}
	return changed
}

// settable is a copy of v that can be changed.
func settable(v reflect.Value) reflect.Value {
	c := reflect.New(v.Type()).Elem()
	c.Set(v)
	return c
}
