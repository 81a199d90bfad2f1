// Package plain makes text of other processes fit for a terminal: they may be other users', or on other hosts.
package plain

import (
	"reflect"
	"strings"
	"unicode"
	"unicode/utf8"
)

// most bounds a text, in bytes. The longest honest ones are the last output of a process.
const most = 16 << 10

// Text replaces what a terminal would act on, or show in another order: control characters but for tabs and ends of lines, invalid UTF-8,
// and characters that change the direction of text or do not show. A longer text is cut.
func Text(s string) string {
	cut := ""
	if len(s) > most {
		s, cut = s[:most], " ..."
	}
	clean := func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r == utf8.RuneError, unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co, unicode.Cs, unicode.Zl, unicode.Zp):
			return '?'
		}
		return r
	}
	return strings.Map(clean, s) + cut
}

// Value is Text for all strings in what v points to: in fields, elements, keys and values. Bytes are left as they are. v must have no cycle.
func Value(v any) { value(reflect.ValueOf(v)) }

func value(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			value(v.Elem())
		}
	case reflect.Interface:
		if !v.IsNil() && v.CanSet() {
			v.Set(copied(v.Elem()))
		}
	case reflect.String:
		if v.CanSet() {
			v.SetString(Text(v.String()))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			value(v.Field(i))
		}
	case reflect.Slice, reflect.Array:
		if !flat(v.Type().Elem()) {
			for i := range v.Len() {
				value(v.Index(i))
			}
		}
	case reflect.Map:
		if v.CanSet() && !v.IsNil() {
			v.Set(mapped(v))
		}
	}
}

// flat says that a type holds no text.
func flat(t reflect.Type) bool {
	return t.Kind() >= reflect.Bool && t.Kind() <= reflect.Complex128
}

// copied is a value that is not addressable, made plain.
func copied(v reflect.Value) reflect.Value {
	c := reflect.New(v.Type()).Elem()
	c.Set(v)
	value(c)
	return c
}

func mapped(m reflect.Value) reflect.Value {
	out := reflect.MakeMapWithSize(m.Type(), m.Len())
	for k, v := range m.Seq2() {
		out.SetMapIndex(copied(k), copied(v))
	}
	return out
}

// Error is an error with a plain text; nil stays nil. Errors below it stay what they are.
func Error(err error) error {
	if err == nil || Text(err.Error()) == err.Error() {
		return err
	}
	return plainError{err}
}

type plainError struct{ error }

func (e plainError) Error() string { return Text(e.error.Error()) }
func (e plainError) Unwrap() error { return e.error }
