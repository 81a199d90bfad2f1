package main

import (
	"encoding/gob"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/gorail/doctor/peer"
	"gorail/gorail/side"
	"gorail/gorail/study/kv/node"
)

// No command and no answer of a process on another host has a plain map: package gob would make it as large as the sender says.
func TestNoMapsFromAfar(t *testing.T) {
	own := reflect.TypeFor[gob.GobDecoder]()
	var walk func(at string, typ reflect.Type, seen map[reflect.Type]bool)
	walk = func(at string, typ reflect.Type, seen map[reflect.Type]bool) {
		if seen[typ] || reflect.PointerTo(typ).Implements(own) {
			return
		}
		seen[typ] = true
		switch typ.Kind() {
		case reflect.Map:
			t.Errorf("%s is a %v: make it a subprocess.Map", at, typ)
		case reflect.Pointer, reflect.Slice, reflect.Array:
			walk(at, typ.Elem(), seen)
		case reflect.Struct:
			for i := range typ.NumField() {
				if f := typ.Field(i); f.IsExported() || f.Anonymous {
					walk(at+"."+f.Name, f.Type, seen)
				}
			}
		}
	}
	for _, server := range []any{&side.Server{}, &peer.Server{}, &node.Server{}} {
		of := reflect.TypeOf(server)
		require.Positive(t, of.NumMethod())
		for i := range of.NumMethod() {
			m := of.Method(i)
			for k := 1; k < m.Type.NumIn(); k++ {
				walk(of.String()+"."+m.Name, m.Type.In(k), map[reflect.Type]bool{})
			}
		}
	}
}
